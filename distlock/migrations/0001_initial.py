"""The table of locks."""

from django.db import migrations, models

from distlock.fields import ExactCharField, Literal
from distlock.migrations._create_table import CreateTable


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
                    ("view_error_text", "Can see the texts of errors"),
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
