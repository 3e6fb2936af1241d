"""The threads that work for the locks of a process."""

import asyncio
import signal
import threading
from pathlib import Path

import pytest

from distlock import Lock, LockTimeout
from distlock.clock import clock
from tests.contract.actors import PATIENCE

LEASE = 3.0  # seconds
WAIT = 0.4  # seconds
SIGNALS = {signal.SIGINT, signal.SIGTERM, signal.SIGALRM, signal.SIGUSR1}


@pytest.mark.shared
def test_they_take_no_signals(actor, backend, using, name):
    """The main thread may be blocked in something that Ctrl-C or a time limit is to interrupt.

    Whichever thread begins or ends at the moment takes the signal, if it may.
    """
    lease = LEASE if backend.supports_lease else None
    found = actor("process").call(busy, using, name, lease).result(PATIENCE)
    assert found, "no thread was seen"
    assert {thread: taken for thread, taken in found.items() if taken} == {}


def busy(using, name, lease):
    """Hold, renew, wait and give up; return which signals each thread of ours would take."""
    taken = {}
    with Lock(name, using=using, lease=lease):
        waiting = threading.Thread(target=wait, args=(using, name), name="user")
        waiting.start()
        while waiting.is_alive():
            taken.update(look())
        asyncio.run(try_(using, name))
        taken.update(look())
        ends = clock() + LEASE / 3 + WAIT  # until it has been renewed
        while clock() < ends:
            taken.update(look())
    return taken


def wait(using, name):
    """Wait in vain, and for what is free."""
    with pytest.raises(LockTimeout), Lock(name, using=using, timeout=WAIT):
        pass
    with Lock(f"{name}:other", using=using):
        pass


async def try_(using, name):
    assert not await Lock(name, using=using).aacquire(timeout=WAIT / 2)


def look():
    """Return which of the signals each thread would take, by the names of the threads."""
    ours = (thread for thread in threading.enumerate() if thread.name not in ("MainThread", "user"))
    return {thread.name: unblocked(thread) for thread in ours if thread.native_id}


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
