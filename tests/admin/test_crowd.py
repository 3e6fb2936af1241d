"""A ZooKeeper with more locks than can be looked at one by one while a page is waited for."""

from dataclasses import replace
from urllib.parse import parse_qsl

import pytest

from distlock import Lock
from distlock.conf import locks
from distlock.types.query import Cursor, DisplayStatus, LockQuery, Order, cursor_of
from tests.nodes import Nodes
from tests.zookeeper.tree import packets, session_of

pytestmark = pytest.mark.once

NUMBER = 15_000
ROOT = "/crowd"
NAMES = [f"job:{number:05}" for number in range(NUMBER)]


@pytest.fixture(scope="module")
def crowd(zookeeper):
    """So many locks, all held."""
    nodes = Nodes(zookeeper.hosts)
    with nodes.taken(NAMES, ROOT):
        yield zookeeper
    nodes.close()


@pytest.fixture
def backend(crowd, settings):
    settings.DISTLOCK = {
        "default": {
            "BACKEND": "distlock.backends.zookeeper.ZooKeeperBackend",
            "LOCATION": crowd.hosts,
            "OPTIONS": {"root": ROOT},
        },
        "local": {"BACKEND": "distlock.backends.local.LocalBackend"},
    }
    backend = locks["default"]
    backend.inspect("nothing")  # connects
    yield backend
    locks.close_all()


def names(page):
    return [info.name for info in page.locks]


def test_a_page_costs_what_is_on_it(backend, crowd):
    session = session_of(backend)
    before = packets(crowd)[session][0]
    page = backend.page(LockQuery())
    asked = packets(crowd)[session][0] - before
    assert names(page) == NAMES[:50]
    assert (page.more, page.found, page.counts.held) == (True, NUMBER, NUMBER)
    assert asked < 500


def test_pages_go_forth_and_back_by_name(backend):
    first = backend.page(LockQuery())
    start = cursor_of(first.locks[-1], Order.NAME)
    assert names(backend.page(LockQuery(start=start))) == NAMES[50:100]
    assert names(backend.page(LockQuery(start=start, inclusive=True))) == NAMES[49:99]
    assert names(backend.page(LockQuery(start=start, backwards=True))) == NAMES[:49]
    last = backend.page(LockQuery(backwards=True, size=7))
    assert names(last) == NAMES[-7:]
    end = backend.page(LockQuery(start=cursor_of(last.locks[0], Order.NAME)))
    assert (names(end), end.more) == (NAMES[-6:], False)


def test_the_counts_say_that_they_are_of_names(backend):
    page = backend.page(LockQuery())
    assert page.counts.waiting is None
    assert page.note == (
        "15000 names are too many to look at each lock: all are counted as held, also"
        " recently released ones, and no waiters are counted."
    )


@pytest.mark.parametrize(
    "wanted", [LockQuery(order=Order.AGE), LockQuery(host="crowded"), LockQuery(held_for=0.001)]
)
def test_what_takes_a_look_at_every_lock_is_refused_with_the_way_out(backend, wanted):
    page = backend.page(wanted)
    assert (page.locks, page.more, page.counts.held) == ((), False, NUMBER)
    assert page.note.endswith(
        "To sort them by age, or to choose by state, host or time, search for a part of the name"
        " that at most 2000 of them have."
    )
    found = backend.page(replace(wanted, search="JOB:0012"))
    assert sorted(names(found)) == NAMES[120:130]
    assert (found.found, found.counts.held) == (10, NUMBER)


def test_nobody_reads_what_no_lock_here_can_be(backend):
    wanted = LockQuery(status=DisplayStatus.EXPIRED)
    assert names(backend.page(wanted)) == []
    wanted = LockQuery(status=DisplayStatus.HELD)
    assert names(backend.page(wanted)) == NAMES[:50]


def test_locks_that_were_freed_are_passed_over(crowd, backend):
    """Their nodes stay for a while, and have names."""
    free = [f"free:{number}" for number in range(300)]
    nodes = Nodes(crowd.hosts)
    with nodes.taken(free, ROOT, held=False):
        first = backend.page(LockQuery())
        back = backend.page(LockQuery(start=Cursor(name=NAMES[2]), backwards=True))
    nodes.close()
    assert names(first) == NAMES[:50]
    assert (names(back), back.more) == (NAMES[:2], False)


def test_the_admin_lists_them_in_time(backend, in_time, url):
    page = in_time(url("list"))
    overview = page.context["overview"]
    assert [row.info.name for row in overview.rows] == NAMES[:50]
    assert [card.alias for card in overview.silent] == []
    text = page.content.decode()
    assert "Cannot be asked" not in text
    assert "15000 names are too many to look at each lock" in text


def test_the_admin_does_not_say_that_there_is_none(backend, operator, url):
    page = operator.get(url("list"), {"order": "age"})
    text = page.content.decode()
    assert "All locks are free" not in text
    assert "No such lock" not in text
    assert "Nothing to show" in text
    assert "search for a part of the name" in text
    page = operator.get(url("list"), {"order": "age", "q": "nothing like that"})
    assert "No such lock" in page.content.decode()


# A search for what is not in a name takes a look at the locks


def walk(backend, search):
    """The pages of a search, from the first on."""
    query = LockQuery(search=search)
    pages = [backend.page(query)]
    while pages[-1].more:
        page = pages[-1]
        place = page.read_to or cursor_of(page.locks[-1], Order.NAME)
        pages.append(backend.page(replace(query, start=place)))
    return pages


@pytest.fixture
def restock(backend):
    """A lock among all the others that says what is done under it."""
    with Lock("job:07000!", description="restock[7f3a]"):
        yield ["job:07000!"]


def test_a_task_is_found_by_pages_that_look_at_some_of_the_locks_each(backend, restock):
    pages = walk(backend, "7F3a")
    assert [name for page in pages for name in names(page)] == restock
    assert len(pages) >= NUMBER // 2100
    assert pages[0].note.endswith(
        "No name matches, so owners, descriptions and tokens are searched. 2040 locks were looked"
        " at for this page; the list goes on from there."
    )


def test_names_come_first(backend):
    """What a name matches is shown at once, and the page says that no more was searched."""
    page = backend.page(LockQuery(search="job:0700"))
    assert names(page) == NAMES[7000:7010]
    assert page.note.endswith("Some of the names match, so only names were searched.")


@pytest.mark.parametrize("backwards", [False, True])
def test_the_admin_goes_on_where_it_has_stopped(restock, in_time, url, backwards):
    query, found, steps = "?q=7f3a", [], 0
    if backwards:
        query += "&before=default:0:job:07500"
    while query and not found:
        page = in_time(url("list"), dict(parse_qsl(query[1:])))
        overview = page.context["overview"]
        found = [row.info.name for row in overview.rows]
        query = overview.previous if backwards else overview.next
        steps += 1
    assert found == restock
    assert (steps == 1) is backwards


def test_all_that_match_on_a_later_page_can_be_broken(restock, operator, url):
    data = {"all": "yes", "back": "?q=7f3a&after=default:0:job:06500"}
    page = operator.post(url("release"), data)
    assert [row.info.name for row in page.context["unchanged"]] == restock
    assert "Not all locks could be searched: more holds may match" in page.content.decode()
