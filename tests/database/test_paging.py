"""Pages of a table: from a few statements where the dialect is known, from all rows where not."""

from datetime import timedelta

import pytest
from django.utils import timezone

from distlock.lease import State
from distlock.listing import Order, Selection, Standing, page_of, standing_of
from distlock.models import DatabaseLock
from tests.database.counting import statements
from tests.database.speaking import claim, eventually

SELECTIONS = [
    Selection(),
    Selection(size=3),
    Selection(size=3, backwards=True),
    Selection(order=Order.AGE, size=4),
    Selection(search="LOCK:1"),
    Selection(standings=frozenset({Standing.HELD, Standing.EXPIRED})),
    Selection(host="host", held_for=0.001),
    Selection(host="elsewhere"),
]


@pytest.mark.parametrize("dialect", [None, "generic"])
def test_it_is_as_if_all_rows_had_been_read(backend):
    for number in range(11):
        assert backend.try_acquire(claim(f"lock:{number}"))
    assert backend.try_acquire(claim("short", duration=0.01))
    eventually(lambda: backend.inspect("short").state is State.EXPIRED)
    for selection in SELECTIONS:
        page, measure = backend.page(selection), page_of(backend.list(), selection)
        assert [info.name for info in page.locks] == [info.name for info in measure.locks]
        assert (page.more, page.found, page.hosts) == (measure.more, measure.found, measure.hosts)


def test_it_takes_two_statements_however_many_rows_there_are(make):
    backend = make()
    for number in range(30):
        backend.try_acquire(claim(f"lock:{number}"))
    for selection in SELECTIONS:
        with statements() as asked:
            backend.page(selection)
        assert 0 < len(asked) <= 2


@pytest.mark.parametrize("dialect", [None, "generic"])
@pytest.mark.parametrize(
    ("renews", "lease", "remaining", "standing"),
    [
        (True, 600, 250, Standing.HELD),
        (True, 600, 150, Standing.EXPIRING),  # more than one renewal was missed
        (False, 3600, 90, Standing.HELD),
        (False, 3600, 40, Standing.EXPIRING),
        (False, 90, 25, Standing.EXPIRING),
    ],
)
def test_a_lease_ends_soon_by_its_own_length(backend, database, renews, lease, remaining, standing):
    assert backend.try_acquire(claim("a", duration=lease, renews=renews))
    ends = timezone.now() + timedelta(seconds=remaining)
    DatabaseLock.objects.using(database).update(expires_at=ends)
    (info,) = backend.list()
    assert standing_of(info) is standing
    for asked in (Standing.HELD, Standing.EXPIRING):
        page = backend.page(Selection(standings=frozenset({asked})))
        assert page.found == (asked is standing)
        assert page.counts.expiring == (standing is Standing.EXPIRING)
