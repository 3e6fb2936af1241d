"""A node in line that this process has made."""

from __future__ import annotations

from distlock.backends.zookeeper import paths
from distlock.backends.zookeeper.client import Session


class Node:
    """A node in line: its path, its czxid, and the session that it belongs to."""

    __slots__ = ("created_after", "czxid", "path", "session")

    def __init__(self, session: Session, path: str, czxid: int, created_after: float) -> None:
        self.session = session
        self.path = path
        self.czxid = czxid
        self.created_after = created_after  # of the local clock

    @property
    def name(self) -> str:
        return self.path.rpartition("/")[2]

    def follows(self, earlier: Node) -> bool:
        """Return whether nobody can have got in line since ``earlier``, which was first in line.

        Its number is the next one. The numbers begin anew when the parent was removed meanwhile;
        but then there have been as many transactions as it takes to count up to here again.
        """
        number = paths.number_of(earlier.name)
        return (
            self.session is earlier.session
            and paths.number_of(self.name) == number + 1
            and self.czxid - earlier.czxid <= number
        )
