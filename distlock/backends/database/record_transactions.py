"""Transactions of the caller that remove records when they commit."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from django.db import Error as DjangoDatabaseError
from django.db import connections

from distlock.backends.database.errors import failure, unavailable
from distlock.backends.database.pool import Pool
from distlock.backends.database.record_sql import DIRECTORIES, RECORDS, RecordSQL
from distlock.backends.database.sql import in_list, named_values
from distlock.backends.database.statements import Statement
from distlock.backends.open_transactions import durable
from distlock.exceptions import NotSupported
from distlock.types.lease import Lease


@contextmanager
def removing(
    pool: Pool,
    sql: RecordSQL,
    lease: Lease,
    directory: str,
    keys: Sequence[str],
    using: str | None,
    before: Callable[[], object],
    lost: Callable[[], Exception],
) -> Iterator[None]:
    """See RecordStore.removing().

    The row of the directory is locked at the end, and so for moments only. On SQLite nobody else
    writes from the beginning on: who has read something could not begin to write later.
    """
    database = pool.database
    if using not in (None, database):
        raise NotSupported(
            f"atomic(using={using!r}): {directory!r} is in the database {database!r}, and only a"
            " transaction there can be tied to it"
        )
    connection: Any = connections[database]
    # It gives the directory the next revision, which locks its row until the commit.
    directories = pool.table_for(connection, DIRECTORIES)
    touch = Statement(
        f"UPDATE {directories} SET revision = {sql.next} WHERE name = %(directory)s",
        {"directory": directory},
    )
    remove = Statement(
        f"DELETE FROM {pool.table_for(connection, RECORDS)} WHERE directory ="
        f" (SELECT id FROM {directories} WHERE name = %(directory)s)"
        f" AND {in_list('name', 'key', keys)}",
        {"directory": directory, **named_values("key", keys)},
    )
    with durable(database, lease):
        if connection.vendor == "sqlite":
            _ask(connection, database, touch)
        yield
        if connection.needs_rollback:
            return
        before()
        _ask(connection, database, touch)
        if _ask(connection, database, remove) != len(keys):
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
