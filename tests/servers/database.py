"""What the database servers have in common: one database, its owner and an administrator."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, ClassVar

from tests.servers.process import Server

#: Seconds in which a server that runs has to take a session.
CONNECT_LIMIT = 30


class DatabaseServer(Server):
    """A server with one database ``distlock`` that belongs to the user of that name."""

    engine: ClassVar[str]
    scheme: ClassVar[str]
    database: ClassVar[str] = "distlock"
    user: ClassVar[str] = "distlock"
    administrator: ClassVar[str]
    password: ClassVar[str] = "not-a-secret"

    @property
    def url(self) -> str:
        return (
            f"{self.scheme}://{self.user}:{self.password}@{self.host}:{self.port}/{self.database}"
        )

    def django(self, port: int | None = None) -> dict[str, Any]:
        """Return an entry for ``DATABASES``; ``port`` is that of a proxy."""
        return {
            "ENGINE": self.engine,
            "NAME": self.database,
            "USER": self.user,
            "PASSWORD": self.password,
            "HOST": self.host,
            "PORT": str(port or self.port),
        }

    @abstractmethod
    def execute(self, *statements: str) -> list[tuple[Any, ...]]:
        """Run them as the administrator, on a session of their own; return the last one's rows."""
