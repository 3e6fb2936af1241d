from __future__ import annotations

from typing import Any

from django.db.models.signals import class_prepared

PREFIX = "Shop-"


def add_prefix(sender: Any, **kwargs: Any) -> None:
    if not sender._meta.db_table.startswith(PREFIX):
        sender._meta.db_table = PREFIX + sender._meta.db_table


class_prepared.connect(add_prefix)
