"""A hold is renewed for as long as one of those who entered it lives."""

import asyncio
import gc
import re
import threading
import weakref

import pytest

from distlock import Lock, LockNotHeld, LockTimeout, State, locks
from distlock.concurrency.clock import clock
from distlock.types.lease import Kind, LockKey
from distlock.types.owners import current_owner
from tests.contract.watch import eventually


@pytest.fixture(autouse=True)
def backend(settings):
    """Leases that outlast a pause, and are renewed often all the same."""
    entry = {"BACKEND": "distlock.backends.local.LocalBackend", "LEASE": 5, "RENEW": 0.1}
    settings.DISTLOCK = {"default": entry}
    yield locks["default"]
    locks.close_all()


def enter():
    Lock("order", owner="cart").acquire()


def ends(lock):
    """Return when the lease ends by the local clock, to within the time that this takes."""
    return clock() + lock.remaining


def renewed_twice(lock):
    for _ in range(2):
        end = ends(lock)
        eventually(lambda end=end: ends(lock) > end + 0.05)


def test_a_named_hold_outlives_the_thread_that_took_it_while_another_is_inside(in_thread):
    inside, end = threading.Event(), threading.Event()

    def take_first():
        enter()
        inside.set()
        end.wait(30)

    first = threading.Thread(target=take_first)
    first.start()
    inside.wait(30)
    lock = Lock("order", owner="cart")
    lock.acquire()
    end.set()
    first.join()
    renewed_twice(lock)
    lock.release()
    lock.release()


def test_a_named_hold_whose_thread_has_ended_is_renewed_again_when_it_is_entered(in_thread, caplog):
    in_thread(enter)
    eventually(lambda: "ended without releasing lock " in caplog.text)
    lock = Lock("order", owner="cart")
    lock.acquire()
    renewed_twice(lock)
    lock.release()
    lock.release()


def test_a_hold_entered_often_keeps_no_account_of_it():
    from distlock.runtime.manager import manager

    with Lock("stock") as lock:
        for _ in range(50):
            lock.acquire()
        assert (
            len(
                manager()
                .holds.hold(LockKey("default", Kind.LOCK, "stock"), current_owner())
                .entries
            )
            == 1
        )
        for _ in range(50):
            lock.release()


@pytest.mark.slow
def test_holds_that_are_left_elsewhere_are_forgotten_here():
    locks = []

    def take():
        lock = Lock(f"order:{len(locks)}", owner="cart", lease=0.05, renew=False)
        assert lock.acquire()
        locks.append(weakref.ref(lock))

    for _ in range(300):
        take()

    def few():
        for _ in range(100):  # they are looked through the less often the more there are
            take()
        gc.collect()
        return sum(lock() is not None for lock in locks[:300]) < 30

    eventually(few)


def test_the_task_of_a_closed_loop_is_over():
    loop = asyncio.new_event_loop()

    async def hold():
        await Lock("stock", lease=0.6).aacquire()
        held.set()
        await asyncio.Event().wait()

    held = asyncio.Event()
    task = loop.create_task(hold())
    loop.run_until_complete(held.wait())
    loop.close()
    eventually(lambda: Lock("stock").info().state is not State.HELD)
    assert not task.done()
    task._log_destroy_pending = False
    task.get_coro().close()


def test_who_is_refused_is_told_which_thread_of_this_process_holds_the_lock(in_thread):
    def refused(**options):
        with pytest.raises(LockTimeout) as refusal:
            Lock("stock", **options).__enter__()
        return str(refusal.value)

    with Lock("stock", description="counting") as lock:
        message = in_thread(refused, timeout=0.01)
        me, token = current_owner(), lock.token
    assert message.startswith(f"lock 'stock' on 'default' is held by {me.host} (pid {me.pid}, ")
    assert re.search(
        rf" since \d+ s \(token {token}\): counting, acquired at \S+:\d+; waited for 0\.01 s$",
        message,
    )


def test_who_leaves_what_another_thread_has_taken_is_told_who_has_it(in_thread):
    taken = []

    def take():
        lock = Lock("order")
        lock.acquire()
        taken.append(lock.info())
        return taken

    in_thread(take)
    with pytest.raises(LockNotHeld, match="is not held by .*, but by .*: each thread and"):
        Lock("order").release()
    assert Lock("order").force_release(taken[0].token)
    with pytest.raises(LockNotHeld, match=r"is not held by \S+$"):
        Lock("another").release()
