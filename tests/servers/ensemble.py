"""Several servers that are one service."""

from __future__ import annotations

import time
from typing import Generic, Protocol, Self, TypeVar

from tests.servers.process import START_LIMIT


class Member(Protocol):
    """What a server can do that is one of several."""

    @property
    def hosts(self) -> str: ...
    @property
    def running(self) -> bool: ...
    def leads(self) -> bool: ...
    def launch(self) -> None: ...
    def await_answer(self) -> None: ...
    def heal(self) -> None: ...
    def close(self) -> None: ...


M = TypeVar("M", bound=Member)


class Ensemble(Generic[M]):
    """A context manager that leaves nothing behind."""

    def __init__(self, members: list[M]) -> None:
        self.members = members

    @property
    def hosts(self) -> str:
        """The connection string of a client."""
        return ",".join(member.hosts for member in self.members)

    @property
    def leader(self) -> M:
        """The member that leads, once one does; RuntimeError if none is elected.

        Who has lost its leader goes on answering as a follower for a while.
        """
        ends_at = time.monotonic() + START_LIMIT
        while time.monotonic() < ends_at:
            for member in self.members:
                if member.running and member.leads():
                    return member
            time.sleep(0.05)
        raise RuntimeError("The ensemble elects no leader.")

    def start(self) -> Self:
        """Start all members and return when each of them serves clients."""
        for member in self.members:
            member.launch()
        for member in self.members:
            member.await_answer()
        return self

    def heal(self) -> None:
        """Bring back every member that a test has stopped or paused."""
        for member in self.members:
            if not member.running:
                member.launch()
        for member in self.members:
            member.heal()
        for member in self.members:
            member.await_answer()

    def close(self) -> None:
        for member in self.members:
            member.close()

    def __enter__(self) -> Self:
        try:
            return self.start()
        except BaseException:
            self.close()
            raise

    def __exit__(self, *exc_info: object) -> None:
        self.close()
