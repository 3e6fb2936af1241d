"""Makes the tables, although other processes may do so at the same time.

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

from django.db import Error as DatabaseError
from django.db import connections, migrations
from django.db.migrations.executor import MigrationExecutor

from distlock.concurrency.clock import clock, left
from distlock.exceptions import LockUnavailable

_APP = "distlock"
#: Attempts to make the table, and the seconds between two of them. Errors that are due to others
#: end when these are done; a missing privilege, for one, stays.
_ATTEMPTS = 10
_PAUSE = 0.25


class CreateTable(migrations.CreateModel):
    """Makes the table unless it is there.

    MariaDB and MySQL cannot make a table and record the migration in one transaction. So the table
    may be there while the record is not: another process is between the two, or was ended there.
    """

    def database_forwards(
        self, app_label: str, schema_editor: Any, from_state: Any, to_state: Any
    ) -> None:
        model = to_state.apps.get_model(app_label, self.name)
        found = {} if schema_editor.collect_sql else _keys(schema_editor.connection, model)
        if not found:
            super().database_forwards(app_label, schema_editor, from_state, to_state)
            return
        # A table is made together with its unique keys, but indexes are added to it.
        for index in model._meta.indexes:
            if index.name not in found:
                schema_editor.add_index(model, index)


def _keys(connection: Any, model: Any) -> dict[str, Any]:
    """Return the keys of the model's table; none unless it has all its columns and unique keys."""
    meta, introspection = model._meta, connection.introspection
    with connection.cursor() as cursor:
        if meta.db_table not in introspection.table_names(cursor):
            return {}
        described = introspection.get_table_description(cursor, meta.db_table)
        keys: dict[str, Any] = introspection.get_constraints(cursor, meta.db_table)
    columns = {column.name for column in described}
    unique = [key["columns"] for key in keys.values() if key["unique"]]
    complete = all(field.column in columns for field in meta.local_concrete_fields) and all(
        list(key.fields) in unique for key in meta.constraints
    )
    return keys if complete else {}


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
            except (connection.Database.Error, DatabaseError) as error:
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
