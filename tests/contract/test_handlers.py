"""Signal handlers use locks at random moments of a program that does, too: real signals.

tests/core/test_handlers.py has each moment there is, on locks in memory.
"""

import random
import signal
import threading

import pytest

from distlock import Lock, ReentrantCall
from distlock.recipes import Semaphore
from tests.children import write_line
from tests.contract.actors import PATIENCE

#: How often a handler is called.
OFTEN = [
    pytest.param(20, marks=pytest.mark.every_day_on("local", "postgresql", "zookeeper")),
    pytest.param(200, marks=pytest.mark.slow),
]


def rained_on(using, name, times):
    """Take and leave locks while a handler does so at random moments; return what came of it."""
    came = {"worked": 0, "refused": 0, "cycles": 0}

    def handle(signum, frame):
        try:
            with Lock(f"{name}-handler", using=using, timeout=PATIENCE):
                came["worked"] += 1
        except ReentrantCall:
            came["refused"] += 1
        if came["worked"] + came["refused"] < times:
            set_off()

    def set_off():
        signal.setitimer(signal.ITIMER_REAL, random.uniform(0.0001, 0.01))

    before = signal.signal(signal.SIGALRM, handle)
    try:
        set_off()
        while came["worked"] + came["refused"] < times:
            with Lock(name, using=using, timeout=PATIENCE):
                pass
            with Semaphore(f"{name}-seats", 1, using=using, timeout=PATIENCE):
                pass
            came["cycles"] += 1
    finally:
        signal.signal(signal.SIGALRM, before)
    return came


@pytest.mark.parametrize("times", OFTEN)
def test_no_handler_hangs_and_what_it_interrupted_goes_on(actor, third, times, using, name):
    came = actor("process").call(rained_on, using, name, times).result(4 * PATIENCE)
    assert came["refused"] and came["cycles"]
    for lock in name, f"{name}-handler":
        assert third.lock(lock).acquire(timeout=PATIENCE)


def end_on_sigterm(using, name):
    """As a program in a container: on SIGTERM it gives back what it has, says so, and ends."""

    def stop(signum, frame):
        if current is not None and current.held:
            current.release()
        with Lock(f"{name}-handler", using=using, timeout=PATIENCE):
            write_line("stopped")
        raise SystemExit(0)

    current = None
    signal.signal(signal.SIGTERM, stop)
    write_line("ready")
    while True:
        current = Lock(name, using=using, timeout=PATIENCE)
        with current:
            pass


def ends_at_once(child, using, name):
    """End a program at a random moment; return whether its handler did all, or was refused."""
    program = child(end_on_sigterm, using, name)
    assert program.line() == "ready"
    threading.Event().wait(random.uniform(0, 0.1))
    program.signal(signal.SIGTERM)
    code = program.wait(PATIENCE)
    said = program.rest()
    if code == 0:
        return said == ["stopped"]
    assert code == 1 and "ReentrantCall" in program.errors
    return not said


@pytest.mark.shared
@pytest.mark.parametrize(
    "programs",
    [
        pytest.param(3, marks=pytest.mark.every_day_on("postgresql")),
        pytest.param(50, marks=pytest.mark.slow),
    ],
)
def test_programs_that_give_back_their_lock_on_sigterm_end(child, third, programs, using, name):
    for _ in range(programs):
        assert ends_at_once(child, using, name)
        lock = third.lock(name)
        assert lock.acquire(timeout=PATIENCE / 2)  # less than a lease
        lock.release()
