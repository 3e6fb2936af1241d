"""The threads that work for the locks of a process."""

import asyncio
import signal
import threading
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest

from distlock import Lock, LockTimeout, LockUnavailable
from distlock.concurrency.clock import clock
from tests.contract.actors import PATIENCE, answered
from tests.contract.conftest import EAGER

WAIT = 0.4  # seconds
SIGNALS = {signal.SIGINT, signal.SIGTERM, signal.SIGALRM, signal.SIGUSR1}


@pytest.mark.slow
@pytest.mark.shared
@pytest.mark.eager
def test_they_take_no_signals(actor, using, name):
    """The main thread may be blocked in something that Ctrl-C or a time limit is to interrupt.

    Whichever thread begins or ends at the moment takes the signal, if it may.
    """
    found = actor("process").call(busy, using, name).result(PATIENCE)
    assert found, "no thread was seen"
    assert {thread: taken for thread, taken in found.items() if taken} == {}


def busy(using, name):
    """Hold, renew, wait and give up; return which signals each thread of ours would ever take."""
    taken = defaultdict(set)
    with Lock(name, using=using), ThreadPoolExecutor(1, "user") as user:
        waiting = user.submit(wait, using, name)
        while not waiting.done():
            look(taken)
        waiting.result()
        asyncio.run(try_(using, name))
        look(taken)
        ends = clock() + EAGER + WAIT  # until it has been renewed
        while clock() < ends:
            look(taken)
    return taken


def wait(using, name):
    """Wait in vain, and for what is free."""

    def in_vain():
        with pytest.raises(LockTimeout), Lock(name, using=using, timeout=WAIT):
            raise AssertionError("the body must not run")

    answered(in_vain)
    with Lock(f"{name}:other", using=using):
        pass


async def try_(using, name):
    # The last answer may be late, on a machine that stands still: then it is asked for again.
    while True:
        with suppress(LockUnavailable):
            assert not await Lock(name, using=using).aacquire(timeout=WAIT / 2)
            return


def look(taken):
    """Add which of the signals each thread would take now, by the names of the threads."""
    for thread in threading.enumerate():
        if thread.native_id and not thread.name.startswith(("MainThread", "user")):
            taken[thread.name] |= unblocked(thread)


def unblocked(thread):
    try:
        text = Path(f"/proc/self/task/{thread.native_id}/status").read_text()
    except OSError:  # it has ended
        return set()
    status = dict(line.split(":\t", 1) for line in text.splitlines())
    if status["Threads"] == "0":  # it is ending: its process and its mask are gone already
        return set()
    mask = int(status["SigBlk"], 16)
    return {number.name for number in SIGNALS if not mask >> (number - 1) & 1}
