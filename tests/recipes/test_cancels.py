"""Who is cancelled at any await asks again at once, in the same task, and gets it."""

import asyncio
import itertools
import threading
import types
from contextlib import suppress

import pytest

from distlock import Lock, LockNotHeld
from distlock.recipes import Barrier, Election, Group, Queue, RWLock, Semaphore
from tests.contract.actors import PATIENCE
from tests.kinds import KINDS


@types.coroutine
def cancelled(coroutine, number, answered):
    """Run a coroutine, and cancel the task at its n-th await; return whether it came so far.

    With ``answered`` at the end of this await: what was waited for has come.
    """
    inner, value, error = coroutine.__await__(), None, None
    for passed in itertools.count(1):
        try:
            awaited = inner.send(value) if error is None else inner.throw(error)
        except (StopIteration, asyncio.CancelledError):
            return passed > number
        if passed == number:
            task = asyncio.current_task()
            if answered and awaited is not None:
                awaited.add_done_callback(lambda _: task.cancel())  # noqa: B023
            else:
                task.cancel()
        value = error = None
        try:
            value = yield awaited
        except BaseException as raised:
            error = raised


async def until(condition):
    async with asyncio.timeout(PATIENCE):
        while not await condition():
            await asyncio.sleep(0.005)


# Each is an asynchronous generator: it yields what is cancelled, and then asks again.


async def taking(make):
    lock = make()

    async def take_and_leave():
        async with lock:
            await asyncio.sleep(0)

    yield take_and_leave()
    while lock.held:
        await lock.arelease()
    assert await lock.aacquire()
    await lock.arelease()


def lock(name, using):
    return taking(lambda: Lock(name, using=using))


def seats(name, using):
    return taking(lambda: Semaphore(name, 1, using=using))


def writing(name, using):
    return taking(lambda: RWLock(name, using=using).writer())


async def waiting(name, using):
    holder, taken = Semaphore(name, 1, using=using), asyncio.Event()

    async def hold():
        async with holder:
            taken.set()
            await asyncio.sleep(0.02)

    holding = asyncio.create_task(hold())
    await taken.wait()
    async for step in taking(lambda: Semaphore(name, 1, using=using)):
        yield step
    await holding


async def in_line(name, using):
    queue, got = Queue(name, using=using), []

    async def put():
        await asyncio.sleep(0.02)
        await queue.aput_many([1, 2])

    async def get():
        got.append(await queue.aget())

    putting = asyncio.create_task(put())
    yield get()
    while len(got) < 2:
        got.append(await queue.aget(timeout=PATIENCE))
    assert {delivery.body for delivery in got} == {1, 2}
    await queue.aack_many(got)
    await putting


async def acknowledging(name, using):
    queue = Queue(name, using=using)
    await queue.aput_many([1, 2])
    delivery = await queue.aget()
    yield delivery.aack()
    if delivery.held:
        await delivery.aack()
    async with await queue.aget(timeout=PATIENCE) as following:
        assert following.body == 2
    await until(queue.aempty)


async def leading(name, using):
    election = Election(name, using=using)

    async def lead():
        async with election:
            await asyncio.sleep(0)

    yield lead()
    if election.leading:
        await election.aresign()
    assert await election.acampaign(timeout=PATIENCE)
    await election.aresign()


async def membership(name, using):
    group = Group(name, using=using)

    async def join_and_leave():
        await group.ajoin()
        await group.aleave()

    yield join_and_leave()
    with suppress(LockNotHeld):
        await group.aleave()
    await group.ajoin()

    async def alone():
        return len(await group.amembers()) == 1

    await until(alone)
    await group.aleave()


async def meeting(name, using):
    barrier = Barrier(name, 1, using=using)
    yield barrier.await_()
    with suppress(threading.BrokenBarrierError):
        await barrier.await_(PATIENCE)
    await barrier.areset()
    await barrier.await_(PATIENCE)


RECIPES = [lock, seats, writing, waiting, in_line, acknowledging, leading, membership, meeting]


@pytest.mark.parametrize(
    "kind",
    [pytest.param(kind, marks=[pytest.mark.slow] if kind != "local" else []) for kind in KINDS],
)
@pytest.mark.parametrize("answered", [False, True], ids=["asked", "answered"])
@pytest.mark.parametrize("recipe", RECIPES, ids=lambda recipe: recipe.__name__)
def test_who_was_cancelled_asks_again(using, name, recipe, answered):
    async def everywhere():
        for number in itertools.count(1):
            asking = recipe(f"{name}:{number}", using)
            came_so_far = await cancelled(await anext(asking), number, answered)
            assert await anext(asking, "over") == "over"
            if not came_so_far:
                return

    asyncio.run(everywhere())
