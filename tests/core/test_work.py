"""Each piece of work of a thread is an owner: a request, a job of an executor, what is marked."""

import gc
import logging
import re

import pytest
from asgiref.sync import async_to_sync, sync_to_async
from django.db import transaction
from django.test import Client

from distlock import Lock, LockNotHeld
from distlock.activity import activity
from distlock.concurrency.clock import clock
from distlock.recipes import RWLock, Semaphore
from distlock.types.owners import current_owner
from tests.contract.actors import PATIENCE
from tests.contract.watch import eventually
from tests.core.interrupting import interrupted, moments_of
from tests.core.pieces_of_work import (
    executor,
    marked,
    requests,
    take,
    thread_pool,
    to_async,
    tries,
)

pytestmark = pytest.mark.usefixtures("often_renewed")

LEFT = "ended without releasing lock 'stock'"


@pytest.fixture
def errors(caplog):
    """The errors that were logged so far."""
    caplog.set_level(logging.ERROR, "distlock")

    def get():
        return [record.getMessage() for record in caplog.records if record.levelname == "ERROR"]

    return get


def take_for_short():
    take(lease=0.3)


@pytest.fixture(params=[executor, thread_pool, marked, requests, to_async])
def in_work(request):
    """``in_work(call)``: make a call as a piece of work, all of them on one thread."""
    with request.param() as run:
        yield run


def test_the_next_piece_of_work_does_not_enter_what_one_has_left_behind(in_work):
    in_work(take)
    assert in_work(tries) is False


def test_what_was_left_behind_is_free_when_its_lease_ends(in_work):
    in_work(take_for_short)
    eventually(lambda: in_work(tries))


def test_it_is_logged_once_with_the_line_where_it_was_acquired(in_work, errors):
    in_work(take_for_short)
    eventually(lambda: in_work(tries))
    (line,) = eventually(lambda: [line for line in errors() if LEFT in line])
    assert re.search(r"acquired at core/pieces_of_work\.py:\d+", line)


def test_a_waiter_gets_what_was_left_behind_as_anyone_would(in_work):
    in_work(take_for_short)
    assert in_work(lambda: Lock("stock").acquire(timeout=PATIENCE))


def test_who_releases_in_another_piece_of_work_is_told(in_work):
    in_work(take)
    with pytest.raises(LockNotHeld, match="each request, job of an executor"):
        in_work(Lock("stock").release)


def test_what_was_taken_and_left_is_no_error(in_work, errors):
    for _ in range(3):
        assert in_work(tries)
    gc.collect()
    assert errors() == []


def test_a_hold_is_renewed_while_its_piece_of_work_goes_on(in_work):
    def work():
        with Lock("stock", lease=0.3) as lock:
            ends = clock() + 0.7
            eventually(lambda: clock() > ends)
            return lock.held

    assert in_work(work)


def test_a_piece_of_work_enters_again_by_any_lock_object(in_work):
    def work():
        with Lock("stock"), Lock("stock") as lock:
            return lock.held

    assert in_work(work)


def test_a_named_owner_outlives_its_piece_of_work(in_work, errors):
    in_work(lambda: Lock("stock", owner="order-1").acquire())
    in_work(Lock("stock", owner="order-1").release)
    # Between the two it is not renewed, which is logged if a renewal is due just then.
    assert [line for line in errors() if "it is no longer renewed" not in line] == []


def test_a_hold_without_renewal_outlives_its_piece_of_work(in_work, errors):
    in_work(lambda: Lock("stock", renew=False).acquire())
    assert not tries()
    assert errors() == []


@pytest.mark.parametrize("make", ["semaphore", "reader", "writer"])
def test_seats_belong_to_a_piece_of_work_too(in_work, make):
    def lock():
        if make == "semaphore":
            return Semaphore("seats", 1)
        return getattr(RWLock("seats"), make)()

    in_work(lambda: lock().acquire())
    with pytest.raises(LockNotHeld):
        in_work(lambda: lock().release())


# Nested pieces


def test_a_nested_piece_of_work_enters_what_the_one_around_it_holds():
    with Lock("stock") as outer, activity("inner"):
        with Lock("stock") as inner:
            assert inner.token == outer.token
        assert inner.held
    assert not outer.held


def test_what_a_nested_piece_did_not_release_does_not_keep_the_outer_hold(errors):
    with activity("outer"):
        with Lock("stock") as lock:
            with activity("inner"):
                take()
            assert lock.held
            assert LEFT in errors()[0]
            assert "still held" in errors()[0]
        assert not lock.held
        assert tries()


def test_a_nested_piece_may_release_what_the_one_around_it_has_acquired():
    with activity("outer"):
        take()
        with activity("inner"):
            Lock("stock").release()
        assert tries()


def test_two_pieces_inside_one_exclude_each_other():
    async def inside(number):
        return await sync_to_async(enter if number else take)()

    def enter():
        return Lock("stock").acquire(blocking=False)

    async def both():
        return [await inside(0), await inside(1)]

    assert async_to_sync(both)() == [None, False]


def test_a_request_of_the_test_client_ends_only_what_was_begun_inside(settings, errors):
    settings.ROOT_URLCONF = "tests.core.urls"
    with Lock("stock") as lock:
        Client().get("/orders/7/")
        lock.check()
        assert LEFT not in "".join(errors())


def test_activities_of_one_thread_may_end_in_any_order():
    first, second = activity("first"), activity("second")
    first.__enter__()
    second.__enter__()
    take()
    first.__exit__(None, None, None)
    assert Lock("stock").held
    second.__exit__(None, None, None)
    assert not Lock("stock").held
    assert not tries()


def test_an_interrupt_at_any_moment_of_an_activity_leaves_none_behind():
    before, last = current_owner(), moments_of(mark)
    for moment in range(1, last + 1):
        interrupted(mark, moment)
        assert current_owner() == before
    assert last > 10


def mark():
    with activity("a turn of a loop"):
        pass


# Jobs of tasks


def commit_inside(lock):
    with lock, transaction.atomic():
        with lock:
            pass
        return lock.held


def commit_between(lock):
    with lock:
        with transaction.atomic(), lock:
            pass
        return lock.held


def enter_again_before_the_commit(lock):
    with transaction.atomic():
        for _ in range(2):
            with lock:
                pass
        return lock.held


@pytest.mark.parametrize(
    "work",
    [commit_inside, commit_between, enter_again_before_the_commit],
    ids=lambda one: one.__name__,
)
async def test_a_job_holds_what_it_entered_until_it_has_left_it_and_committed(work):
    lock = Lock("stock", release="commit")
    async with lock:
        assert await sync_to_async(work)(lock)
        assert lock.held
    assert await Lock("stock").aacquire(blocking=False)
