"""Many tasks, many workers of every kind, few locks: none at once, none lost."""

import uuid

import pytest

from locksite.demo.models import Entry
from tests.celery.tasks import OF

pytestmark = pytest.mark.once

SUBMISSIONS, KEYS = 200, 5


@pytest.fixture
def trace():
    """The name of the log, which is gone after the test."""
    trace = uuid.uuid4().hex
    yield trace
    Entry.objects.using("mariadb").filter(trace=trace).delete()


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", ["log_retrying", "log_waiting"])
def test_never_two_of_one_key_at_a_time_and_none_lost(
    prefork, threads, gevent, solo, using, name, trace
):
    task = getattr(OF[using], name)
    keys = [f"{trace[:8]}{number}" for number in range(KEYS)]
    results = [
        task.apply_async((keys[number % KEYS], trace), queue="many")
        for number in range(SUBMISSIONS)
    ]
    for result in results:
        result.get(timeout=60)
    log = list(Entry.objects.using("mariadb").filter(trace=trace).order_by("at", "pk"))
    assert len(log) == 2 * SUBMISSIONS
    for key in keys:
        stays = [(entry.what, entry.token) for entry in log if entry.client == key]
        tokens = [token for what, token in stays if what == Entry.What.ENTER]
        assert stays == [
            (what, token) for token in tokens for what in (Entry.What.ENTER, Entry.What.LEAVE)
        ]
        assert tokens == sorted(set(tokens))
