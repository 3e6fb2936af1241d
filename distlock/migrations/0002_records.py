"""The tables of the records that recipes are built on."""

from django.db import migrations, models

from distlock.fields import ExactTextField, NoPadCharField
from distlock.migrations._create_table import CreateTable


class Migration(migrations.Migration):
    dependencies = [("distlock", "0001_initial")]

    operations = [
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
            "Record",
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
    ]
