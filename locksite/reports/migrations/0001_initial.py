from django.db import migrations, models

import distlock.fencing


class Migration(migrations.Migration):
    initial = True

    dependencies = []

    operations = [
        migrations.CreateModel(
            name="Report",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True,
                        primary_key=True,
                        serialize=False,
                        verbose_name="ID",
                    ),
                ),
                (
                    "fence",
                    distlock.fencing.FenceField(
                        default=0, editable=False, verbose_name="fencing token"
                    ),
                ),
                ("day", models.DateField(unique=True)),
                ("orders", models.PositiveIntegerField(default=0)),
                ("seats", models.PositiveIntegerField(default=0)),
                ("built", models.PositiveIntegerField(default=0)),
            ],
            options={
                "ordering": ["-day"],
            },
        ),
    ]
