"""Reservations, which end."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("shop", "0001_initial"),
    ]

    operations = [
        migrations.AddField(
            model_name="order",
            name="reserved_until",
            field=models.DateTimeField(blank=True, null=True),
        ),
    ]
