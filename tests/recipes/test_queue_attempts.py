"""When an attempt counts: once work on the item begins, and not when it was asked for."""

import asyncio
import random
import threading

import pytest

from distlock import LockLost, LockNotHeld, LockUnavailable, locks
from distlock.backends.store import Peek
from distlock.recipes import Queue
from tests.children import write_line
from tests.contract.actors import PATIENCE
from tests.contract.watch import cleaned_up, eventually
from tests.recipes.every_kind import pytest_generate_tests  # noqa: F401 - pytest calls it
from tests.recipes.test_queue import bodies, fail
from tests.recipes.test_queue_abandoned import abandon, fill
from tests.recipes.wrapping import Wrapped, grants


@pytest.fixture
def late_answer(using, name, monkeypatch):
    """``late_answer(queue)``: its next change is made; the answer comes once an event is set."""
    store = type(locks[using].store)
    apply = store.apply

    def hold_back(queue):
        made, go_on = threading.Event(), threading.Event()

        def late(known, directory, changes, *rest, **named):
            result = apply(known, directory, changes, *rest, **named)
            if directory == f"queue:{queue.name}" and grants(changes):
                monkeypatch.setattr(store, "apply", apply)
                made.set()
                assert go_on.wait(PATIENCE)
            return result

        monkeypatch.setattr(store, "apply", late)
        return made, go_on

    return hold_back


def cancel_after_the_change(queue, late_answer, take):
    made, go_on = late_answer(queue)

    async def cancel():
        taking = asyncio.create_task(take())
        assert await asyncio.to_thread(made.wait, PATIENCE)
        taking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await taking
        go_on.set()

    asyncio.run(cancel())
    eventually(cleaned_up)


@pytest.mark.parametrize("most", [1, 3])
def test_a_cancelled_get_counts_as_no_attempt(using, name, late_answer, most):
    """It was carried out, and nobody was told: the item is at its place, as it was."""
    queue = Queue(name, using=using, max_deliveries=most)
    queue.put_many(["first", "second"])
    for take in (queue.aget, lambda: queue.aget_many(2), queue.aget):
        cancel_after_the_change(queue, late_answer, take)
        assert eventually(lambda: queue.info().ready == 2)
    taken = queue.get(timeout=PATIENCE)
    assert (taken.body, taken.attempt) == ("first", 1)
    taken.ack()
    assert bodies(queue, 1) == ["second"]
    assert queue.dead() == ()


def test_a_get_that_came_back_counts(using, name):
    """The control: its consumer may have worked on the item."""
    queue = Queue(name, using=using, max_deliveries=2)
    queue.put("poison")
    for attempt in (1, 2):
        taken = queue.get(timeout=PATIENCE)
        assert taken.attempt == attempt
        abandon(queue, [taken])
    assert [(one.body, one.attempts) for one in queue.dead()] == [("poison", 2)]


@pytest.mark.slow
def test_whoever_polls_and_is_cancelled_puts_nothing_aside(using, name):
    """Now and then it waits: on a busy machine nothing may be there in so short a time."""
    dice, queue, seen = random.Random(name), Queue(name, using=using, max_deliveries=1), []

    async def poll():
        await queue.aput_many([*range(12)])
        async with asyncio.timeout(2 * PATIENCE):
            while await queue.aqsize():
                try:
                    wait = PATIENCE if dice.random() < 0.2 else dice.random() * 0.02
                    delivery = await asyncio.wait_for(queue.aget(), wait)
                except TimeoutError:
                    continue
                seen.append(delivery.body)
                await delivery.aack()

    asyncio.run(poll())
    assert sorted(seen) == [*range(12)]
    assert queue.dead() == ()


def test_of_many_each_counts_once_it_is_entered(using, name):
    queue = Queue(name, using=using, max_deliveries=1)
    fill(queue, 3)
    taken = queue.get_many(3)
    assert [one.attempt for one in taken] == [1, 1, 1]
    with pytest.raises(ZeroDivisionError), taken[0]:
        raise ZeroDivisionError("poison")
    taken[1].begin()
    taken[1].begin()
    abandon(queue, taken[1:])
    info = queue.info()
    assert (info.ready, info.dead) == (1, 2)
    again = queue.get(timeout=PATIENCE)
    assert (again.body, again.attempt) == (2, 1)
    again.ack()
    assert [(one.body, one.attempts) for one in queue.dead()] == [(0, 1), (1, 1)]


def test_to_put_an_item_back_is_an_attempt_though_it_was_not_begun(using, name):
    """Or a loop that takes many, and puts back what fails, would go on for ever."""
    queue = Queue(name, using=using, max_deliveries=2)
    fill(queue, 2)
    first, second = queue.get_many(2)
    first.nack()
    second.nack(delay=3600)
    assert (queue.info().ready, queue.info().delayed) == (1, 1)
    (again,) = queue.get_many(2)
    assert (again.body, again.attempt) == (0, 2)
    again.nack(reason="poison")
    assert [(one.attempts, one.reason) for one in queue.dead()] == [(2, "poison")]


def test_what_was_begun_is_acknowledged_alone_and_with_others(using, name):
    queue = Queue(name, using=using, max_deliveries=1)
    fill(queue, 4)
    taken = queue.get_many(4)
    taken[0].begin()
    taken[1].begin()
    taken[1].ack()
    queue.ack_many([taken[0], taken[2]])
    with taken[3]:
        pass
    assert queue.empty()
    assert queue.dead() == ()


def test_the_attempt_of_a_lost_delivery_cannot_be_begun(using, name):
    queue = Queue(name, using=using)
    fill(queue, 2)
    lost, over = queue.get_many(2)
    abandon(queue, [lost])
    again = queue.get(timeout=PATIENCE)
    with pytest.raises(LockLost):
        lost.begin()
    with pytest.raises(LockLost), lost:
        raise AssertionError("it must not be entered")
    over.ack()
    with pytest.raises(LockNotHeld):
        over.begin()
    again.ack()
    assert queue.empty()


def test_tasks_do_the_same(using, name):
    async def work():
        queue = Queue(name, using=using, max_deliveries=1)
        await queue.aput_many([1, 2])
        first, second = await queue.aget_many(2)
        await first.abegin()
        async with second:
            pass
        await first.anack()
        assert [one.body for one in await queue.adead()] == [1]

    asyncio.run(work())


def kill_at(name, poison):
    """As a child: work on twelve at once, one of which kills it."""
    for one in Queue(name, max_deliveries=3).get_many(12, timeout=PATIENCE):
        with one:
            if one.body == poison:
                write_line("killed")
                threading.Event().wait()


@pytest.mark.shared
@pytest.mark.brief
@pytest.mark.slow
def test_a_poison_item_among_twelve_kills_no_innocent_ones(child, using, name):
    queue, poison = Queue(name, using=using), 3
    fill(queue, 12)
    for attempt in range(3):
        consumer = child(kill_at, name, poison)
        assert consumer.line() == "killed"
        consumer.kill()
        if attempt < 2:
            eventually(lambda: queue.info().ready == 9, PATIENCE)
    eventually(lambda: queue.info().dead == 1, PATIENCE)
    assert [(one.body, one.attempts) for one in queue.dead()] == [(poison, 3)]
    left = queue.get_many(12, timeout=PATIENCE)
    assert [(one.body, one.attempt) for one in left] == [(body, 1) for body in range(4, 12)]
    queue.ack_many(left)


@pytest.mark.parametrize("then", ["ack", "nack", "begin"])
@pytest.mark.parametrize("made", [True, False])
def test_a_begin_whose_answer_is_lost_leaves_nothing_behind(local, name, monkeypatch, then, made):
    queue = Queue(name, max_deliveries=1)
    queue.put("one")
    (taken,) = queue.get_many(1)
    apply = Wrapped(monkeypatch, "apply")

    def lose(store, *arguments):
        apply.before = lambda *_: None
        if made:
            apply.original(store, *arguments)
        raise LockUnavailable("the answer was lost")

    apply.before = lose
    with pytest.raises(LockUnavailable):
        taken.begin()
    getattr(taken, then)()
    if then == "begin":
        assert queue.info().delivered == 1
        taken.ack()
    info = queue.info()
    assert (info.size, info.dead) == (0, then == "nack")
    assert [*local.store.peek(f"queue:{name}", Peek({"i/": 9, "h/": 9})).records] == []


def test_a_failure_counts_as_before(using, name):
    queue = Queue(name, using=using, max_deliveries=2)
    queue.put("poison")
    fail(queue)
    fail(queue)
    assert [one.attempts for one in queue.dead()] == [2]
