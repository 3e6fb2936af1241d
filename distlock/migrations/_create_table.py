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
