"""The table of locks."""

from typing import Any

from django.db import migrations, models

from distlock.fields import ExactCharField, Literal


class CreateTable(migrations.CreateModel):
    """Makes the table unless it is there.

    MariaDB and MySQL cannot make a table and record the migration in one transaction. So the table
    may be there while the record is not: another process is between the two, or was ended there.
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
            "DatabaseLock",
            [
                ("id", models.BigAutoField(primary_key=True, serialize=False)),
                ("lock", ExactCharField("name", max_length=564)),
                (
                    "description",
                    ExactCharField(
                        "description",
                        max_length=1024,
                        default="",
                        blank=True,
                        db_default=Literal(""),
                    ),
                ),
                ("owner", ExactCharField("owner", max_length=201, default="", blank=True)),
                (
                    "nonce",
                    ExactCharField("nonce of the hold", max_length=32, default="", blank=True),
                ),
                ("host", ExactCharField("host", max_length=255, default="", blank=True)),
                ("process", models.BigIntegerField("process", default=0)),
                ("thread", ExactCharField("thread", max_length=255, default="", blank=True)),
                ("token", models.BigIntegerField("fencing token")),
                (
                    "lease",
                    models.FloatField("seconds of the lease", default=0.0, db_default=Literal(0.0)),
                ),
                (
                    "renews",
                    models.BooleanField("is renewed", default=False, db_default=Literal(False)),
                ),
                ("acquired_at", models.DateTimeField("held since")),
                ("expires_at", models.DateTimeField("held until")),
            ],
            {
                "verbose_name": "database lock",
                "verbose_name_plural": "database locks",
                "db_table": "database_lock",
                "permissions": [
                    ("force_release_lock", "Can force the release of a lock"),
                    ("sweep_locks", "Can sweep locks"),
                ],
                "constraints": [models.UniqueConstraint(fields=["lock"], name="uiq_idx_lock")],
            },
        ),
        migrations.CreateModel(
            "HeldLock",
            [],
            {
                "verbose_name": "held lock",
                "verbose_name_plural": "held locks",
                "proxy": True,
                "default_permissions": (),
            },
            ["distlock.databaselock"],
        ),
    ]
