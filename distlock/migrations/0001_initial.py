"""The tables of locks, records and the audit log, and what the admin shows without a table."""

from typing import Any

from django.db import migrations, models

from distlock.migrations._create_table import CreateTable
from distlock.models import ExactCharField, ExactTextField, Literal, NoPadCharField

#: The names of the admin's models of the coordination family.
PAGES = {
    "Election": ("election", "elections"),
    "Group": ("group of processes", "groups of processes"),
    "Queue": ("queue", "queues"),
    "Config": ("configuration value", "configuration"),
    "Progress": ("progress report", "progress"),
    "Barrier": ("barrier", "barriers"),
    "DoubleBarrier": ("double barrier", "double barriers"),
    "Event": ("event", "events"),
    "CountDownLatch": ("latch", "latches"),
    "Counter": ("counter", "counters"),
    "RateLimiter": ("rate limiter", "rate limiters"),
    "Topic": ("topic", "topics"),
    "Names": ("namespace", "registered names"),
}
#: The permissions beside the one to view it.
PERMISSIONS = {
    "Election": [
        ("appoint_leader", "Can appoint the leader of an election"),
        ("step_down_leader", "Can ask a leader to step down"),
    ],
    "Queue": [
        ("retry_dead_letter", "Can put dead letters back into their queue"),
        ("release_delivery", "Can take an item of a queue back from its consumer"),
        ("purge_queue", "Can remove all items of a queue"),
    ],
    "Config": [("edit_config", "Can change a configuration value, and roll it back")],
    "Progress": [("cancel_progress", "Can cancel work that reports its progress")],
}


def _text(name: str, length: int, **more: Any) -> ExactCharField:
    return ExactCharField(name, max_length=length, default="", blank=True, **more)


class Migration(migrations.Migration):
    initial = True

    dependencies = []

    operations = [
        CreateTable(
            "DatabaseLock",
            [
                ("id", models.BigAutoField(primary_key=True, serialize=False)),
                ("lock", ExactCharField("name", max_length=564)),
                ("description", _text("description", 1024, db_default=Literal(""))),
                ("owner", _text("owner", 201)),
                ("nonce", _text("nonce of the hold", 32)),
                ("host", _text("host", 255)),
                ("process", models.BigIntegerField("process", default=0)),
                ("thread", _text("thread", 255)),
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
        CreateTable(
            "RecordDirectory",
            [
                ("id", models.BigAutoField(primary_key=True, serialize=False)),
                ("name", NoPadCharField(max_length=600)),
                ("revision", models.BigIntegerField()),
            ],
            {
                "db_table": "database_lock_directory",
                "default_permissions": (),
                "constraints": [
                    models.UniqueConstraint(fields=["name"], name="uiq_idx_lock_directory")
                ],
            },
        ),
        CreateTable(
            "DatabaseRecord",
            [
                ("id", models.BigAutoField(primary_key=True, serialize=False)),
                ("directory", models.BigIntegerField()),
                ("name", NoPadCharField(max_length=255)),
                ("value", ExactTextField()),
                ("created", models.BigIntegerField()),
                ("revision", models.BigIntegerField()),
                ("session", NoPadCharField(max_length=32, null=True)),
            ],
            {
                "db_table": "database_lock_record",
                "default_permissions": (),
                "constraints": [
                    models.UniqueConstraint(
                        fields=["directory", "name"], name="uiq_idx_lock_record"
                    )
                ],
                "indexes": [
                    models.Index(fields=["session", "directory"], name="idx_lock_record_session")
                ],
            },
        ),
        CreateTable(
            "RecordSession",
            [
                ("id", NoPadCharField(max_length=32, primary_key=True, serialize=False)),
                ("duration", models.BigIntegerField()),
                ("expires_at", models.BigIntegerField()),
            ],
            {"db_table": "database_lock_session", "default_permissions": ()},
        ),
        CreateTable(
            "AuditEntry",
            [
                ("id", models.BigAutoField(primary_key=True, serialize=False)),
                ("at", models.DateTimeField()),
                ("using", ExactCharField(max_length=255)),
                ("kind", ExactCharField(max_length=20)),
                ("name", ExactCharField(max_length=564)),
                ("action", ExactCharField(max_length=40)),
                ("who", ExactCharField(max_length=255)),
                ("text", ExactTextField()),
            ],
            {
                "db_table": "database_lock_audit",
                "default_permissions": (),
                "indexes": [models.Index(fields=["name"], name="idx_lock_audit_name")],
            },
        ),
        *(
            migrations.CreateModel(
                model,
                [],
                {
                    "verbose_name": singular,
                    "verbose_name_plural": plural,
                    "proxy": True,
                    "default_permissions": ("view",),
                    "permissions": PERMISSIONS.get(model, []),
                },
                ["distlock.recorddirectory"],
            )
            for model, (singular, plural) in PAGES.items()
        ),
    ]
