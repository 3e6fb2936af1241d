"""What runs in other processes while the shop is open."""

from __future__ import annotations

from distlock import Lock
from tests.children import read_line, write_line


def hold(name: str) -> None:
    """Hold a lock until the parent has seen enough."""
    with Lock(name):
        write_line("held")
        read_line()
