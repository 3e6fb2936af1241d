"""Many tasks that are cancelled at any moment, on a machine with too much to do."""

import asyncio
import random
import sys
import threading

import pytest

from distlock import Lock
from distlock.concurrency.clock import clock
from distlock.runtime.manager import manager
from tests.contract.actors import PATIENCE
from tests.contract.watch import cleaned_up, eventually, in_line

#: as long as a test may take: a lock that is left to nobody is never free again
LEASE = 300

#: So many rounds. Where the machine is slow, as many as there are in these seconds, at least the
#: second number.
ROUNDS, LEAST, ENOUGH = 150, 20, 30
TASKS = 10
#: threads that do nothing but keep others from running
BURDENS = 3


@pytest.fixture
def burdened():
    """Let threads have to wait for the interpreter, and lose it at any moment."""
    over = threading.Event()

    def burden():
        while not over.is_set():
            sum(range(2000))

    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-4)
    threads = [threading.Thread(target=burden, daemon=True) for _ in range(BURDENS)]
    for thread in threads:
        thread.start()
    yield
    over.set()
    for thread in threads:
        thread.join()
    sys.setswitchinterval(before)


@pytest.mark.slow
def test_a_storm_of_cancels_leaves_nothing_behind(actor, third, using, name, burdened):
    dice = random.Random(name)
    names = [f"{name}:{number}" for number in range(2)]

    async def take_and_leave():
        async with Lock(dice.choice(names), using=using, lease=LEASE):
            for _ in range(dice.randrange(4)):
                await asyncio.sleep(0)

    async def storm():
        tasks = [asyncio.create_task(take_and_leave()) for _ in range(TASKS)]
        for _ in tasks:
            for _ in range(dice.choice([0, 1, 2, 3, 5, 10, 30, 100])):
                await asyncio.sleep(0)
            if dice.random() < 0.8:
                dice.choice(tasks).cancel()
        for task in tasks:
            if dice.random() < 0.5:
                task.cancel()
        results = await asyncio.wait_for(asyncio.gather(*tasks, return_exceptions=True), PATIENCE)
        for error in results:
            if isinstance(error, Exception):
                raise error

    until = clock() + ENOUGH
    for number in range(ROUNDS):
        actor("task").call(storm).result(2 * PATIENCE)
        if number >= LEAST and clock() >= until:
            break
    for each in names:
        after = third.lock(each)
        assert after.acquire(timeout=PATIENCE / 2)
        after.verify()
        after.release()
        assert in_line(using, each) == 0
    eventually(cleaned_up)
    assert not [hold for hold in manager().running() if hold.lease.name in names]
