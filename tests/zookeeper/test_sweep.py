"""After many locks nothing is left of them, and what is in use is not touched."""

import asyncio
import threading

import pytest

from distlock import Lock, locks
from distlock.concurrency.clock import clock
from distlock.types.lease import SweepResult
from tests.contract.actors import PATIENCE
from tests.contract.watch import eventually
from tests.zookeeper.tree import session_of, watches


@pytest.mark.timeout(240)
@pytest.mark.parametrize(
    "names", [300, pytest.param(3000, marks=pytest.mark.slow)], ids=["hundreds", "thousands"]
)
def test_nothing_is_left_of_many_locks(configure, zookeeper, tree, names):
    """Half of them by tasks, of which two want each lock, half by a thread."""
    using = configure(session_timeout=60)  # many tasks hold locks until the loop comes to them
    backend = locks[using]

    async def use(number):
        async with Lock(f"job:{number // 2}", using="default" if number % 2 else "other"):
            await asyncio.sleep(0)

    async def use_many():
        limit = asyncio.Semaphore(200)

        async def one(number):
            async with limit:
                await use(number)

        await asyncio.gather(*[one(number) for number in range(names // 2)])

    asyncio.run(use_many())
    for number in range(names // 4, names):
        lock = Lock(f"job:{number}", using=using)
        lock.acquire()
        lock.release()
    locks["other"].list()  # all that it has sent has been done
    removed = backend.sweep().removed
    assert 0 < removed <= names
    assert tree.parents() == []
    sessions = [session_of(locks[alias]) for alias in ("default", "other")]
    eventually(lambda: not any(watches(zookeeper, session) for session in sessions))
    assert backend.sweep() == SweepResult()


def test_a_sweep_leaves_what_is_held_or_waited_for(using, backend, tree, actor, name):
    Lock(f"{name}:free", using=using).acquire()
    Lock(f"{name}:free", using=using).release()
    with Lock(name, using=using) as lock:
        waiting = actor("thread", "other").lock(name).start("acquire")
        eventually(lambda: len(tree.queue(name)) == 2)
        eventually(lambda: tree.queue(f"{name}:free") == [])
        assert backend.sweep() == SweepResult(removed=1)
        assert tree.parents() == [name]
        lock.verify()
    assert waiting.result(PATIENCE) is True


def test_sweepers_may_meet_and_locks_be_taken_meanwhile(using, backend, tree, actor):
    people = [actor("thread", alias) for alias in ("default", "other", "third")]
    removed, over = [], threading.Event()

    def sweep():
        while not over.is_set():
            removed.append(backend.sweep().removed)

    def use():
        tokens, end = [], clock() + PATIENCE
        while len(tokens) < 60 or not (any(removed) or clock() > end):
            with Lock("hot", using="other") as lock:
                tokens.append(lock.token)
        return tokens

    sweeping = [person.call(sweep) for person in people[:2]]
    try:
        tokens = people[2].call(use).result(2 * PATIENCE)
    finally:
        over.set()
    for each in sweeping:
        each.result(PATIENCE)
    assert any(removed)
    assert tokens == sorted(set(tokens))


def test_there_is_nothing_to_sweep_where_nothing_ever_was(using, backend):
    assert backend.sweep() == SweepResult()
    assert list(backend.list()) == []
