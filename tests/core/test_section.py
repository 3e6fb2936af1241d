"""Running a body under a lock: it is left in any case, and no error of leaving hides the body's."""

import asyncio
import collections
import dataclasses
import gc
import re
import sys
import threading
import time

import pytest

from distlock import Lock, LockBusy, LockLost, locks
from distlock.backends.local import LocalBackend
from distlock.exceptions import BodyEnded
from distlock.locking.run_under import busy_error, run_under
from distlock.recipes import MultiLock, Semaphore
from distlock.runtime import local_queue
from distlock.signals import lock_acquired, lock_released
from tests.children import write_line
from tests.contract.actors import PATIENCE
from tests.contract.watch import eventually
from tests.core.interrupting import cycle

pytestmark = pytest.mark.usefixtures("local")


@pytest.fixture
def lock():
    return Lock("stock")


def lose(lock):
    Lock(lock.name).force_release(lock.token)


def fail():
    raise ZeroDivisionError


def test_the_result_of_the_body_is_returned_and_the_lock_is_free(lock):
    assert run_under(lock, lock.acquire, lambda: lock.token, pytest.fail) > 0
    assert not lock.locked()


def test_an_error_of_the_body_leaves_the_lock(lock):
    with pytest.raises(ZeroDivisionError):
        run_under(lock, lock.acquire, fail, pytest.fail)
    assert not lock.locked()


def test_an_error_of_leaving_is_a_note_of_the_bodys_own(lock):
    def body():
        lose(lock)
        fail()

    with pytest.raises(ZeroDivisionError) as raised:
        run_under(lock, lock.acquire, body, pytest.fail)
    assert "leaving the lock failed" in raised.value.__notes__[0]
    assert lock.acquire(blocking=False)
    lock.release()


def test_an_error_of_leaving_after_the_body_is_for_the_caller(lock):
    errors = []
    assert run_under(lock, lock.acquire, lambda: lose(lock), errors.append) is None
    assert [type(error) for error in errors] == [LockLost]


class TimeIsOver(Exception):
    """As Celery's soft time limit, which is no LockError."""


@pytest.mark.parametrize("make", [lambda: Lock("stock"), lambda: MultiLock("stock", "shelf")])
@pytest.mark.parametrize("error", [TimeIsOver, BodyEnded])
def test_what_is_raised_while_the_lock_is_left_is_not_hidden(monkeypatch, make, error):
    """Celery's time limit, or the loss of another lock, ends the body that this one is in."""

    def strike(*_):
        raise error

    async def fail_in_task():
        async with make():
            fail()

    with monkeypatch.context() as patch:
        patch.setattr(LocalBackend, "release", strike)
        with pytest.raises(error), make():
            fail()
        with pytest.raises(error):
            asyncio.run(fail_in_task())
    eventually(lambda: not Lock("stock").locked())


def test_one_who_comes_again_waits_for_the_thread_that_leaves_for_it(monkeypatch):
    leaving, go_on = threading.Event(), threading.Event()
    release = LocalBackend.release

    def slowly(backend, lease, deadline=None):
        leaving.set()
        go_on.wait(PATIENCE)
        return release(backend, lease, deadline)

    def rows():
        with Lock("stock"):
            yield

    generator = rows()
    next(generator)
    with monkeypatch.context() as patch:
        patch.setattr(LocalBackend, "release", slowly)
        threading.Thread(target=generator.close).start()
        assert leaving.wait(PATIENCE)
        threading.Timer(0.2, go_on.set).start()
        with Lock("stock"):
            assert go_on.is_set()


def test_an_interrupt_after_the_lock_was_taken_leaves_it(lock):
    def acquire():
        lock.acquire()
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_under(lock, acquire, pytest.fail, pytest.fail)
    assert not lock.locked()


def test_what_was_entered_before_is_not_left(lock):
    def acquire():
        raise KeyboardInterrupt

    with lock:
        with pytest.raises(KeyboardInterrupt):
            run_under(lock, acquire, pytest.fail, pytest.fail)
        assert lock.held


def test_a_seat_beside_one_that_was_there_before_is_left():
    def acquire():
        mailer.acquire()
        raise KeyboardInterrupt

    mailer = Semaphore("mailer", 3)
    with mailer:
        with pytest.raises(KeyboardInterrupt):
            run_under(mailer, acquire, pytest.fail, pytest.fail)
        assert mailer.info().taken == 1


def test_of_a_semaphore_it_is_said_how_many_seats_are_taken():
    mailer = Semaphore("mailer", 2, description="news")
    with mailer:
        assert str(busy_error(mailer)) == "semaphore 'mailer' on 'default' had no free slot"
        with Semaphore("mailer", 2):
            message = str(busy_error(mailer))
    assert message.startswith("semaphore 'mailer' on 'default' has no free slot (2 of 2); held ")
    assert (
        "): news, acquired at core/test_section.py:" in message
    )  # of the one who has held it for longest


@pytest.mark.parametrize("event", [lock_acquired, lock_released])
@pytest.mark.parametrize("takes", ["thread", "task"])
def test_the_loss_of_a_lock_around_is_no_error_of_a_receiver(lock, event, takes):
    def receive(**told):
        raise BodyEnded

    async def use():
        async with lock:
            pass

    event.connect(receive)
    try:
        with pytest.raises(BodyEnded):
            cycle(lock) if takes == "thread" else asyncio.run(use())
    finally:
        event.disconnect(receive)
    eventually(lambda: not lock.locked())


@pytest.mark.parametrize("ask", [busy_error, Lock.info])
@pytest.mark.parametrize("step", ["inspect", "read"])
def test_the_loss_of_a_lock_around_ends_who_asks_for_the_holder(lock, monkeypatch, ask, step):
    def strike(*args):
        raise BodyEnded

    backend = locks["default"]
    can = dataclasses.replace(backend.capabilities, waiters=True)  # as servers can
    monkeypatch.setattr(LocalBackend, "capabilities", can)
    monkeypatch.setattr(backend if step == "inspect" else backend.store, step, strike)
    with pytest.raises(BodyEnded):
        ask(lock)


def test_the_holder_is_named_and_nothing_in_it_hides(lock):
    with Lock("stock", description="a\u2066b"):
        thread = threading.current_thread().name
        message = str(busy_error(lock))
    assert message.startswith("lock 'stock' on 'default' is held by ")
    assert re.search(rf", {thread}\) since \d+ s \(token ", message)
    assert r"): a\u2066b, acquired at core/test_section.py:" in message
    assert str(busy_error(lock)) == "lock 'stock' on 'default' was held by someone else"


class Collecting(collections.deque):
    """The garbage is collected while one is made."""

    def __init__(self, *args):
        gc.collect()
        super().__init__(*args)


LOCKS = {
    "lock": lambda: Lock("rows"),
    "named": lambda: Lock("rows", owner="me"),
    "seat": lambda: Semaphore("rows", 1),
    "several": lambda: MultiLock("rows", "columns"),
}


def collect_inside(what):
    """As a child: take a lock, meanwhile a generator that has another one becomes garbage."""

    def rows():
        with LOCKS[what]():
            yield

    generator = rows()
    next(generator)
    garbage = [generator]
    garbage.append(garbage)
    del generator, garbage
    local_queue.deque = Collecting
    with Lock("other"):
        local_queue.deque = collections.deque
    eventually(lambda: not LOCKS[what]().locked())
    write_line("free")


@pytest.mark.parametrize("what", LOCKS)
def test_a_body_may_be_collected_as_garbage_while_its_thread_takes_a_lock(child, what):
    assert child(collect_inside, what).line() == "free"


def test_blocks_take_it_by_the_acquire_of_a_subclass():
    class Door(Lock):
        def acquire(self, blocking=None, timeout=None):
            asked.append("acquire")
            return opens and super().acquire(blocking, timeout)

        async def aacquire(self, blocking=None, timeout=None):
            asked.append("aacquire")
            return opens and await super().aacquire(blocking, timeout)

    async def tasks():
        for taken in (Door("stock").attempt(), Door("stock")):
            async with taken as acquired:
                assert acquired if opens else acquired is False

    def threads():
        for taken in (Door("stock").attempt(), Door("stock")):
            with taken as acquired:
                assert acquired if opens else acquired is False

    asked, opens = [], True
    threads()
    asyncio.run(tasks())
    assert asked == ["acquire"] * 2 + ["aacquire"] * 2
    assert not Lock("stock").locked()
    opens = False
    for enter in (threads, lambda: asyncio.run(tasks())):
        with pytest.raises(LockBusy):
            enter()
    Door("stock", on_busy="skip")(pytest.fail)()
    assert not Lock("stock").locked()


def test_a_function_that_enters_and_leaves_by_turns_leaves_the_seat_of_its_own_thread():
    """The frame in which it leaves may have the id of one in which another thread entered."""

    def turn(enters):
        if enters:
            mailer.__enter__()
        else:
            mailer.__exit__(None, None, None)

    def use(number):
        for count in range(150):
            turn(True)
            time.sleep(0.0001 * ((number + count) % 3))
            held.append(mailer.held)
            turn(False)

    mailer, held = Semaphore("mailer", 6), []
    threads = [threading.Thread(target=use, args=(number,)) for number in range(6)]
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(PATIENCE)
    finally:
        sys.setswitchinterval(before)
    assert len(held) == 6 * 150
    assert all(held)
    assert mailer.info().taken == 0
