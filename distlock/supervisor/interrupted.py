"""A signal that ends a command, as an exception."""

from __future__ import annotations


class Interrupted(SystemExit):
    """A signal ended the process while it could still be ended; it exits as a shell would say."""

    def __init__(self, signum: int) -> None:
        super().__init__(128 + signum)
