"""The tables of the records that recipes are built on, and of the audit log."""

from django.db import migrations, models

from distlock.fields import ExactCharField, ExactTextField, NoPadCharField
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
    ]
