"""What becomes of who finds a lock busy: LockBusy, a call that is skipped, a block that is told."""

import asyncio

import pytest

from distlock import Lock, LockBusy, LockLost, LockTimeout
from tests.contract.actors import PATIENCE, answered

#: backends whose refusal of a single try does not say who has the lock
SILENT = {"zookeeper"}


@pytest.fixture
def enter(first):
    """Enter a ``with`` block as the first actor, and leave it."""

    def under(block, body):
        with block as entered:
            return body(entered)

    async def aunder(block, body):
        async with block as entered:
            return body(entered)

    chosen = aunder if hasattr(first, "task") else under
    return lambda block, body=lambda entered: entered: first.call(chosen, block, body).result(
        PATIENCE
    )


def busy(enter, lock):
    with pytest.raises(LockBusy) as caught:
        answered(lambda: enter(lock))
    return caught.value


def test_who_tries_once_is_told_that_it_is_busy(enter, third, using, name):
    third.take(name)
    for options in ({"on_busy": "raise"}, {"timeout": 0}):
        error = busy(enter, Lock(name, using=using, **options))
        assert type(error) is LockBusy
        assert "waited" not in str(error)


def test_who_waited_in_vain_is_told_for_how_long(enter, third, using, name):
    third.take(name)
    for on_busy in ("wait", "raise"):
        error = busy(enter, Lock(name, using=using, on_busy=on_busy, timeout=0.05))
        assert type(error) is LockTimeout
        assert "waited for 0.05 s" in str(error)


@pytest.mark.shared
def test_who_has_it_is_told_without_another_question(enter, actor, using, kind, name):
    held = actor("process").take(name, description="the report")
    error = busy(enter, Lock(name, using=using, on_busy="raise"))
    if kind in SILENT:
        assert error.holder is None
        return
    owner = held.info().owner
    assert (error.holder.owner, error.holder.owner.pid) == (owner, owner.pid)
    assert (error.holder.token, error.holder.description) == (held.token, "the report")
    assert error.holder.since is not None
    assert f"(pid {owner.pid}, {owner.thread})" in str(error)


@pytest.mark.shared
def test_who_waited_is_told_who_has_it(enter, actor, using, name):
    held = actor("process").take(name, description="the report")
    for timeout in (0.3, 3, 30):  # on a busy machine it may be over before it has looked
        error = busy(enter, Lock(name, using=using, timeout=timeout))
        if error.holder is not None:
            break
    assert error.holder is not None
    assert error.holder.owner == held.info().owner
    assert (error.holder.token, error.holder.description) == (held.token, "the report")


def test_who_waited_is_told_of_a_thread_of_its_own_process(enter, actor, using, name):
    held = actor("thread").take(name, description="the report")
    error = busy(enter, Lock(name, using=using, timeout=0.05))
    assert error.holder.owner == held.info().owner
    assert error.holder.held_for >= 0
    assert error.holder.since is not None


def test_a_with_block_cannot_be_skipped(enter, third, using, name):
    lock = Lock(name, using=using, on_busy="skip")
    with pytest.raises(TypeError, match=r"on_busy='skip' .*attempt\(\)"):
        enter(lock)
    assert third.tries(name)


def test_the_call_of_a_busy_lock_is_skipped(actor, third, using, name):
    ran = []

    @Lock(name, using=using, on_busy="skip", busy_result="later")
    def work(number):
        ran.append(number)
        return "done"

    held = third.take(name)
    assert work(1) == "later"
    held.release()
    assert actor("thread").call(work, 2).result(PATIENCE) == "done"
    assert ran == [2]
    assert third.tries(name)


def test_the_call_of_a_coroutine_function_is_skipped(actor, third, using, name):
    @Lock(name, using=using, on_busy="skip")
    async def work():
        return "done"

    held = third.take(name)
    task = actor("task")
    assert task.call(work).result(PATIENCE) is None
    held.release()
    assert task.call(work).result(PATIENCE) == "done"


def test_a_skipped_call_may_wait_before(third, using, name):
    third.take(name)

    @Lock(name, using=using, on_busy="skip", timeout=0.05)
    def work():
        raise AssertionError("it ran")

    assert answered(work) is None


def test_an_error_of_a_call_that_was_not_skipped_passes(third, using, name):
    @Lock(name, using=using, on_busy="skip")
    def work():
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        work()
    assert third.tries(name)


# attempt()


def test_an_attempt_runs_its_block_in_either_case(enter, third, using, name):
    lock = Lock(name, using=using)
    held = third.take(name)
    assert enter(lock.attempt(), lambda acquired: (acquired, lock.held)) == (False, False)
    held.release()
    told = enter(lock.attempt(), lambda acquired: (acquired, lock.held, third.tries(name)))
    assert told == (True, True, False)
    assert third.tries(name)


def test_an_attempt_waits_if_it_was_told_for_how_long(enter, first, third, using, name):
    lock = Lock(name, using=using, timeout=PATIENCE)
    held = third.take(name)
    entered = enter_later(first, lock)
    held.release()
    assert entered.result(PATIENCE) is True


def enter_later(actor, lock):
    def block():
        with lock.attempt() as acquired:
            return acquired

    async def ablock():
        async with lock.attempt() as acquired:
            return acquired

    return actor.call(ablock if hasattr(actor, "task") else block)


def test_an_attempt_in_vain_leaves_nothing(enter, actor, using, name):
    lock = Lock(name, using=using)
    holder = actor("thread")
    assert holder.call(lock.acquire).result(PATIENCE)
    assert enter(lock.attempt()) is False
    assert lock.locked()
    assert holder.call(lock.release).result(PATIENCE) is None


def test_an_attempt_at_what_is_held_enters_it_again(enter, third, using, name):
    def twice(acquired):
        return acquired, third.tries(name)

    lock = Lock(name, using=using)
    assert enter(lock, lambda entered: entered.held)
    assert enter(lock.attempt(), twice) == (True, False)


def test_an_error_passes_out_of_an_attempt_and_frees_the_lock(enter, third, using, name):
    with pytest.raises(ZeroDivisionError):
        enter(Lock(name, using=using).attempt(), lambda acquired: 1 / 0)
    assert third.tries(name)


def test_an_attempt_whose_lock_was_lost_says_so(enter, third, using, name):
    lock = Lock(name, using=using)
    with pytest.raises(LockLost):
        enter(lock.attempt(), lambda acquired: third.lock(name).force_release(lock.token))


def test_an_attempt_that_is_closed_elsewhere_leaves_its_own_lock(actor, third, using, name):
    lock = Lock(name, using=using)

    def rows():
        with lock.attempt() as acquired:
            yield acquired

    abandoned = rows()
    assert actor("thread").call(next, abandoned).result(PATIENCE)
    actor("thread").call(abandoned.close).result(PATIENCE)
    assert third.lock(name).acquire(timeout=PATIENCE)


def test_an_attempt_is_for_one_block(using, name, third):
    attempt = Lock(name, using=using).attempt()
    with attempt as acquired, pytest.raises(Exception, match=r"call attempt\(\) again"):
        assert acquired
        attempt.__enter__()
    with pytest.raises(Exception, match=r"call attempt\(\) again"), attempt:
        raise AssertionError("it was entered")
    assert third.tries(name)


def test_an_attempt_blocks_no_event_loop(using, name):
    async def main():
        with Lock(name, using=using).attempt():
            raise AssertionError("it was entered")

    with pytest.raises(Exception, match="would block the event loop"):
        asyncio.run(main())
