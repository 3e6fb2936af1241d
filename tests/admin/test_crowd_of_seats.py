"""A backend with more semaphores than can be looked at one by one while a page is waited for."""

import re

import pytest

from distlock import Lock, locks
from distlock.recipes import Semaphore

pytestmark = pytest.mark.slow

NUMBER = 15_000
COPIES = (
    "INSERT INTO database_lock_directory (name, revision)"
    " SELECT CONCAT(d.name, ':', LPAD(seq, 5, '0')), d.revision"
    f" FROM database_lock_directory d, seq_1_to_{NUMBER}",
    "INSERT INTO database_lock_record (directory, name, value, created, revision, session)"
    " SELECT d.id, r.name, r.value, r.created, r.revision, r.session"
    " FROM database_lock_directory d, database_lock_record r WHERE d.id <> r.directory",
)


@pytest.fixture(params=["held", "left"])
def crowd(request, mariadb, backend_settings, settings):
    """So many that are as one which is held, or was; and a lock."""
    settings.DISTLOCK = backend_settings("mariadb")
    with Lock("stock"):
        job = Semaphore("job", 2, lease=600)
        job.acquire()
        if request.param == "left":
            job.release()
        mariadb.execute(*COPIES)
        yield request.param
        if request.param == "held":
            job.release()
    locks.close_all()


def test_locks_are_shown_and_some_of_the_crowd(crowd, in_time, url):
    page = in_time(url("list"))
    overview = page.context["overview"]
    assert [card.alias for card in overview.silent] == []
    names = [row.info.name for row in overview.rows]
    if crowd == "held":
        assert names == ["job", *(f"job:{number:05}" for number in range(1, 50))]
    else:
        assert names == ["stock"]
    note = f"Semaphore: {NUMBER + 1} names are too many to look at each lock"
    assert note in page.content.decode()


def test_a_search_finds_what_is_held(crowd, in_time, url):
    page = in_time(url("list"), {"q": "JOB:0012", "order": "age"})
    rows = page.context["overview"].rows
    assert len(rows) == (10 if crowd == "held" else 0)
    assert all(re.fullmatch(r"job:0012\d", row.info.name) for row in rows)
