"""The table of locks."""

from typing import Any

from django.db import migrations, models

import distlock.fields


class CreateTable(migrations.CreateModel):
    """Makes the table unless it is there.

    MariaDB and MySQL have no transaction that makes a table and notes that the migration is done:
    who finds the table may not find that note yet, or never if its maker was ended in between.
    """

    def database_forwards(
        self, app_label: str, schema_editor: Any, from_state: Any, to_state: Any
    ) -> None:
        model = to_state.apps.get_model(app_label, self.name)
        if schema_editor.collect_sql or not _is_there(schema_editor.connection, model):
            super().database_forwards(app_label, schema_editor, from_state, to_state)


def _is_there(connection: Any, model: Any) -> bool:
    """Return whether the table of the model is there with all its columns and its key."""
    table, introspection = model._meta.db_table, connection.introspection
    with connection.cursor() as cursor:
        if table not in introspection.table_names(cursor):
            return False
        found = {column.name for column in introspection.get_table_description(cursor, table)}
        keys = introspection.get_constraints(cursor, table).values()
    return all(field.column in found for field in model._meta.local_concrete_fields) and any(
        key["unique"] and key["columns"] == ["lock"] for key in keys
    )


class Migration(migrations.Migration):
    initial = True

    dependencies = []

    operations = [
        CreateTable(
            name="DatabaseLock",
            fields=[
                ("id", models.BigAutoField(primary_key=True, serialize=False)),
                ("lock", distlock.fields.ExactCharField(max_length=564, verbose_name="name")),
                (
                    "description",
                    distlock.fields.ExactCharField(
                        blank=True,
                        db_default=distlock.fields.Literal(""),
                        default="",
                        max_length=1024,
                        verbose_name="description",
                    ),
                ),
                (
                    "owner",
                    distlock.fields.ExactCharField(
                        blank=True, default="", max_length=201, verbose_name="owner"
                    ),
                ),
                (
                    "nonce",
                    distlock.fields.ExactCharField(
                        blank=True, default="", max_length=32, verbose_name="nonce of the hold"
                    ),
                ),
                (
                    "host",
                    distlock.fields.ExactCharField(
                        blank=True, default="", max_length=255, verbose_name="host"
                    ),
                ),
                ("process", models.BigIntegerField(default=0, verbose_name="process")),
                (
                    "thread",
                    distlock.fields.ExactCharField(
                        blank=True, default="", max_length=255, verbose_name="thread"
                    ),
                ),
                ("token", models.BigIntegerField(verbose_name="fencing token")),
                (
                    "lease",
                    models.FloatField(
                        db_default=distlock.fields.Literal(0.0),
                        default=0.0,
                        verbose_name="seconds of the lease",
                    ),
                ),
                (
                    "renews",
                    models.BooleanField(
                        db_default=distlock.fields.Literal(False),
                        default=False,
                        verbose_name="is renewed",
                    ),
                ),
                ("acquired_at", models.DateTimeField(verbose_name="held since")),
                ("expires_at", models.DateTimeField(verbose_name="held until")),
            ],
            options={
                "verbose_name": "database lock",
                "verbose_name_plural": "database locks",
                "db_table": "database_lock",
                "permissions": [
                    ("force_release_lock", "Can force the release of a lock"),
                    ("sweep_locks", "Can sweep locks"),
                ],
                "constraints": [models.UniqueConstraint(fields=("lock",), name="uiq_idx_lock")],
            },
        ),
        migrations.CreateModel(
            name="HeldLock",
            fields=[],
            options={
                "verbose_name": "held lock",
                "verbose_name_plural": "held locks",
                "proxy": True,
                "default_permissions": (),
                "indexes": [],
                "constraints": [],
            },
            bases=("distlock.databaselock",),
        ),
    ]
