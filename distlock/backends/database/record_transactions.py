"""Transactions of the caller that remove records when they commit."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from django.db import Error as DjangoDatabaseError
from django.db import connections

from distlock.backends.database.errors import failure, unavailable
from distlock.backends.database.record_sql import RecordSQL
from distlock.backends.database.statements import Statement
from distlock.backends.durable import durable
from distlock.types.lease import Lease


@contextmanager
def removing(
    database: str,
    sql: RecordSQL,
    lease: Lease,
    directory: str,
    keys: Sequence[str],
    before: Callable[[], object],
    lost: Callable[[], Exception],
) -> Iterator[None]:
    """See RecordStore.removing().

    The row of the directory is locked at the end, and so for moments only. On SQLite nobody else
    writes from the beginning on: who has read something could not begin to write later.
    """
    connection: Any = connections[database]
    with durable(database, lease):
        if connection.vendor == "sqlite":
            _ask(connection, database, sql.touch(directory))
        yield
        if connection.needs_rollback:
            return
        before()
        _ask(connection, database, sql.touch(directory))
        if _ask(connection, database, sql.remove(directory, keys)) != len(keys):
            raise lost()


def _ask(connection: Any, database: str, statement: Statement) -> int:
    try:
        with connection.cursor() as cursor:
            cursor.execute(statement.sql, statement.params)
            return int(cursor.rowcount)
    except DjangoDatabaseError as error:
        failed = failure(error, connection.vendor)(str(error))
        failed.__cause__ = error.__cause__ or error
        raise unavailable(failed, database) from error
