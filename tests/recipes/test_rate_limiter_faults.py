"""RateLimiter when many processes want permits, and some are stopped or killed on the way."""

import json
import random
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from distlock import LockUnavailable, locks
from distlock.concurrency.clock import clock
from distlock.recipes import RateLimiter, rate_limiter
from tests.children import write_line
from tests.contract.actors import PATIENCE
from tests.contract.watch import eventually
from tests.recipes.every_kind import pytest_generate_tests  # noqa: F401 - pytest calls it
from tests.recipes.test_seats_faults import answer

PERMITS, PERIOD = 5, 0.8


class Timed:
    """When this thread has sent the changes that have granted permits, and had their answers."""

    def __init__(self, store):
        self._apply, self._thread, self.last = store.apply, threading.get_ident(), None
        store.apply = self

    def __call__(self, directory, changes, *args, **kwargs):
        sent = clock()
        revision = self._apply(directory, changes, *args, **kwargs)
        is_here = threading.get_ident() == self._thread
        if is_here and revision and any(one.key == "permits" for one in changes):
            self.last = sent, clock()
        return revision


def hammer(name, seed, blocking):
    """As a child: take permits for ever, and say between which moments each was granted."""
    dice, timed = random.Random(seed), Timed(locks["default"].store)
    limiter = RateLimiter(name, PERMITS, PERIOD)
    while True:
        n = dice.randint(1, 2)
        if limiter.acquire(n, blocking):
            write_line(json.dumps([n, *timed.last]))
        elif not blocking:
            time.sleep(dice.uniform(0, 0.05))


def most_at_once(grants, period):
    """Return the most permits that were granted within one period, of which that is certain."""
    most = 0
    for _, begin, _ in grants:
        inside = [n for n, sent, answered in grants if sent >= begin and answered <= begin + period]
        most = max(most, sum(inside))
    return most


def said_by(children):
    """Return what was granted, by what they have said until they were killed."""
    return [json.loads(line) for each in children for line in each.rest() if line.endswith("]")]


@pytest.mark.shared
@pytest.mark.faults
class TestProcesses:
    @pytest.mark.parametrize("blocking", [True, pytest.param(False, marks=pytest.mark.slow)])
    def test_there_are_never_more_within_a_period(self, child, using, name, blocking):
        children, began = [child(hammer, name, seed, blocking) for seed in range(4)], clock()
        for each in children:
            each.line()
        time.sleep(4 * PERIOD)
        for each in children:
            each.kill()
        grants = said_by(children)
        assert most_at_once(grants, PERIOD) <= PERMITS
        assert sum(n for n, *_ in grants) >= PERMITS
        assert clock() - began < 2 * PATIENCE

    @pytest.mark.slow
    @pytest.mark.parametrize("blocking", [True, False])
    def test_nor_if_some_are_stopped_and_killed(self, child, using, name, blocking):
        dice, seeds = random.Random(name), iter(range(100))
        children = [child(hammer, name, next(seeds), blocking) for _ in range(4)]
        ended = []
        for _ in range(8):
            time.sleep(PERIOD)
            victim = dice.randrange(4)
            if dice.random() < 0.5:
                children[victim].signal(signal.SIGSTOP)
                time.sleep(2 * PERIOD)
                children[victim].signal(signal.SIGCONT)
            else:
                children[victim].kill()
                ended.append(children[victim])
                children[victim] = child(hammer, name, next(seeds), blocking)
        for each in children:
            each.kill()
        grants = said_by(ended + children)
        assert most_at_once(grants, PERIOD) <= PERMITS
        assert sum(n for n, *_ in grants) >= 2 * PERMITS

    def test_one_that_was_stopped_at_the_head_of_the_line_is_passed_over(
        self, child, kind, using, name
    ):
        limiter = RateLimiter(name, PERMITS, PERIOD, using=using)
        stopped = child(hammer, name, 1, True)
        stopped.line()
        acquired = False
        while not acquired:
            eventually(lambda: limiter.info().waiting)
            stopped.signal(signal.SIGSTOP)
            try:
                acquired = limiter.acquire(timeout=PATIENCE)
                assert acquired
            except LockUnavailable:  # it was stopped while it read or wrote the file of SQLite
                assert kind == "sqlite"
            stopped.signal(signal.SIGCONT)
        for _ in range(PERMITS):
            stopped.line()
        stopped.kill()


def test_a_limiter_that_forgets_too_early_is_found(brief, name, monkeypatch):
    """This is the control: the checks of these tests find one that grants too much."""
    right = RateLimiter._counts_until
    monkeypatch.setattr(RateLimiter, "_counts_until", lambda *args: right(*args) - PERIOD / 2)
    limiter, timed, grants = RateLimiter(name, PERMITS, PERIOD), Timed(brief.store), []
    try:
        until = clock() + 2 * PERIOD
        while clock() < until:
            assert limiter.acquire(timeout=PATIENCE)
            grants.append([1, *timed.last])
    finally:
        del brief.store.apply
    assert most_at_once(grants, PERIOD) > PERMITS


@pytest.mark.shared
@pytest.mark.faults
class TestNetwork:
    def test_who_waits_outlasts_an_outage(self, proxy, name):
        if proxy is None:
            return
        limiter = RateLimiter(name, 1, PERIOD)
        assert answer(limiter.acquire)
        with ThreadPoolExecutor(1) as threads:
            waiting = threads.submit(limiter.acquire, timeout=PATIENCE)
            eventually(lambda: limiter.info().waiting)
            proxy.refuse()
            time.sleep(PERIOD)
            proxy.heal()
            assert waiting.result(2 * PATIENCE)
        assert answer(limiter.info).taken <= 1

    def test_who_does_not_wait_is_told_of_an_outage(self, proxy, name):
        if proxy is None:
            return
        limiter = RateLimiter(name, 1, PERIOD)
        assert answer(limiter.acquire)
        proxy.refuse()
        with pytest.raises(LockUnavailable):
            limiter.acquire()

    def test_a_lost_reply_takes_once(self, proxy, name):
        if proxy is None:
            return
        limiter = RateLimiter(name, 3, 10 * PATIENCE)
        assert answer(limiter.acquire)
        lost = proxy.lose_reply()
        assert limiter.acquire(timeout=PATIENCE)
        assert lost.wait(PATIENCE)
        proxy.heal()
        assert answer(limiter.info).taken == 2


def test_a_grant_whose_answer_is_late_is_not_used(brief, name, monkeypatch):
    """Its process was stopped: others may count it no more by the time it would be used."""
    monkeypatch.setattr(rate_limiter, "_LATE", 0.0)
    monkeypatch.setattr(rate_limiter, "_LATE_PART", 0.1)
    limiter, store = RateLimiter(name, 2, 1.0), brief.store
    apply, late = store.apply, [0.2]

    def slow(directory, *args, **kwargs):
        revision = apply(directory, *args, **kwargs)
        if late and directory == f"rate-limiter:{name}":
            time.sleep(late.pop())
        return revision

    monkeypatch.setattr(store, "apply", slow)
    began = clock()
    assert limiter.acquire(2)
    granted_at = clock()
    assert granted_at - began >= 0.2
    assert limiter.info().taken == 2
    assert limiter.acquire(timeout=PATIENCE)
    assert clock() - began >= 1.2
