"""The names of the locks of rows: see ``Lock.of()``."""

from __future__ import annotations

import hashlib
import json
from typing import Any

from django.db.models import Model, QuerySet

from distlock.types.arguments import checked_int, checked_name


def name_of(instance: object) -> str:
    """Return the name of the lock of a row; TypeError or ValueError for what is no saved row."""
    if not isinstance(instance, Model):
        raise TypeError(f"instance must be a saved model instance or a queryset, not {instance!r}")
    pk = instance.pk
    if instance._state.adding or pk is None:
        raise ValueError(
            f"instance must be saved: this {instance._meta.label} with pk={pk!r} has no row to lock"
        )
    return _name(type(instance), pk)


def names_of(queryset: QuerySet[Any], limit: int | None) -> list[str]:
    """Return the names of the locks of all rows, which are read; ValueError if they are more."""
    if limit is None:
        raise TypeError("a queryset needs limit=: the number of rows to lock at most")
    if (most := checked_int("limit", limit)) < 1:
        raise ValueError(f"limit must be at least 1, got {limit!r}")
    keys = [*queryset.values_list("pk", flat=True)[: most + 1]]
    if len(keys) > most:
        raise ValueError(
            f"limit={limit}: the queryset of {queryset.model._meta.label} has more rows than that"
        )
    return sorted({_name(queryset.model, key) for key in keys})


def _name(model: type[Model], pk: Any) -> str:
    meta = (model._meta.concrete_model or model)._meta
    keys = pk if isinstance(pk, tuple) else (pk,)
    # One that was given as text, say, is written as it is read from the database.
    texts = [str(field.to_python(key)) for field, key in zip(meta.pk_fields, keys, strict=True)]
    text = texts[0] if len(texts) == 1 else json.dumps(texts, ensure_ascii=False)
    try:
        return checked_name(f"{meta.label_lower}:{text}")
    except ValueError:  # too long, or with control characters
        digest = hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()
        return checked_name(f"{meta.label_lower}#{digest}")
