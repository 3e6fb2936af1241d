"""``with`` and ``async with``: the body runs only under the lock, and its errors are not hidden."""

import asyncio
import contextlib
import inspect

import pytest

from distlock import Lock, LockBusy, LockLost, LockTimeout
from tests.contract.actors import PATIENCE
from tests.contract.watch import eventually, steadily


@pytest.fixture
def run(first):
    """Run a body under a lock: in a thread with ``with``, in a task with ``async with``."""

    def under(lock, body):
        with lock as entered:
            return body(entered)

    async def aunder(lock, body):
        async with lock as entered:
            result = body(entered)
            return await result if inspect.isawaitable(result) else result

    chosen = aunder if hasattr(first, "task") else under
    return lambda lock, body: first.call(chosen, lock, body).result(PATIENCE)


@pytest.fixture
def lock(using, name):
    return Lock(name, using=using)


@pytest.fixture
def broken(third):
    """Break a lock from outside while its body runs."""
    return lambda lock: third.lock(lock.name).force_release(lock.token)


def test_the_body_gets_the_lock(run, lock):
    assert run(lock, lambda entered: entered is lock)


def test_the_body_runs_under_the_lock(run, lock, third, name):
    assert run(lock, lambda entered: (entered.held, third.tries(name))) == (True, False)


def test_the_lock_is_free_after_the_body(run, lock, third, name):
    run(lock, lambda entered: None)
    assert third.tries(name)


def test_the_lock_is_free_after_an_exception_of_the_body(run, lock, third, name):
    with pytest.raises(ZeroDivisionError):
        run(lock, lambda entered: 1 / 0)
    assert third.tries(name)


@pytest.mark.parametrize("stop", [KeyboardInterrupt, SystemExit, GeneratorExit])
def test_the_lock_is_free_after_the_body_was_ended_from_outside(run, lock, third, name, stop):
    def end(entered):
        raise stop

    with contextlib.suppress(BaseException):
        run(lock, end)
    assert third.tries(name)


def test_the_body_does_not_run_without_the_lock(run, using, third, name):
    third.take(name)
    ran = []
    with pytest.raises(LockTimeout) as caught:
        run(Lock(name, using=using, timeout=0.05), ran.append)
    assert not ran
    assert repr(name) in str(caught.value)


def test_the_body_does_not_run_when_a_single_try_fails(run, using, third, name):
    third.take(name)
    ran = []
    with pytest.raises(LockBusy):
        run(Lock(name, using=using, on_busy="raise"), ran.append)
    assert not ran


def test_leaving_a_lost_lock_raises_lock_lost(run, broken, lock):
    with pytest.raises(LockLost):
        run(lock, broken)


def test_leaving_a_lock_that_ran_out_raises_lock_lost(run, using, short, name):
    def attempt(lease):
        lock = Lock(f"{name}:{lease}", using=using, lease=lease, renew=False)
        with pytest.raises(LockLost):
            run(lock, lambda entered: eventually(lambda: not entered.held))

    steadily(attempt, *short.each(0.2, 2, 6))


def test_an_exception_of_the_body_is_not_hidden_by_the_loss(run, broken, lock):
    def body(entered):
        broken(entered)
        raise ZeroDivisionError("of the body")

    with pytest.raises(ZeroDivisionError, match="of the body"):
        run(lock, body)


def test_a_lost_lock_that_was_left_can_be_entered_again(run, broken, lock):
    with pytest.raises(LockLost):
        run(lock, broken)
    assert run(lock, lambda entered: entered.held)


def test_the_body_may_enter_the_same_lock(using, first, third, name):
    lock = Lock(name, using=using)

    def twice():
        with lock, lock, Lock(name, using=using):
            return third.tries(name)

    async def atwice():
        async with lock, lock, Lock(name, using=using):
            return third.tries(name)

    assert first.call(atwice if hasattr(first, "task") else twice).result(PATIENCE) is False
    assert third.tries(name)


def test_the_body_may_release_by_itself_and_is_told(run, lock):
    """The exit then has nothing to release, as with threading.RLock."""
    from distlock import LockNotHeld

    def release(entered):
        return entered.arelease() if asyncio._get_running_loop() else entered.release()

    with pytest.raises(LockNotHeld):
        run(lock, release)


def test_one_lock_object_can_be_used_again_and_again(run, lock):
    tokens = [run(lock, lambda entered: entered.token) for _ in range(5)]
    assert tokens == sorted(set(tokens))


# ActiveBlocks that end elsewhere than they began


def test_a_generator_that_is_closed_in_another_thread_leaves_the_lock(actor, third, using, name):
    lock = Lock(name, using=using)

    def rows():
        with lock:
            yield lock.token
            yield lock.token

    abandoned = rows()
    token = actor("thread").call(next, abandoned).result(PATIENCE)
    assert token
    assert not third.tries(name)
    actor("thread").call(abandoned.close).result(PATIENCE)
    assert third.lock(name).acquire(timeout=PATIENCE)


def test_a_generator_that_goes_on_in_another_thread_leaves_the_lock_at_its_end(
    actor, third, using, name
):
    lock = Lock(name, using=using)

    def rows():
        with lock, lock:
            yield 1

    going_on = rows()
    actor("thread").call(next, going_on).result(PATIENCE)
    assert actor("thread").call(list, going_on).result(PATIENCE) == []
    assert third.tries(name)


def test_a_generator_that_is_closed_by_the_next_holder_leaves_its_own_lock(
    actor, third, using, name
):
    """Its own is lost by then; the closing thread's is another one."""
    lock = Lock(name, using=using)

    def rows():
        with lock:
            yield lock.token

    abandoned = rows()
    first, second = actor("thread"), actor("thread")
    token = first.call(next, abandoned).result(PATIENCE)
    third.lock(name).force_release(token)

    def enter_and_close():
        with lock:
            abandoned.close()
            lock.verify()

    second.call(enter_and_close).result(PATIENCE)
    assert third.lock(name).acquire(timeout=PATIENCE)


def test_a_coroutine_that_is_closed_from_outside_leaves_the_lock(third, using, name):
    """As the garbage collector does with one that nobody will ever go on with."""
    inside = []

    async def work():
        async with Lock(name, using=using):
            inside.append(True)
            await asyncio.Event().wait()

    async def main():
        while not inside:
            await asyncio.sleep(0.005)

    loop = asyncio.new_event_loop()
    abandoned = work()
    task = loop.create_task(abandoned)
    loop.run_until_complete(main())
    loop.close()
    task._log_destroy_pending = False
    abandoned.close()
    assert third.lock(name).acquire(timeout=PATIENCE)
