"""Makes the table of the locks where it is missing, on the first deploy or after an upgrade.

On the first deploy several processes want the lock that decides which one migrates the database,
and the table of that lock is made by a migration, too. So all of them run the migrations of this
app, and of no other, at the same time. Most of them fail, because another one has just made the
same table. Each looks again after an error, and is done when nothing is missing.

That grants no lock twice: each engine makes a table of one name once, and this table together with
its unique key, in one statement.
"""

from __future__ import annotations

import time
from typing import Any

from django.db import Error as DjangoDatabaseError
from django.db import connections
from django.db.migrations.executor import MigrationExecutor

from distlock.concurrency.clock import clock, left
from distlock.exceptions import LockUnavailable

_APP = "distlock"
#: Attempts, and the seconds between two of them. Errors that are due to others end when these are
#: done; a missing privilege, for one, stays.
_ATTEMPTS = 10
_PAUSE = 0.25


def make_table(database: str, deadline: float | None) -> bool:
    """Migrate this app, and nothing else, if that has not been done; True if it is done now.

    Several processes may do so at once. False inside a transaction. Raises LockUnavailable if it
    cannot be done, or not until ``deadline`` of clock().
    """
    connection: Any = connections[database]
    if connection.in_atomic_block:
        return False
    was_open = connection.connection is not None
    try:
        for attempt in range(1, _ATTEMPTS + 1):
            try:
                _migrate(connection)
                break
            except (connection.Database.Error, DjangoDatabaseError) as error:
                late = deadline is not None and clock() >= deadline
                if attempt == _ATTEMPTS or late:
                    why = " ".join(str(error).split())
                    raise LockUnavailable(
                        f"the table of the locks could not be made in the database {database!r}:"
                        f" {why}"
                    ) from error
            time.sleep(left(deadline, _PAUSE))
    finally:
        if not was_open:
            connection.close()
    return True


def _migrate(connection: Any) -> None:
    connection.ensure_connection()
    mode = getattr(connection, "transaction_mode", None)
    if connection.vendor == "sqlite":
        # Wait for other writers at BEGIN. A transaction that has read before it writes fails at
        # once if others write, and Django's schema editor then never leaves that transaction.
        connection.transaction_mode = "IMMEDIATE"
    try:
        executor = MigrationExecutor(connection)
        targets = executor.loader.graph.leaf_nodes(_APP)
        if executor.migration_plan(targets):
            executor.migrate(targets)
    finally:
        connection.transaction_mode = mode
