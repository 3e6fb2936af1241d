"""What is sent to a database, and what it answers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple


class Statement(NamedTuple):
    """SQL as Django's cursors take it: with ``%(name)s`` or ``%s``, and ``%%`` for a ``%``."""

    sql: str
    params: Mapping[str, Any] | tuple[Any, ...] = {}
    #: Let the server keep it for the session, and plan it once. For one statement whose text is
    #: always the same, and whose parameters are named and are str, int, float or bool. PostgreSQL
    #: infers their types; of a packet that is so for each statement, if its session has sent the
    #: last one a few times. MariaDB keeps what a session has sent a few times, and no packets.
    prepare: bool = False


class Result(NamedTuple):
    """What the database answered to one statement."""

    rows: list[tuple[Any, ...]]
    #: rows that it changed. On MySQL those that it matched, because our own sessions and Django's
    #: connect with CLIENT_FOUND_ROWS.
    affected: int
    #: MySQL: what ``LAST_INSERT_ID(expr)`` was given, or the new AUTO_INCREMENT value; else 0
    insert_id: int = 0
