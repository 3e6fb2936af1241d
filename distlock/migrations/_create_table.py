"""The operation of a migration that makes a table."""

from __future__ import annotations

from typing import Any

from django.db import migrations


class CreateTable(migrations.CreateModel):
    """Makes the table unless it is there.

    MariaDB and MySQL cannot make a table and record the migration in one transaction. So the table
    may be there while the record is not: another process is between the two, or was ended there.
    """

    def database_forwards(
        self, app_label: str, schema_editor: Any, from_state: Any, to_state: Any
    ) -> None:
        model = to_state.apps.get_model(app_label, self.name)
        connection = schema_editor.connection
        if schema_editor.collect_sql or not _is_there(connection, model):
            super().database_forwards(app_label, schema_editor, from_state, to_state)
            return
        # A table is made together with its unique keys, but indexes are added to it.
        found = _keys(connection, model)
        for index in model._meta.indexes:
            if index.name not in found:
                schema_editor.add_index(model, index)


def _is_there(connection: Any, model: Any) -> bool:
    """Return whether the table of the model is there with all its columns and its unique keys."""
    table, introspection = model._meta.db_table, connection.introspection
    with connection.cursor() as cursor:
        if table not in introspection.table_names(cursor):
            return False
        found = {column.name for column in introspection.get_table_description(cursor, table)}
    unique = [key["columns"] for key in _keys(connection, model).values() if key["unique"]]
    return all(field.column in found for field in model._meta.local_concrete_fields) and all(
        list(key.fields) in unique for key in model._meta.constraints
    )


def _keys(connection: Any, model: Any) -> dict[str, Any]:
    with connection.cursor() as cursor:
        keys: dict[str, Any] = connection.introspection.get_constraints(
            cursor, model._meta.db_table
        )
    return keys
