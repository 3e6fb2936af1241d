"""What is said to a database, and what it answers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple


class Statement(NamedTuple):
    """SQL as Django's cursors take it: with ``%(name)s`` or ``%s``, and ``%%`` for a ``%``."""

    sql: str
    params: Mapping[str, Any] | tuple[Any, ...] = {}

    @property
    def named(self) -> Mapping[str, Any]:
        """The parameters by name; TypeError if they have none."""
        if isinstance(self.params, tuple):
            raise TypeError(f"the parameters of {self.sql!r} have no names")
        return self.params


class Result(NamedTuple):
    """What the database answered to one statement."""

    rows: list[tuple[Any, ...]]
    #: rows that it changed; on MySQL with CLIENT_FOUND_ROWS, as Django connects, those it matched
    affected: int
    #: MySQL: what ``LAST_INSERT_ID(expr)`` was given, or the new AUTO_INCREMENT value; else 0
    insert_id: int = 0
    #: clock() just before it was sent
    sent_at: float = 0.0
