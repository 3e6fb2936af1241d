"""Sweep: expired holds are cleared, current ones stay, and a message tells how many."""

from datetime import timedelta

import pytest
from django.contrib.admin.models import LogEntry
from django.contrib.messages import get_messages
from django.utils import timezone

from distlock.conf import locks
from distlock.models import AuditEntry
from distlock.recipes import Semaphore
from distlock.types.lease import State

LOCAL = "distlock.backends.local.LocalBackend"


@pytest.fixture
def sweep(operator, url):
    """``sweep()``: confirm; what is said then."""

    def confirm():
        response = operator.post(url("sweep"), {"confirmed": "yes"})
        return [str(message) for message in get_messages(response.wsgi_request)]

    return confirm


@pytest.fixture
def two(settings):
    AuditEntry.objects.all().delete()
    settings.DISTLOCK = {"default": {"BACKEND": LOCAL}, "other": {"BACKEND": LOCAL}}
    yield
    locks.close_all()


def test_it_asks_first_and_does_nothing_yet(two, operator, url, expired, taken):
    expired("a")
    expired("b", using="other")
    taken("c")
    page = operator.post(url("sweep")).content.decode()
    assert "A hold whose lease still runs is never touched." in page
    assert locks["default"].inspect("a").state is State.EXPIRED


def test_it_says_and_writes_down_what_it_did(two, sweep, expired, taken, users):
    expired("a")
    expired("b")
    (lock,) = taken("c")
    assert sweep() == [
        "Swept default: 2 expired, 0 removed.",
        "Swept other: 0 expired, 0 removed.",
    ]
    assert lock.held
    assert locks["default"].inspect("a").state is State.FREE
    entries = LogEntry.objects.order_by("-pk")[:2]
    assert [entry.object_id for entry in entries] == ["other:", "default:"]
    assert entries[1].change_message == "Swept: 2 expired, 0 removed."
    assert entries[1].user == users["operator"]


def test_what_nobody_uses_is_swept_of_semaphores_too(two, sweep):
    with Semaphore("mailer", 3):
        pass
    sweep()
    assert list(locks["default"].store.directories()) == []


def test_it_removes_old_entries_of_the_audit_log(two, sweep, settings):
    for name, days in ("old", 91), ("new", 89):
        AuditEntry.objects.create(at=timezone.now() - timedelta(days), name=name)
    sweep()
    assert [entry.name for entry in AuditEntry.objects.all()] == ["new"]
    settings.DISTLOCK_AUDIT_DAYS = 30
    sweep()
    assert not AuditEntry.objects.exists()


def test_the_log_of_a_sweep_leads_to_the_list(two, sweep, operator, url):
    sweep()
    address = LogEntry.objects.first().get_admin_url()
    assert operator.get(address).headers["Location"] == url("list")


def test_a_backend_that_cannot_be_asked_is_told(settings, sweep, expired):
    settings.DISTLOCK = {"default": {"BACKEND": LOCAL}, "wrong": {"BACKEND": "no.such.Backend"}}
    expired("a")
    done, failed = sweep()
    assert done == "Swept default: 1 expired, 0 removed."
    assert failed.startswith("Could not sweep wrong, or it is not done yet: DISTLOCK")
    locks.close_all()
