"""The table of locks."""

from django.db import migrations, models

import distlock.fields


class Migration(migrations.Migration):
    initial = True

    dependencies = []

    operations = [
        migrations.CreateModel(
            name="DatabaseLock",
            fields=[
                ("id", models.BigAutoField(primary_key=True, serialize=False)),
                ("lock", distlock.fields.ExactCharField(max_length=564, verbose_name="name")),
                (
                    "description",
                    distlock.fields.ExactCharField(
                        blank=True,
                        db_default="",
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
                        db_default=0.0, default=0.0, verbose_name="seconds of the lease"
                    ),
                ),
                (
                    "renews",
                    models.BooleanField(db_default=False, default=False, verbose_name="is renewed"),
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
