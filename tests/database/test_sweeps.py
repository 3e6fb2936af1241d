"""A sweep of many rows is done in steps, and leaves the server to others between them."""

import threading
import time
from datetime import timedelta

import pytest
from django.db import transaction
from django.db.models import F

from distlock.backends.database.statements import BATCH
from distlock.models import DatabaseLock
from tests.admin.seeding import lock_many
from tests.database.speaking import claim
from tests.databases import ALIASES


@pytest.fixture
def pauses(backend, monkeypatch):
    """How long a sweep has paused. While it does, it has none of the sessions."""
    found, sleep, here = [], time.sleep, threading.get_ident()

    def pause(seconds):
        if threading.get_ident() != here:  # threads that earlier tests have left
            return sleep(seconds)
        found.append(seconds)
        assert backend.release(backend.try_acquire(claim("meanwhile"))) is not False
        return None

    monkeypatch.setattr(time, "sleep", pause)
    return found


@pytest.fixture
def expired(backend, kind):
    """``expired(5)``: five locks whose leases have ended."""

    def end(number):
        using = ALIASES[kind]
        backend.try_acquire(claim("sample"))
        lock_many(using, "sample", [f"ended:{each}" for each in range(number)])
        rows = DatabaseLock.objects.using(using).filter(lock__startswith="ended:")
        rows.update(expires_at=F("acquired_at") - timedelta(hours=1))

    return end


def test_others_take_locks_between_the_steps_of_a_sweep(backend, expired, pauses):
    expired(2 * BATCH + 1)
    assert backend.sweep().expired == 2 * BATCH + 1
    assert len(pauses) == 2
    assert all(0 < seconds <= 0.1 for seconds in pauses)


def test_a_sweep_of_one_step_does_not_pause(backend, expired, pauses):
    expired(BATCH - 1)
    assert backend.sweep().expired == BATCH - 1
    assert not pauses


@pytest.mark.parametrize("kind", ["sqlite"])  # elsewhere no sweep is in the caller's transaction
def test_a_sweep_in_a_transaction_for_whose_end_others_wait_does_not_pause(
    backend, kind, expired, pauses
):
    expired(BATCH + 1)
    with transaction.atomic(ALIASES[kind]):
        DatabaseLock.objects.filter(lock="sample").update(description="written")
        assert backend.sweep().expired == BATCH + 1
    assert not pauses
