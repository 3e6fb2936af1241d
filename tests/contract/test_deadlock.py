"""Owners that wait for one another in a circle are told so."""

import asyncio

import pytest

from distlock import Lock, LockDeadlock
from tests.contract.actors import PATIENCE
from tests.contract.watch import eventually, in_line, waits


@pytest.fixture
def lined_up(using, name):
    """``lined_up(number)``: wait until someone stands in line behind the lock's holder."""
    return lambda number: eventually(lambda: in_line(using, f"{name}:{number}") == 2)


@pytest.mark.parametrize("people", ["thread+thread", "task+task", "thread+task", "task+thread"])
def test_two_of_one_process_that_wait_for_each_other_are_told(actor, people, name, lined_up):
    first, second = (actor(what) for what in people.split("+"))
    one, two = first.take(f"{name}:1"), second.take(f"{name}:2")
    waiting = first.lock(f"{name}:2").start("acquire")
    lined_up(2)
    with pytest.raises(LockDeadlock) as caught:
        second.lock(f"{name}:1").acquire()
    assert f"{name}:1" in str(caught.value)
    two.verify()
    two.release()
    assert waiting.result(PATIENCE) is True
    one.verify()


def test_a_circle_of_three_is_found(actor, name, lined_up):
    people = [actor("thread"), actor("task"), actor("thread")]
    held = [person.take(f"{name}:{number}") for number, person in enumerate(people)]
    first = people[0].lock(f"{name}:1").start("acquire")
    lined_up(1)
    second = people[1].lock(f"{name}:2").start("acquire")
    lined_up(2)
    with pytest.raises(LockDeadlock):
        people[2].lock(f"{name}:0").acquire()
    held[2].release()
    assert second.result(PATIENCE)
    people[1].lock(f"{name}:2").release()
    held[1].release()
    assert first.result(PATIENCE)


@pytest.mark.parametrize("limits", [(0.3, None), (None, 0.3)], ids=["first", "last"])
def test_a_circle_in_which_one_waits_for_a_limited_time_is_none(third, fourth, using, name, limits):
    """It ends by itself: who has waited in vain can let the other one go on."""
    one, two = third.take(f"{name}:1"), fourth.take(f"{name}:2")
    first = third.lock(f"{name}:2").start("acquire", timeout=limits[0])
    eventually(lambda: first.done() or in_line(using, f"{name}:2") == 2)
    last = fourth.lock(f"{name}:1").start("acquire", timeout=limits[1])
    brief, held, patient = (first, one, last) if limits[0] else (last, two, first)
    assert brief.result(PATIENCE) is False
    held.release()
    assert patient.result(PATIENCE) is True


def test_a_single_try_is_no_wait_and_no_deadlock(third, fourth, name):
    third.take(f"{name}:1")
    held = fourth.take(f"{name}:2")
    waiting = third.lock(f"{name}:2").start("acquire")
    assert waits(waiting)
    assert fourth.lock(f"{name}:1").acquire(blocking=False) is False
    held.release()
    assert waiting.result(PATIENCE) is True


def test_waiting_for_one_that_waits_for_a_third_is_no_deadlock(third, fourth, actor, name):
    another = actor("thread")
    first, second = third.take(f"{name}:1"), another.take(f"{name}:2")
    middle = third.lock(f"{name}:2").start("acquire")
    assert waits(middle)
    last = fourth.lock(f"{name}:1").start("acquire")
    assert waits(last)
    second.release()
    assert middle.result(PATIENCE)
    first.release()
    assert last.result(PATIENCE)


def test_after_a_deadlock_the_lock_can_be_waited_for_again(third, fourth, name, lined_up):
    one, two = third.take(f"{name}:1"), fourth.take(f"{name}:2")
    waiting = third.lock(f"{name}:2").start("acquire")
    lined_up(2)
    again = fourth.lock(f"{name}:1")
    with pytest.raises(LockDeadlock):
        again.acquire()
    two.release()
    assert waiting.result(PATIENCE)
    late = again.start("acquire")
    assert waits(late)
    one.release()
    assert late.result(PATIENCE) is True


def enter(using, name):
    with Lock(name, using=using):
        return True


async def aenter(using, name):
    async with Lock(name, using=using):
        return True


async def with_first(using, name, ahead):
    """Hold the second lock; once this event is set, and some looks later, ask for the first."""
    async with Lock(f"{name}:2", using=using):
        ahead.set()
        await asyncio.sleep(0.7)
        await aenter(using, f"{name}:1")


@pytest.mark.parametrize("inner", ["job", "task"])
async def test_a_task_that_later_awaits_what_waits_for_its_lock_is_told(using, name, inner):
    async with asyncio.timeout(PATIENCE), Lock(name, using=using):
        if inner == "job":
            waiting = asyncio.get_running_loop().run_in_executor(None, enter, using, name)
        else:
            waiting = asyncio.create_task(aenter(using, name))
        await asyncio.sleep(0.7)
        with pytest.raises(LockDeadlock):
            await waiting


async def test_so_it_is_if_a_third_one_closes_the_circle_later(using, name):
    ahead = asyncio.Event()
    other = asyncio.create_task(with_first(using, name, ahead))
    await ahead.wait()
    async with asyncio.timeout(PATIENCE):
        async with Lock(f"{name}:1", using=using):
            with pytest.raises(LockDeadlock):
                await asyncio.to_thread(enter, using, f"{name}:2")
        await other
