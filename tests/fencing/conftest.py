"""The databases with the tables of the fenced models."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from django.db import connections, transaction

from tests.databases import ALIASES
from tests.models import BoxSeat, Event, Seat


@pytest.fixture
def shop(kind, server):
    """Empty tables on one database; ``seats`` and ``boxes`` are querysets on it."""
    database = server(kind)
    using = ALIASES[kind]
    Seat.objects.using(using).all().delete()
    Event.objects.using(using).all().delete()
    yield SimpleNamespace(
        using=using,
        database=database,
        events=Event.objects.using(using),
        seats=Seat.objects.using(using),
        boxes=BoxSeat.objects.using(using),
        atomic=lambda: transaction.atomic(using=using),
        states=lambda: list(Seat.objects.using(using).order_by("pk").values_list("state", "fence")),
    )
    connections[using].close()
