"""Pages of a table: from a few statements where the dialect is known, from all rows where not."""

import pytest

from distlock.lease import State
from distlock.listing import Order, Selection, Standing, page_of
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
        page, measure = backend.page(selection), page_of(backend.list(), selection, backend.soon)
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
