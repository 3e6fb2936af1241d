"""A page of the locks in use: chosen, sorted, counted."""

import os
import socket
from dataclasses import replace

import pytest

from distlock.exceptions import NotSupported
from distlock.types.lease import Claim, State
from distlock.types.owners import current_owner
from distlock.types.query import (
    Cursor,
    DisplayStatus,
    LockQuery,
    Order,
    cursor_of,
    page_of,
    status_of,
)
from tests.contract.conftest import BRISK
from tests.contract.watch import eventually

NAMES = ["a", "B", "b", "ä", "100%", "x_y", "it's", "鍵", "🔑 key"]


def names(page, prefix):
    return [info.name.removeprefix(prefix) for info in page.locks]


@pytest.fixture
def first(actor):
    """Whether a thread or a task takes the locks makes no difference here."""
    return actor("thread")


@pytest.fixture
def taken(first, name):
    """Locks with a common beginning, by what follows it."""
    return {rest: first.take(f"{name}:{rest}") for rest in NAMES}


@pytest.fixture
def pages(backend, name):
    """``pages(**query)``: all pages of a query from the first, or the last, on."""

    def walk(*, backwards=False, **query):
        wanted = LockQuery(search=name, backwards=backwards, **query)
        found = [backend.page(wanted)]
        while found[-1].more:
            edge = found[-1].locks[0 if backwards else -1]
            found.append(backend.page(replace(wanted, start=cursor_of(edge, wanted.order))))
        return found

    return walk


def test_a_page_has_everything_that_is_known_of_a_lock(taken, backend, name):
    page = backend.page(LockQuery(search=f"{name}:a"))
    (info,) = page.locks
    assert info.token == taken["a"].token
    assert (info.owner.host, info.owner.pid) == (socket.gethostname(), os.getpid())
    seen = backend.inspect(f"{name}:a")
    assert (info.since, info.description, info.state) == (seen.since, seen.description, seen.state)


def test_pages_are_sorted_by_name_and_complete(taken, pages, name):
    found = pages(size=4)
    listed = [each for page in found for each in names(page, f"{name}:")]
    assert listed == sorted(NAMES)
    assert [len(page.locks) for page in found] == [4, 4, 1]
    assert {page.found for page in found} == {len(NAMES)}


def test_pages_can_be_read_from_the_end(taken, pages, name):
    found = pages(size=4, backwards=True)
    assert [names(page, f"{name}:") for page in found] == [
        sorted(NAMES)[-4:],
        sorted(NAMES)[-8:-4],
        sorted(NAMES)[:1],
    ]


def test_pages_are_sorted_by_age(taken, pages, name):
    forth = pages(size=4, order=Order.AGE)
    back = pages(size=4, order=Order.AGE, backwards=True)[::-1]
    for found in (forth, back):
        locks = [info for page in found for info in page.locks]
        assert {info.name.removeprefix(f"{name}:") for info in locks} == set(NAMES)
        keys = [(info.since, info.name) for info in locks]
        assert keys == sorted(keys)


WAYS = [(order, backwards) for order in Order for backwards in (False, True)]


def test_the_place_itself_can_be_included(taken, backend, name):
    for order, backwards in WAYS:
        wanted = LockQuery(search=name, order=order, backwards=backwards)
        every = backend.page(wanted).locks
        start = cursor_of(every[3], order)
        beyond = every[:3] if backwards else every[4:]
        tokens = [info.token for info in backend.page(replace(wanted, start=start)).locks]
        assert tokens == [info.token for info in beyond]
        included = backend.page(replace(wanted, start=start, inclusive=True))
        assert every[3].token in [info.token for info in included.locks]
        assert len(included.locks) == len(beyond) + 1


SEARCHES = {
    "100%": ["100%"],
    "0%": ["100%"],
    "x_y": ["x_y"],
    "it's": ["it's"],
    "鍵": ["鍵"],
    "🔑": ["🔑 key"],
    "KEY": ["🔑 key"],
    "nothing like that": [],
}


def test_names_are_searched_for_their_parts_in_any_case(taken, backend, name):
    for search, found in SEARCHES.items():
        page = backend.page(LockQuery(search=search, size=1000))
        mine = [info for info in page.locks if info.name.startswith(name)]
        assert [info.name.removeprefix(f"{name}:") for info in mine] == found
    assert names(backend.page(LockQuery(search=f"{name}:b")), f"{name}:") == ["B", "b"]


def test_filters_go_together(taken, backend, name):
    here = socket.gethostname()
    assert backend.page(LockQuery(search=name, host=here)).found == len(NAMES)
    assert backend.page(LockQuery(search=name, host="elsewhere")).found == 0
    assert backend.page(LockQuery(search=name, held_for=3600)).found == 0
    eventually(lambda: backend.page(LockQuery(search=name, held_for=0.05)).found == len(NAMES))
    held = DisplayStatus.HELD
    assert backend.page(LockQuery(search=f"{name}:a", host=here, status=held)).found == 1
    expired = DisplayStatus.EXPIRED
    assert backend.page(LockQuery(search=name, status=expired)).found == 0


def test_leases_that_end_soon_and_have_ended_are_told_apart(first, backend, short, name):
    long = first.take(f"{name}:long", lease=600)
    first.take(f"{name}:soon", lease=90, renew=False)
    backend.try_acquire(Claim(f"{name}:gone", current_owner(), short(0.05)))
    eventually(lambda: backend.inspect(f"{name}:gone").state is not State.HELD)
    gone = ["gone"] if backend.capabilities.shows_expired else []
    counts = backend.page(LockQuery()).counts
    assert counts.held >= 2
    assert counts.expired >= len(gone)
    for status, rest in [("held", ["long", "soon"]), ("expired", gone)]:
        page = backend.page(LockQuery(search=name, status=DisplayStatus(status)))
        assert names(page, f"{name}:") == rest
        assert {status_of(info) for info in page.locks} <= {status}
    assert backend.page(LockQuery(search=name)).found == 2 + len(gone)
    long.release()
    assert backend.page(LockQuery(search=name)).found == 1 + len(gone)


@pytest.mark.parametrize(
    ("claimed", "status"),
    [
        ({"duration": 900, "renews": True}, "held"),
        ({"duration": 6, "renews": True}, "held"),
        ({"duration": 3600, "renews": False}, "held"),
    ],
)
def test_a_lease_that_has_just_begun_does_not_end_soon(backend, name, claimed, status):
    """However long it is beside a usual one."""
    claim = Claim(name, current_owner(), **claimed)
    lease = backend.try_acquire(claim)
    try:
        page = backend.page(LockQuery(search=name, status=DisplayStatus.EXPIRING))
        assert page.found == 0
        assert page.counts.expiring == 0
        assert [status_of(info) for info in backend.list(name)] == [status]
    finally:
        backend.release(lease)


@pytest.mark.every_day_on(*BRISK)
def test_a_lock_that_was_left_and_stays_taken_never_ends_soon(first, backend, name):
    lock = first.take(name, at_least=0.4)
    lock.release()
    wanted = LockQuery(search=name)
    while (page := backend.page(wanted)).found:
        assert page.counts.expiring == 0
        assert {status_of(info) for info in page.locks} <= {DisplayStatus.HELD}


def test_all_locks_are_counted_whatever_is_asked_for(taken, backend):
    page = backend.page(LockQuery(search="nothing like that"))
    assert page.found == 0
    assert page.counts.held >= len(NAMES)
    assert page.hosts[socket.gethostname()] >= len(NAMES)


def test_a_suspended_lock_is_nothing_that_a_backend_knows(taken, backend, name):
    wanted = LockQuery(search=name, status=DisplayStatus.SUSPENDED)
    assert backend.page(wanted).found == 0


def test_every_backend_answers_as_if_it_had_read_all(taken, backend, name):
    """The default of the contract is the measure for those that choose by themselves."""
    for order, backwards in WAYS:
        start = cursor_of(backend.inspect(f"{name}:b"), order)
        common = LockQuery(search=name, order=order, backwards=backwards, size=3)
        for wanted in (common, replace(common, start=start), replace(common, start=Cursor())):
            page = backend.page(wanted)
            measure = page_of(backend.list(), wanted)
            assert [info.name for info in page.locks] == [info.name for info in measure.locks]
            assert (page.more, page.found) == (measure.more, measure.found)


def test_a_lock_is_found_by_its_owner_its_description_and_its_token(first, backend, name):
    """Each in capital or small letters; a process by host:process, a task by its description."""
    lock = first.take(f"{name}:x", description=f"Celery task shop.Restock[{name}]")
    first.take(f"{name}:y")
    owner = backend.inspect(f"{name}:x").owner
    for search in (f"shop.restock[{name}]", str(lock.token)):
        assert names(backend.page(LockQuery(search=search)), f"{name}:") == ["x"], search
    for search in (f"{owner.host}:{owner.pid}:", str(owner).upper(), owner.thread):
        found = names(backend.page(LockQuery(search=search, size=1000)), f"{name}:")
        assert {"x", "y"} <= set(found), search
    assert backend.page(LockQuery(search=f"{owner.pid}:{owner.thread}")).found == 0
    assert backend.page(LockQuery(search="9" * 40)).found == 0


def test_a_lock_is_found_by_the_name_of_its_owner(first, backend, name):
    if not backend.capabilities.named_owners:
        with pytest.raises(NotSupported):
            first.take(f"{name}:x", owner=f"order {name}")
        return
    first.take(f"{name}:x", owner=f"order {name}")
    assert names(backend.page(LockQuery(search=f"ORDER {name}")), f"{name}:") == ["x"]
