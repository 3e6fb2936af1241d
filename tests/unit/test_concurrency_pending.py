"""An answer goes to exactly one, whoever is interrupted, and whatever comes first."""

import asyncio
import gc
import itertools
import threading
import weakref
from functools import partial

import pytest

from distlock.concurrency import pending
from distlock.concurrency.clock import clock
from distlock.concurrency.pending import Latch, Loan, Loans, NotAnswered, Pending
from tests.core.interrupting import interrupted

PATIENCE = 20.0


def soon():
    return clock() + PATIENCE


def on_a_thread(call, *args):
    thread = threading.Thread(target=call, args=args)
    thread.start()
    return thread


class Hook:
    def __init__(self):
        self.calls = 0

    def __call__(self):
        self.calls += 1


# Latch


def test_a_latch_wakes_who_waits():
    latch = Latch()
    thread = on_a_thread(latch.set)
    assert latch.wait(PATIENCE)
    thread.join()


def test_a_latch_stays_set():
    latch = Latch()
    latch.set()
    latch.set()
    assert latch.is_set
    assert latch.wait(0)
    assert latch.wait(0)


def test_a_latch_that_is_not_set_ends_the_wait_in_time():
    began = clock()
    assert not Latch().wait(0.005)
    assert clock() - began >= 0.005


def test_a_latch_that_was_interrupted_can_be_set_again():
    moment, over = 1, False
    while not over:
        latch = Latch()
        over = not interrupted(latch.set, moment)
        latch.set()
        assert latch.wait(0)
        moment += 1


def test_who_waits_for_a_latch_sees_it_set_by_one_who_was_interrupted():
    latch = Latch()
    latch.is_set = True
    assert latch.wait(PATIENCE)


# Loans


def test_who_comes_first_has_a_loan_first_but_for_those_who_go_before_all_others():
    loans, order, threads = Loans(1), [], []
    lent = Loan()
    assert loans.begin(lent, soon())

    def take(number, first):
        loan = Loan()
        order.append(number if loans.begin(loan, soon(), first=first) else None)
        loans.end(loan)

    for number in range(6):
        threads.append(on_a_thread(take, number, number >= 4))
        while loans.waiting <= number:
            pass
    loans.end(lent)
    for thread in threads:
        thread.join()
    assert order == [4, 5, 0, 1, 2, 3]
    assert loans.busy == loans.waiting == 0


def test_a_wait_in_vain_that_is_granted_later_keeps_no_loan():
    loans, lent, late, next_one = Loans(1), Loan(), Loan(), Loan()
    assert loans.begin(lent, soon())
    assert not loans.begin(late, clock())
    loans.end(lent)
    assert late.latch.is_set
    loans.end(late)
    assert loans.begin(next_one, clock())


def test_a_wait_in_vain_leaves_the_next_one_his_turn():
    loans, lent, late, next_one = Loans(1), Loan(), Loan(), Loan()
    assert loans.begin(lent, soon())
    assert not loans.begin(late, clock())
    thread = on_a_thread(loans.begin, next_one, soon())
    while loans.waiting < 2:
        pass
    loans.end(late)
    assert (loans.busy, loans.waiting) == (1, 1)
    loans.end(lent)
    thread.join()
    assert next_one.latch.is_set
    assert (loans.busy, loans.waiting) == (1, 0)


@pytest.mark.parametrize("others", [0, 1, 2], ids=["alone", "after one", "with others"])
def test_an_interrupt_leaves_no_loan_behind(others, monkeypatch):
    monkeypatch.setattr(pending, "_LONGEST_SLEEP", 0.02)

    def take(loans):
        loan = Loan()
        try:
            assert loans.begin(loan, soon())
        finally:
            loans.end(loan)

    def waiting(loans, number):
        threads = []
        while len(threads) < number:
            threads.append(on_a_thread(take, loans))
            while loans.waiting < len(threads):
                pass
        return threads

    def end_and_take(loans, lent):
        loans.end(lent.pop())
        take(loans)

    for moment in itertools.count(1):
        loans, lent = Loans(1), [Loan()]
        assert loans.begin(lent[0], soon())
        threads = waiting(loans, others)
        was_interrupted = bool(interrupted(partial(end_and_take, loans, lent), moment))
        lent.clear()
        gc.collect()
        take(loans)
        for thread in threads:
            thread.join(PATIENCE)
            assert not thread.is_alive()
        assert loans.busy == loans.waiting == 0
        if not was_interrupted:
            assert moment > 5, "the interrupts did not reach the code"
            return


# Pending: one decision


def test_a_value_is_taken_once():
    pending = Pending()
    assert not pending.over
    assert pending.resolve("value")
    assert pending.over
    assert pending.wait(None)
    assert pending.take() == "value"
    with pytest.raises(NotAnswered):
        pending.take()


def test_none_is_a_value():
    pending = Pending()
    assert pending.resolve(None)
    assert pending.wait(None)
    assert pending.take() is None


def test_an_error_is_raised_where_it_is_taken():
    pending, error = Pending(), ValueError("no")
    assert pending.fail(error)
    assert pending.wait(None)
    with pytest.raises(ValueError, match="no") as caught:
        pending.take()
    assert caught.value is error
    assert pending.answered


def test_an_error_that_was_taken_keeps_nothing_alive_but_by_its_traceback():
    class Kept:
        pass

    def take(pending, kept):
        pending.take()

    gc.collect()
    gc.disable()
    try:
        pending, kept, ended = Pending(), Kept(), []
        pending.fail(ValueError())
        weakref.finalize(kept, ended.append, True)
        with pytest.raises(ValueError):
            take(pending, kept)
        del kept
        # pytest's own object has gone with the statement; no cycle keeps the frames.
        assert ended
    finally:
        gc.enable()


def test_the_first_answer_stands():
    pending = Pending()
    assert pending.resolve(1)
    assert not pending.resolve(2)
    assert not pending.fail(ValueError())
    assert pending.take() == 1


def test_what_is_not_answered_cannot_be_taken():
    pending = Pending()
    with pytest.raises(NotAnswered):
        pending.take()
    assert pending.resolve(1)
    assert pending.take() == 1


def test_who_comes_too_late_to_an_abandoned_one_keeps_the_value():
    hook = Hook()
    pending = Pending(hook)
    assert pending.abandon() is None
    assert pending.abandon() is None
    assert hook.calls == 1
    assert (pending.over, pending.abandoned, pending.answered) == (True, True, False)
    assert not pending.resolve("lease")
    assert not pending.fail(ValueError())
    assert not pending.wait(None)
    with pytest.raises(NotAnswered):
        pending.take()


def test_a_value_that_came_is_returned_to_who_abandons_it():
    hook = Hook()
    pending = Pending(hook)
    pending.resolve("lease")
    assert pending.abandon() == "lease"
    assert pending.abandon() is None
    assert hook.calls == 0
    assert (pending.abandoned, pending.answered) == (True, False)
    with pytest.raises(NotAnswered):
        pending.take()


def test_abandoning_what_was_taken_does_nothing():
    hook = Hook()
    pending = Pending(hook)
    pending.resolve("lease")
    pending.take()
    assert pending.abandon() is None
    assert hook.calls == 0
    assert (pending.abandoned, pending.answered) == (False, True)


def test_an_error_that_nobody_takes_is_not_returned():
    pending = Pending()
    pending.fail(ValueError())
    assert pending.abandon() is None


def test_a_thread_is_woken_by_the_answer():
    pending = Pending()
    thread = on_a_thread(pending.resolve, "value")
    assert pending.wait(soon())
    assert pending.take() == "value"
    thread.join()


def test_waiting_ends_at_the_deadline_and_can_go_on():
    pending = Pending()
    assert not pending.wait(clock() + 0.005)
    assert not pending.wait(clock() - 1)
    thread = on_a_thread(pending.resolve, "value")
    assert pending.wait(soon())
    thread.join()


# Pending: interrupts


def moments(call):
    """Call ``call(moment)`` for 1, 2 … until it returns that no interrupt came."""
    moment = 1
    while call(moment):
        moment += 1
    assert moment > 2


@pytest.mark.parametrize("way", ["take", "abandon"])
def test_an_interrupted_one_leaves_the_value_to_abandon(way):
    def once(moment):
        pending, got = Pending(), []
        pending.resolve("lease")
        interrupt = interrupted(lambda: got.append(getattr(pending, way)()), moment)
        late = pending.abandon()
        assert [each for each in [*got, late] if each] == ["lease"]
        return interrupt

    moments(once)


def test_an_interrupted_abandon_stops_the_work_when_it_is_repeated():
    def once(moment):
        hook = Hook()
        pending = Pending(hook)
        interrupt = interrupted(pending.abandon, moment)
        pending.abandon()
        assert hook.calls >= 1
        assert interrupt or hook.calls == 1
        assert not pending.resolve("lease")
        return interrupt

    moments(once)


def test_an_answer_that_was_interrupted_is_seen_by_who_waits():
    def once(moment):
        pending = Pending()
        assert not pending.wait(clock() + 0.0005)
        interrupt = interrupted(lambda: pending.resolve("value"), moment)
        pending.resolve("value")
        assert pending.wait(0)
        assert pending.take() == "value"
        return interrupt

    moments(once)


def test_a_wait_that_was_interrupted_can_be_abandoned():
    def once(moment):
        hook = Hook()
        pending = Pending(hook)
        interrupt = interrupted(lambda: pending.wait(clock()), moment)
        pending.abandon()
        assert hook.calls == 1
        return interrupt

    moments(once)


# Pending: asyncio


async def test_a_task_is_woken_by_the_answer():
    pending = Pending()
    thread = on_a_thread(pending.resolve, "value")
    assert await pending.wait_async(soon())
    assert pending.take() == "value"
    thread.join()


async def test_a_task_is_woken_from_its_own_loop():
    pending = Pending()
    asyncio.get_running_loop().call_soon(pending.resolve, "value")
    assert await pending.wait_async(None)
    assert pending.take() == "value"


async def test_a_task_waits_until_the_deadline_and_can_go_on():
    pending = Pending()
    assert not await pending.wait_async(clock() + 0.005)
    pending.resolve("value")
    assert await pending.wait_async(clock())


async def test_a_cancelled_task_abandons_what_comes_later():
    hook = Hook()
    pending = Pending(hook)

    async def wait():
        try:
            await pending.wait_async(None)
        finally:
            pending.abandon()

    task = asyncio.create_task(wait())
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert hook.calls == 1
    assert not pending.resolve("lease")


def left_in_a_closed_loop(pending, keep):
    """Let a task wait in an event loop that is closed without cancelling it."""
    loop = asyncio.new_event_loop()
    coroutine = pending.wait_async(None)
    keep.append(coroutine)
    task = loop.create_task(coroutine)
    keep.append(task)
    loop.run_until_complete(asyncio.sleep(0))
    task._log_destroy_pending = False
    loop.close()


def test_a_closed_event_loop_wants_no_answer():
    pending, keep = Pending(), []
    left_in_a_closed_loop(pending, keep)
    assert pending.abandoned
    assert not pending.over
    assert not pending.resolve("lease")
    assert pending.over
    assert not pending.answered
    assert pending.abandon() is None  # who resolved it has the value
    keep[0].close()


def test_an_event_loop_that_is_closed_after_the_answer_abandons_it():
    loop, pending = asyncio.new_event_loop(), Pending()
    assert not loop.run_until_complete(pending.wait_async(clock()))
    assert not loop.run_until_complete(pending.wait_async(clock() + 0.001))
    assert pending.resolve("lease")
    assert not pending.abandoned
    loop.close()
    assert pending.abandoned
    assert pending.abandon() == "lease"


def test_a_value_that_was_taken_outlives_its_event_loop():
    loop, pending = asyncio.new_event_loop(), Pending()
    assert not loop.run_until_complete(pending.wait_async(clock() + 0.001))
    pending.resolve("lease")
    pending.take()
    loop.close()
    assert not pending.abandoned


# Pending: races


def test_a_value_goes_to_one_of_those_who_compete_for_it():
    for _ in range(200):
        pending, got, line = Pending(), [], threading.Barrier(3)

        def abandon(pending=pending, got=got, line=line):
            line.wait(PATIENCE)
            got.append(pending.abandon())

        def resolve(pending=pending, got=got, line=line):
            line.wait(PATIENCE)
            got.append(None if pending.resolve("lease") else "lease")

        threads = [on_a_thread(each) for each in (abandon, resolve)]
        line.wait(PATIENCE)
        try:
            got.append(pending.take())
        except NotAnswered:
            got.append(pending.abandon())
        for thread in threads:
            thread.join()
        assert sorted(map(str, got)) == ["None", "None", "lease"]
