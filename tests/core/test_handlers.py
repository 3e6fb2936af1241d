"""A signal handler may use locks at any moment: it works, or it is refused at once.

What was interrupted goes on as if nothing had been.
"""

import asyncio
import itertools
import os
import signal
import threading
from contextlib import suppress

import pytest
from django.core.exceptions import SynchronousOnlyOperation

from distlock import Lock, LockLost, LockNotHeld, ReentrantCall, locks
from distlock.concurrency import fork
from distlock.recipes import MultiLock, Semaphore
from distlock.runtime.manager import manager
from distlock.signals import lock_acquired, lock_released
from tests.children import write_line
from tests.contract.actors import PATIENCE
from tests.contract.watch import Once, eventually
from tests.core.interrupting import at_moment, cycle, every_moment, is_free


class Handler:
    """Calls a function as a signal handler does; notes what came of it."""

    def __init__(self, act):
        self.act = act
        self.worked = self.refused = 0

    def __call__(self, frame):
        """Call ``act``; an error of it is for what was interrupted."""
        try:
            self.act()
            self.worked += 1
        except ReentrantCall:
            self.refused += 1
            raise

    def catching(self, frame):
        with suppress(ReentrantCall):
            self(frame)


@pytest.mark.parametrize("name", ["same", "other"])
def test_what_a_handler_has_interrupted_goes_on_as_if_nothing_had_been(name):
    handler = Handler(lambda: cycle(Lock(name, timeout=PATIENCE)))
    lock = Lock("same", timeout=PATIENCE)
    tokens = [*every_moment(lambda: cycle(lock), handler.catching)]
    assert all(isinstance(token, int) for token in tokens)
    assert tokens == sorted(set(tokens))
    assert handler.worked and handler.refused
    assert is_free(lock) and is_free(Lock(name))


def test_the_error_of_a_handler_arrives_as_itself_and_nothing_is_left():
    handler = Handler(lambda: cycle(Lock("other", timeout=PATIENCE)))
    lock = Lock("same", timeout=PATIENCE)
    ends = []
    for end in every_moment(lambda: cycle(lock), handler):
        ends.append(end)
        while lock.held:  # as after Ctrl-C between the acquire and the body
            lock.release()
    errors = [end for end in ends if not isinstance(end, int)]
    assert {type(error) for error in errors} == {ReentrantCall}
    assert not any(getattr(error, "__notes__", ()) for error in errors)
    assert len(errors) == handler.refused
    assert is_free(lock) and is_free(Lock("other"))


def test_it_is_no_note_of_the_error_of_the_body():
    def failing():
        with lock:
            raise ZeroDivisionError

    handler = Handler(lambda: cycle(Lock("other", timeout=PATIENCE)))
    lock = Lock("same", timeout=PATIENCE)
    for end in every_moment(failing, handler):
        assert type(end) in (ZeroDivisionError, ReentrantCall)
        assert not getattr(end, "__notes__", ())
        while lock.held:
            lock.release()
    assert is_free(lock)


@pytest.mark.parametrize("releases", [True, False])
def test_a_handler_that_ends_the_program_leaves_no_lock(releases):
    """As programs in containers do it on SIGTERM."""

    def stop():
        if releases and lock.held:
            lock.release()
        raise SystemExit

    lock = Lock("same", timeout=PATIENCE)
    for end in every_moment(lambda: cycle(lock), Handler(stop)):
        assert type(end) in (SystemExit, ReentrantCall)
        while lock.held:
            lock.release()
    assert is_free(lock)


def test_in_a_body_a_handler_can_do_all():
    def handle(number, frame):
        done.append(cycle(Lock("other")))
        done.append(cycle(lock))
        done.append(lock.info().token)
        with Semaphore("seats", 1), MultiLock("one", "two"):
            done.append("several")
        lock.release()

    done, lock = [], Lock("stock")
    before = signal.signal(signal.SIGALRM, handle)
    try:
        with pytest.raises(LockNotHeld), lock:
            token = lock.token
            signal.raise_signal(signal.SIGALRM)
    finally:
        signal.signal(signal.SIGALRM, before)
    assert done[1:] == [token, token, "several"]


OPERATIONS = {
    "acquire": lambda: Lock("stock", on_busy="raise").acquire(),
    "info": lambda: Lock("stock").info(),
    "locked": lambda: Lock("stock").locked(),
    "force_release": lambda: Lock("stock").force_release(1),
    "atomic": lambda: Lock("stock").atomic().__enter__(),
    "semaphore": lambda: Semaphore("seats", 1).acquire(),
    "resize": lambda: Semaphore("seats").resize(2),
    "multilock": lambda: MultiLock("stock", "seats").acquire(),
    "async": lambda: asyncio.run(Lock("stock").aacquire()),
    "close": lambda: locks.close_all(),
}


@pytest.mark.parametrize("operation", OPERATIONS)
def test_inside_of_another_operation_it_is_refused_before_it_begins(backend, inside, operation):
    def act():
        with pytest.raises(ReentrantCall, match="raise SystemExit"):
            OPERATIONS[operation]()

    inside(act)
    assert locks["default"] is backend
    assert not Lock("stock").locked()
    assert not Semaphore("seats", 2).info().taken


def test_what_is_only_looked_up_in_this_process_works_always(inside):
    def act():
        seen.append((lock.held, lock.token, lock.remaining > 0, lock.check()))

    seen = []
    with Lock("stock") as lock:
        inside(act)
        assert seen == [(True, lock.token, True, None)]


def test_the_loss_of_another_threads_lock_is_told_meanwhile(in_thread):
    def hold_and_lose():
        lost = Once()
        lock = Lock("held", on_lost=lost)
        lock.acquire()
        lock.force_release(lock.token)
        lost.wait()
        with pytest.raises(LockLost):
            lock.release()
        return True

    handler = Handler(lambda: cycle(Lock("other")))
    for _ in every_moment(lambda: cycle(Lock("same")), handler.catching, step=10):
        assert in_thread(hold_and_lose)


# What is no interrupt


def test_receivers_of_the_signals_may_use_locks():
    def receive(sender, lease, **kwargs):
        if lease.name == "stock":
            done.append(cycle(Lock("told")))

    done = []
    for event in (lock_acquired, lock_released):
        event.connect(receive)
    try:
        cycle(Lock("stock"))
    finally:
        for event in (lock_acquired, lock_released):
            event.disconnect(receive)
    assert len(done) == 2


def test_receivers_in_tasks_may_use_locks():
    async def receive(sender, lease, **kwargs):
        if lease.name == "stock":
            async with Lock("told") as told:
                done.append(told.token)

    async def use():
        async with Lock("stock"):
            pass

    done = []
    lock_acquired.connect(receive)
    try:
        asyncio.run(use())
    finally:
        lock_acquired.disconnect(receive)
    assert len(done) == 1


def test_on_lost_may_use_locks():
    def on_lost(lease):
        told(cycle(Lock("told")))

    told = Once()
    lock = Lock("stock", on_lost=on_lost)
    lock.acquire()
    lock.force_release(lock.token)
    assert told.wait()
    with pytest.raises(LockLost):
        lock.release()


def test_a_handler_of_the_log_may_use_locks(caplog):
    class Logging:
        """Stands for one that writes to a file under a lock."""

        def filter(self, record):
            if not done:
                done.append(None)
                done.append(cycle(Lock("log")))
            return True

    done = []
    caplog.set_level("DEBUG", "distlock")
    caplog.handler.addFilter(logged := Logging())
    try:
        cycle(Lock("stock"))
    finally:
        caplog.handler.removeFilter(logged)
    assert done[1]


def take_at_exit():
    """As a child: take a lock when the process ends."""

    def take():
        with Lock("stock"):
            write_line("taken")

    fork.at_exit(take)


def test_what_is_called_at_the_end_of_the_process_may_use_locks(child):
    assert child(take_at_exit).finish() == ["taken"]


# Handlers beside an event loop


def test_a_handler_of_the_event_loop_is_an_ordinary_callback():
    async def use():
        def handle():
            tasks.append(asyncio.ensure_future(take()))

        async def take():
            async with Lock("other"):
                done.set()

        done, tasks = asyncio.Event(), []
        asyncio.get_running_loop().add_signal_handler(signal.SIGALRM, handle)
        async with Lock("stock"):
            os.kill(os.getpid(), signal.SIGALRM)
            await asyncio.wait_for(done.wait(), PATIENCE)

    asyncio.run(use())


def test_a_handler_that_interrupts_an_event_loop_is_refused_by_django():
    async def use():
        async with Lock("stock") as lock:
            return lock.token

    def act(frame):
        if asyncio._get_running_loop() is None:
            cycle(Lock("other"))  # the loop has not begun yet, or has ended
        else:
            with pytest.raises(SynchronousOnlyOperation):
                Lock("other").acquire()
            refused.append(True)

    refused = []
    ends = [*every_moment(lambda: asyncio.run(use()), act, step=7)]
    assert all(isinstance(end, int) for end in ends)
    assert refused
    assert is_free(Lock("stock"))


# Mutexes of the standard library and of Django


def test_a_lock_can_be_taken_where_its_thread_has_the_mutex_of_threading():
    """Threads that distlock starts need that."""

    def act(frame):
        done.append(manager().release_soon(held._key, held._current_owner, held))

    held, done = Lock("stock"), []
    for moment in itertools.count(1):
        held.acquire()
        _, acted = at_moment(threading.enumerate, moment, act, code=(threading.__file__,))
        if not acted:
            break
        eventually(lambda: not held.locked())
    held.release()
    assert len(done) == moment - 1 > 2


def test_a_lock_can_be_taken_where_a_receiver_is_being_connected():
    def receive(**kwargs):
        pass

    import django.dispatch.dispatcher as dispatcher

    done = []
    for moment in itertools.count(1):
        _, acted = at_moment(
            lambda: (lock_acquired.connect(receive), lock_acquired.disconnect(receive)),
            moment,
            lambda frame: done.append(cycle(Lock("stock"))),
            code=(dispatcher.__file__,),
        )
        if not acted:
            break
    assert len(done) == moment - 1 > 4
