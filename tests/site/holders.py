"""What runs in other processes while the shop is open."""

from __future__ import annotations

from distlock import Lock
from tests.children import hear, say


def hold(name: str) -> None:
    """Hold a lock until the parent has seen enough."""
    with Lock(name):
        say("held")
        hear()
