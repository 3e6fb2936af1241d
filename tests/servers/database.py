"""What the database servers have in common: one database, its owner and an administrator."""

from __future__ import annotations

import contextlib
from abc import abstractmethod
from collections.abc import Iterable
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

    #: a session of the administrator that is kept for empty()
    _kept: Any = None

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
    def connect(self) -> Any:
        """Open a session of the administrator, in autocommit."""

    @abstractmethod
    def execute(self, *statements: str) -> list[tuple[Any, ...]]:
        """Run them as the administrator, on a session of their own; return the last one's rows."""

    def empty(self, tables: Iterable[str]) -> None:
        """Delete all rows of these tables; before most tests, so a session is kept for that."""
        statements = [f"DELETE FROM {table}" for table in tables]
        if self._kept is not None:
            try:
                self._run_on(self._kept, statements)
                return
            except Exception:  # of whichever driver: a new session shows whether it was the old one
                self._close_kept()
        self._kept = self.connect()
        self._run_on(self._kept, statements)

    def close(self) -> None:
        self._close_kept()
        super().close()

    def _close_kept(self) -> None:
        kept, self._kept = self._kept, None
        if kept is not None:
            with contextlib.suppress(Exception):
                kept.close()

    @staticmethod
    def _run_on(session: Any, statements: Iterable[str]) -> None:
        with contextlib.closing(session.cursor()) as cursor:
            for sql in statements:
                cursor.execute(sql)
