"""Interrupts at each moment of an acquire and of an add: nothing stays or counts twice."""

import itertools
from functools import partial

import pytest

from distlock.recipes import Counter, RateLimiter
from distlock.records.shared_backend import shared_locks
from tests.contract.actors import PATIENCE
from tests.contract.watch import eventually
from tests.core.interrupting import interrupted

pytestmark = [pytest.mark.slow, pytest.mark.once]

LONG = 10 * PATIENCE


def cleaned(backend, limiter):
    """Return the limiter once all has been taken back."""
    eventually(lambda: not shared_locks(backend).cleanup.pending)
    return limiter.info()


def test_permits_are_taken_back(brief, name):
    """But not at the very end, where acquire() has returned and Python has not: they count then."""
    stay = []
    for moment in itertools.count(1):
        limiter = RateLimiter(f"{name}:{moment}", 3, LONG)
        if interrupted(partial(limiter.acquire, 2), moment) is None:
            break
        if cleaned(brief, limiter).taken:
            stay.append(moment)
    assert moment > 100
    assert stay == list(range(moment - len(stay), moment))
    assert len(stay) <= 3


def test_nobody_stays_in_line(brief, name):
    for moment in itertools.count(1):
        limiter = RateLimiter(f"{name}:{moment}", 3, LONG)
        assert limiter.acquire(2)
        if interrupted(partial(limiter.acquire, 2, timeout=0.02), moment) is None:
            break
        found = cleaned(brief, limiter)
        assert (found.taken, found.waiting) == (2, ()), moment
    assert moment > 100


def test_an_add_counts_once_or_not_at_all(brief, name):
    counter = Counter(name)
    for moment in itertools.count(1):
        before = counter.get()
        if interrupted(counter.add, moment) is None:
            break
        assert counter.get() - before in (0, 1), moment
    assert moment > 100
