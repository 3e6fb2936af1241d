"""Thousands of rows at once: copies of what locks, recipes and queues have written themselves."""

from __future__ import annotations

import json
from collections.abc import Iterable
from datetime import timedelta
from itertools import cycle

from distlock.models import DatabaseLock, DatabaseRecord, RecordDirectory

#: Rows that are inserted at once.
BATCH = 1000
HOSTS = [f"worker-{number}.example" for number in range(40)]


def lock_many(using: str, sample: str, names: Iterable[str]) -> None:
    """Let locks of these names be held as the lock ``sample`` is, by several hosts.

    One of 50 has expired. They have been held for 0 to 7,300 seconds, in the order of the names.
    """
    (values,) = DatabaseLock.objects.using(using).filter(lock=sample).values()
    del values["id"]
    began, until = values["acquired_at"], values["expires_at"] + timedelta(hours=12)
    rows = []
    for number, (name, host) in enumerate(zip(names, cycle(HOSTS))):  # noqa: B905 - cycle() never ends
        own = {
            "lock": name,
            "host": host,
            "process": 1000 + number,
            "token": values["token"] + 1 + number,
            "acquired_at": began - timedelta(seconds=number % 7300),
            "expires_at": until - timedelta(days=number % 50 == 0),
        }
        rows.append(DatabaseLock(**{**values, **own}))
    DatabaseLock.objects.using(using).bulk_create(rows, BATCH)


def copy_recipe(using: str, kind: str, sample: str, names: Iterable[str]) -> None:
    """Let all that a recipe of the name ``sample`` has be there under each of these names, too."""
    directory = RecordDirectory.objects.using(using).get(name=f"{kind}:{sample}")
    records = list(DatabaseRecord.objects.using(using).filter(directory=directory.id))
    copies = RecordDirectory.objects.using(using).bulk_create(
        [RecordDirectory(name=f"{kind}:{name}", revision=directory.revision) for name in names],
        BATCH,
    )
    DatabaseRecord.objects.using(using).bulk_create(
        [_copy(record, directory=copy.id) for copy in copies for record in records], BATCH
    )


def fill_queue(using: str, name: str, ready: int, dead: int) -> None:
    """Put copies of the first item that is ready, and of the first dead letter, into a queue.

    Bodies have the number of the item as "number"; one letter of three has another reason.
    """
    directory = RecordDirectory.objects.using(using).get(name=f"queue:{name}")
    records = DatabaseRecord.objects.using(using).filter(directory=directory.id).order_by("name")
    tail = records.get(name="tail")
    number, rows = json.loads(tail.value)["number"], []
    for prefix, count in (("dead/", dead), ("i/r/", ready)):
        record = records.filter(name__startswith=prefix)[:1].get()
        value = json.loads(record.value)
        for place in range(count):
            number += 1
            body = {**value["body"], "number": number}
            reason = value["reason"] if place % 3 else f"{value['reason']} ({place} s)"
            text = json.dumps(
                {**value, "body": body, "reason": reason if prefix == "dead/" else ""}
            )
            rows.append(_copy(record, name=f"{prefix}{number:020}", value=text))
    DatabaseRecord.objects.using(using).bulk_create(rows, BATCH)
    records.filter(name="tail").update(value=json.dumps({"number": number}))


def _copy(record: DatabaseRecord, **changes: object) -> DatabaseRecord:
    fields = "directory", "name", "value", "created", "revision", "session"
    return DatabaseRecord(**{**{field: getattr(record, field) for field in fields}, **changes})
