"""Pages of a table: from a few statements where the dialect is known, from all rows where not."""

from datetime import timedelta

import pytest
from django.utils import timezone

from distlock.models import DatabaseLock
from distlock.types.lease import State
from distlock.types.query import DisplayStatus, LockQuery, Order, page_of, status_of
from tests.contract.watch import eventually
from tests.database.counting import statements
from tests.database.speaking import claim

SELECTIONS = [
    LockQuery(),
    LockQuery(size=3),
    LockQuery(size=3, backwards=True),
    LockQuery(order=Order.AGE, size=4),
    LockQuery(search="LOCK:1"),
    LockQuery(status=DisplayStatus.HELD),
    LockQuery(host="host", held_for=0.001),
    LockQuery(host="elsewhere"),
]


def test_it_is_as_if_all_rows_had_been_read(backend):
    for number in range(11):
        assert backend.try_acquire(claim(f"lock:{number}"))
    assert backend.try_acquire(claim("short", duration=0.01))
    eventually(lambda: backend.inspect("short").state is State.EXPIRED)
    for query in SELECTIONS:
        page, measure = backend.page(query), page_of(backend.list(), query)
        assert [info.name for info in page.locks] == [info.name for info in measure.locks]
        assert (page.more, page.found, page.hosts) == (measure.more, measure.found, measure.hosts)


def test_no_letter_of_a_search_stands_for_others(backend):
    for name in ("a%b", "a_b", "a!b", "a\\b", "a'b", "axb", "A%B"):
        assert backend.try_acquire(claim(name))
    for search in ("%", "_", "!", "\\", "'", "a%b", "a_b", "a!b", "%b", "a\\", "!%"):
        query = LockQuery(search=search)
        page, measure = backend.page(query), page_of(backend.list(), query)
        assert [info.name for info in page.locks] == [info.name for info in measure.locks]
        assert page.found == measure.found == len(page.locks)


def test_a_search_that_no_text_can_have_finds_nothing(backend):
    assert backend.try_acquire(claim("lock"))
    for search in ("\0", "\0lock", "lo\0", "x" * 60_000, "%" * 60_000):
        page = backend.page(LockQuery(search=search))
        assert (page.locks, page.found, page.counts.held) == ((), 0, 1), search[:5]


def test_hosts_are_counted_each_by_itself(backend, database):
    names = [f"web-{number}" for number in range(200)] + ["Web-1", "\u00fcber", "uber"]
    for host in names:
        assert backend.try_acquire(claim(f"lock:{host}", duration=60))
        DatabaseLock.objects.using(database).filter(lock=f"lock:{host}").update(host=host)
    assert backend.page(LockQuery()).hosts == dict.fromkeys(names, 1)


def test_it_takes_two_statements_however_many_rows_there_are(make):
    backend = make()
    for number in range(30):
        backend.try_acquire(claim(f"lock:{number}"))
    for query in SELECTIONS:
        with statements() as asked:
            backend.page(query)
        assert 0 < len(asked) <= 2


@pytest.mark.parametrize(
    ("renews", "lease", "remaining", "status"),
    [
        (True, 600, 250, DisplayStatus.HELD),
        (True, 600, 150, DisplayStatus.EXPIRING),  # more than one renewal was missed
        (False, 3600, 90, DisplayStatus.HELD),
        (False, 3600, 40, DisplayStatus.EXPIRING),
        (False, 90, 25, DisplayStatus.EXPIRING),
    ],
)
def test_a_lease_ends_soon_by_its_own_length(backend, database, renews, lease, remaining, status):
    assert backend.try_acquire(claim("a", duration=lease, renews=renews))
    ends = timezone.now() + timedelta(seconds=remaining)
    DatabaseLock.objects.using(database).update(expires_at=ends)
    (info,) = backend.list()
    assert status_of(info) is status
    for asked in (DisplayStatus.HELD, DisplayStatus.EXPIRING):
        page = backend.page(LockQuery(status=asked))
        assert page.found == (asked is status)
        assert page.counts.expiring == (status is DisplayStatus.EXPIRING)
