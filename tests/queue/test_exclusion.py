"""Many processes, some stopped and some killed: never two with one token, and nobody forgotten."""

import random
import signal
import time

import pytest

from distlock import Lock, LockError
from tests.children import write_line

SECONDS = 6


def contend(name, seconds):
    """Take turns; tell every token that was granted."""
    lock = Lock(name, lease=1)
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        try:
            if lock.acquire(timeout=10):
                write_line(lock.token)
                lock.release()
        except LockError:
            if lock.held:
                raise
    write_line("end")


def tokens_of(process):
    tokens = []
    while (line := process.line()) != "end":
        tokens.append(int(line))
    return tokens


@pytest.mark.slow
def test_processes_that_are_stopped_and_killed(child, engine, name):
    processes = [child(contend, name, SECONDS) for _ in range(6)]
    chance = random.Random(4)
    first = [process.line() for process in processes]
    victims, killed = processes[:3], processes[3]
    end = time.monotonic() + SECONDS * 0.6
    while time.monotonic() < end:
        victim = chance.choice(victims)
        victim.signal(signal.SIGSTOP)
        time.sleep(chance.uniform(0.05, 1.6))
        victim.signal(signal.SIGCONT)
    killed.signal(signal.SIGKILL)
    tokens = [int(line) for line in first[:3] + first[4:]]
    counts = []
    for process in [*victims, *processes[4:]]:
        mine = tokens_of(process)
        assert mine == sorted(mine)
        counts.append(len(mine))
        tokens += mine
    assert len(tokens) == len(set(tokens))
    assert min(counts) > 0
    engine.reaches_line(0)
