"""What the admin shows of the coordination family: permissions and names, no tables."""

from django.db import migrations

#: model, its names, and the permissions beside the one to view it
PAGES = [
    (
        "Election",
        ("election", "elections"),
        [
            ("appoint_leader", "Can appoint the leader of an election"),
            ("step_down_leader", "Can ask a leader to step down"),
        ],
    ),
    ("Group", ("group of processes", "groups of processes"), []),
    (
        "Queue",
        ("queue", "queues"),
        [
            ("retry_dead_letter", "Can put dead letters back into their queue"),
            ("release_delivery", "Can take an item of a queue back from its consumer"),
            ("purge_queue", "Can remove all items of a queue"),
        ],
    ),
    (
        "Config",
        ("configuration value", "configuration"),
        [("edit_config", "Can change a configuration value, and roll it back")],
    ),
    (
        "Progress",
        ("progress report", "progress"),
        [("cancel_progress", "Can cancel what reports its progress")],
    ),
    ("Barrier", ("barrier", "barriers"), []),
    ("DoubleBarrier", ("double barrier", "double barriers"), []),
    ("Event", ("event", "events"), []),
    ("Topic", ("topic", "topics"), []),
    ("Names", ("namespace", "registered names"), []),
]


class Migration(migrations.Migration):
    dependencies = [("distlock", "0002_records")]

    operations = [
        migrations.CreateModel(
            model,
            [],
            {
                "verbose_name": singular,
                "verbose_name_plural": plural,
                "proxy": True,
                "default_permissions": ("view",),
                **({"permissions": permissions} if permissions else {}),
            },
            ["distlock.recorddirectory"],
        )
        for model, (singular, plural), permissions in PAGES
    ]
