"""Many clients in line for one lock: first come, first served, one woken by each release."""

import asyncio
import itertools
import os

import pytest

from distlock.backends.zookeeper import ZooKeeperBackend
from distlock.concurrency.steps import arun
from distlock.types.lease import Claim, Owner
from tests.contract.actors import PATIENCE
from tests.zookeeper.tree import packets, session_of, watches

WAITERS = 200
TURNS = 20

_serials = itertools.count(1)


def owner():
    return Owner(f"test:{os.getpid()}:{next(_serials)}", "host", os.getpid(), "thread")


@pytest.fixture
def clients(long_sessions, root):
    """As many clients as waiters, in sessions that need no ping while the test lasts."""
    made = [
        ZooKeeperBackend(
            f"client-{number}",
            {
                "LOCATION": long_sessions.hosts,
                "OPTIONS": {"root": root, "session_timeout": 600, "timeout": PATIENCE},
            },
        )
        for number in range(WAITERS + 1)
    ]
    yield made
    for each in made:
        each.close()


async def until(condition):
    while not condition():
        await asyncio.sleep(0.01)


@pytest.mark.slow
@pytest.mark.timeout(240)
async def test_each_release_wakes_the_next_and_nobody_else(clients, long_sessions, root):
    """By the figures of the server: what it has sent to each session, and what each has asked."""
    name = "popular"
    holder, *others = clients
    lease = await arun(holder.enqueue(Claim(name, owner(), 400.0), None))
    served, waiting = [], []

    async def wait(backend):
        mine = await arun(backend.enqueue(Claim(name, owner(), 400.0), None))
        served.append(backend)
        return mine

    for count, backend in enumerate(others, 1):
        waiting.append(asyncio.create_task(wait(backend)))
        await until(lambda count=count: len(watches(long_sessions)) == count)
    assert len(set(watches(long_sessions))) == WAITERS  # nobody watches what another one watches
    assert holder.inspect(name).waiters is not None
    assert len(holder.inspect(name).waiters) == WAITERS

    for turn in range(TURNS):
        before = packets(long_sessions)
        assert holder.release(lease)
        lease = await asyncio.wait_for(waiting[turn], PATIENCE)
        leaver, holder = holder, others[turn]
        after = packets(long_sessions)
        assert served[turn] is holder
        awake = {session for session in after if after[session] != before.get(session)}
        assert {session_of(leaver), session_of(holder)} <= awake
        assert not awake & {session_of(later) for later in others[turn + 1 :]}
        asked = after[session_of(holder)][0] - before[session_of(holder)][0]
        assert asked <= 2  # who is ahead now; and since when it holds
    assert served == others[:TURNS]
    assert len(set(watches(long_sessions))) == WAITERS - TURNS

    for task in waiting[TURNS:]:
        task.cancel()
    await asyncio.gather(*waiting[TURNS:], return_exceptions=True)
    await until(lambda: not watches(long_sessions))
    await until(lambda: holder.inspect(name).waiters == ())
    assert holder.release(lease)
