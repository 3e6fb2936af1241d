"""RateLimiter: at most so many permits in any period, on every backend."""

import asyncio
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from distlock import LockBusy, LockTimeout, LockUnavailable, locks
from distlock.backends.store import Delete
from distlock.concurrency.clock import clock
from distlock.recipes import RateLimiter, permits, rate_limiter
from distlock.recipes.membership import Membership
from distlock.records.shared_backend import sweep_every_kind
from distlock.registry import KEPT
from distlock.types.values import LONGEST_PERIOD
from tests.children import write_line
from tests.contract.actors import PATIENCE
from tests.contract.forks import WAYS, forked
from tests.contract.watch import eventually
from tests.recipes.every_kind import pytest_generate_tests  # noqa: F401 - pytest calls it
from tests.recipes.losing import Losing

#: seconds; longer than a test takes
LONG = 10 * PATIENCE


@pytest.fixture
def limiter(using, name):
    return RateLimiter(name, 3, LONG, using=using)


@pytest.fixture
def losing(limiter, monkeypatch):
    return Losing(monkeypatch, f"rate-limiter:{limiter.name}")


def take(using, name, permits, n=1, period=LONG):
    """Return whether this process gets permits at once."""
    return RateLimiter(name, permits, period, using=using).acquire(n, blocking=False)


def taken(limiter):
    return limiter.info().taken


def test_there_are_no_more_than_so_many(limiter, actor, other, using, name):
    assert limiter.acquire()
    assert actor(other).call(take, using, name, 3).result(PATIENCE)
    assert not limiter.acquire(2, blocking=False)
    assert limiter.acquire(timeout=0)
    assert not limiter.acquire(timeout=0)
    assert not actor(other).call(take, using, name, 3).result(PATIENCE)
    info = limiter.info()
    assert (info.permits, info.period, info.taken, info.waiting) == (3, LONG, 3, ())


def test_they_count_for_a_period(using, name, actor, other):
    limiter, began = RateLimiter(name, 2, 1.0, using=using), clock()
    assert limiter.acquire(2)
    granted = clock()
    assert not limiter.acquire(blocking=False)
    assert limiter.acquire(2, timeout=PATIENCE)
    assert clock() - began >= 1.0
    assert actor(other).call(take_one, using, name).result(PATIENCE)
    assert clock() - granted >= 2.0
    assert taken(limiter) <= 2


def take_one(using, name):
    return RateLimiter(name, 2, 1.0, using=using).acquire(timeout=PATIENCE)


def test_of_a_dead_process_they_count_for_a_period_from_the_next_look(using, name, child, kind):
    if kind == "local":
        return
    dead = child(_take_and_say, name)
    assert dead.line() == "True"
    dead.kill()
    limiter, began = RateLimiter(name, 1, 1.0, using=using), clock()
    assert limiter.acquire(timeout=PATIENCE)
    assert clock() - began >= 1.0


def _take_and_say(name):
    """As a child: take the only permit."""
    write_line(RateLimiter(name, 1, 1.0).acquire())
    time.sleep(PATIENCE)


@pytest.fixture
def later(monkeypatch):
    """Let seconds go by for rate limiters, and forget what this process knows: another begins."""
    gone = [0.0]

    def later(seconds, *, begins=False):
        gone[0] += seconds
        if begins:
            permits.first_seen.cache_clear()

    for module in (permits, rate_limiter):
        monkeypatch.setattr(module, "clock", lambda: clock() + gone[0])
    return later


def test_a_process_that_begins_goes_on_from_what_others_have_seen(using, name, later):
    limiter = RateLimiter(name, 2, 1000, using=using)
    assert limiter.acquire(blocking=False)
    later(900)
    assert limiter.acquire(blocking=False)  # beside it stands that the first one counts for 900 s
    later(0, begins=True)
    assert not limiter.acquire(blocking=False)
    later(90)
    assert not limiter.acquire(blocking=False)
    later(60)
    assert limiter.acquire(blocking=False)
    assert not limiter.acquire(blocking=False)
    later(0, begins=True)
    assert not limiter.acquire(blocking=False)
    later(840)  # the second one counts for 990 s now
    assert not limiter.acquire(blocking=False)
    later(20)
    assert limiter.acquire(blocking=False)


def test_so_it_does_though_no_process_lives_for_a_period(using, name, later):
    limiter = RateLimiter(name, 1, 1000, using=using)
    assert limiter.acquire(blocking=False)
    for _ in range(4):
        later(200)
        assert not limiter.acquire(blocking=False)
        later(0, begins=True)
        assert not limiter.acquire(blocking=False)
    later(150)
    assert not limiter.acquire(blocking=False)
    later(60)
    assert limiter.acquire(blocking=False)


def test_first_come_first_served(using, name):
    limiter = RateLimiter(name, 2, 1.5, using=using)
    assert limiter.acquire(2)
    order = []

    def wait(who, n):
        assert RateLimiter(name, 2, 1.5, using=using).acquire(n, timeout=PATIENCE)
        order.append(who)

    with ThreadPoolExecutor(2) as threads:
        first = threads.submit(wait, "first", 2)
        eventually(lambda: len(limiter.info().waiting) == 1)
        second = threads.submit(wait, "second", 1)
        eventually(lambda: len(limiter.info().waiting) == 2 or order)
        first.result(PATIENCE)
        second.result(PATIENCE)
    assert order == ["first", "second"]
    assert limiter.info().waiting == ()


def test_one_who_waits_leaves_when_its_time_is_over(limiter):
    assert limiter.acquire(3)
    assert not limiter.acquire(timeout=0.2)
    eventually(lambda: not limiter.info().waiting)
    assert taken(limiter) == 3


def test_a_task_that_is_cancelled_takes_nothing(limiter):
    async def cancelled():
        assert await limiter.aacquire(2)
        waiting = asyncio.create_task(limiter.aacquire(2))
        while not (await limiter.ainfo()).waiting:
            await asyncio.sleep(0.01)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting

    asyncio.run(cancelled())
    eventually(lambda: not limiter.info().waiting)
    assert taken(limiter) == 2
    assert limiter.acquire(blocking=False)


def test_an_answer_that_was_lost_takes_once(limiter, losing):
    losing.replies = 1
    assert limiter.acquire(2)
    assert losing.lost == 1
    assert taken(limiter) == 2
    assert limiter.acquire(blocking=False)


def test_so_it_does_though_others_have_taken_meanwhile(limiter, losing, using, name):
    losing.replies = 1
    losing.then = lambda: take(using, name, 3, 2)
    assert limiter.acquire()
    assert taken(limiter) == 3


def test_a_request_that_comes_late_takes_nothing(limiter, losing):
    losing.late = 1
    assert limiter.acquire()
    assert losing.come() is None
    assert taken(limiter) == 1


def test_one_that_gets_no_answer_takes_nothing(limiter, losing):
    losing.replies = 1
    with pytest.raises(LockUnavailable) as caught:
        limiter.acquire(2, blocking=False)
    assert caught.value.maybe_applied
    eventually(lambda: taken(limiter) == 0)
    losing.late = 1
    with pytest.raises(LockUnavailable):
        limiter.acquire(2, blocking=False)
    eventually(lambda: not locks["default"].shared.cleanup.pending)
    assert losing.come() is None
    assert taken(limiter) == 0


def test_a_call_that_was_given_up_and_goes_on_takes_nothing(limiter, using, monkeypatch):
    assert limiter.acquire()
    records, calls = locks[using].shared.records, []
    change = records.change

    def noted(*args, **kwargs):
        calls.append((args, kwargs))
        return change(*args, **kwargs)

    monkeypatch.setattr(records, "change", noted)
    assert not limiter.acquire(3, blocking=False)
    assert limiter.acquire(blocking=False)
    before = locks[using].store.read(f"rate-limiter:{limiter.name}").records
    for args, kwargs in calls[:1]:
        change(*args, **kwargs)
    assert locks[using].store.read(f"rate-limiter:{limiter.name}").records == before


@pytest.mark.parametrize("kept_back", ["before", "after"])
def test_a_cancelled_task_whose_request_is_under_way_takes_nothing(
    limiter, using, monkeypatch, kept_back
):
    store, asked, go_on = locks[using].store, threading.Event(), threading.Event()
    apply = store.apply

    def slow(directory, *args):
        if asked.is_set() or directory != f"rate-limiter:{limiter.name}":
            return apply(directory, *args)  # that of another test is taken back by and by
        asked.set()
        revision = apply(directory, *args) if kept_back == "after" else None
        go_on.wait(PATIENCE)
        return apply(directory, *args) if kept_back == "before" else revision

    async def cancelled():
        task = asyncio.create_task(limiter.aacquire(2))
        await asyncio.to_thread(asked.wait, PATIENCE)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    assert limiter.acquire()
    monkeypatch.setattr(store, "apply", slow)
    asyncio.run(cancelled())
    go_on.set()
    eventually(lambda: not locks[using].shared.cleanup.pending)
    eventually(lambda: taken(limiter) == 1)
    assert limiter.acquire(2, timeout=0)


def test_a_place_in_line_survives_a_lost_answer(using, name, monkeypatch):
    limiter = RateLimiter(name, 1, 0.5, using=using)
    assert limiter.acquire()
    losing, order = Losing(monkeypatch, f"rate-limiter:{name}", "permits"), []

    def wait(who):
        assert limiter.acquire(timeout=PATIENCE)
        order.append(who)

    with ThreadPoolExecutor(2) as threads:
        first = threads.submit(wait, "first")
        eventually(lambda: limiter.info().waiting)
        losing.replies = 2
        second = threads.submit(wait, "second")
        first.result(PATIENCE)
        second.result(PATIENCE)
    assert losing.lost == 2
    assert order == ["first", "second"]


def test_one_who_has_lost_its_place_outlasts_another_outage(using, name, monkeypatch):
    limiter, joining = RateLimiter(name, 1, 2.0, using=using), Membership.joining
    assert limiter.acquire()
    is_away = [True, False, True]

    def join(*args, **kwargs):
        if is_away and is_away.pop(0):
            raise LockUnavailable("away")
        return joining(*args, **kwargs)

    monkeypatch.setattr(Membership, "joining", join)
    with ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(limiter.acquire, timeout=PATIENCE)
        eventually(lambda: limiter.info().waiting)
        found = limiter._store.read(limiter._directory).records
        places = [key for key in found if key.startswith("h/")]
        assert limiter._store.apply(limiter._directory, [*map(Delete, places)])
        assert take(using, name, 2, period=2.0)
        assert waiting.result(PATIENCE)
    assert is_away == []


def test_processes_that_say_another_number_go_by_that(limiter, using, name):
    assert limiter.acquire(3)
    assert take(using, name, 5, 2)
    assert not take(using, name, 5)
    assert not limiter.acquire(blocking=False)
    assert taken(limiter) == 5
    # What was taken for a longer time counts for that.
    assert not take(using, name, 5, period=0.01)


def test_a_dead_one_at_the_head_of_the_line_is_passed_over(using, name, child, kind, monkeypatch):
    if kind == "local":
        return
    limiter = RateLimiter(name, 1, 0.5, using=using)
    assert limiter.acquire()
    dead = child(_wait_and_say, name)
    dead.line()
    eventually(lambda: limiter.info().waiting)
    dead.kill()
    began = clock()
    assert limiter.acquire(timeout=PATIENCE)
    assert clock() - began >= 0.5


def _wait_and_say(name):
    """As a child: wait for long."""
    write_line("waits")
    RateLimiter(name, 1, LONG).acquire()


@pytest.mark.shared
@pytest.mark.parametrize("way", WAYS)
def test_the_child_of_a_fork_takes_permits_of_its_own(limiter, way):
    assert limiter.acquire()
    assert forked(lambda: limiter.acquire(2, timeout=0), way=way)
    assert not forked(lambda: limiter.acquire(timeout=0.1), way=way)
    assert taken(limiter) == 3


def test_it_decorates_functions(using, name):
    @RateLimiter(name + ":{account}", 1, LONG, using=using, on_busy="skip", busy_result="skipped")
    def ask(account):
        return f"asked {account}"

    @RateLimiter(name + ":{account}", 1, LONG, using=using, timeout=0.05)
    async def aask(account):
        return f"asked {account}"

    assert [ask("a"), ask("a"), ask(account="b")] == ["asked a", "skipped", "asked b"]
    with pytest.raises(LockTimeout, match=r"no permit was left, of 1 in .*; waited for 0\.05 s"):
        asyncio.run(aask("a"))
    assert asyncio.run(aask("c")) == "asked c"


def test_a_limiter_that_was_used_by_itself_still_tells_names_apart(using, name):
    limiter = RateLimiter(name + ":{account}", 1, LONG, using=using, on_busy="skip")
    assert not taken(limiter)

    @limiter
    def ask(account):
        return f"asked {account}"

    assert [ask("a"), ask("b"), ask("a")] == ["asked a", "asked b", None]
    assert not taken(limiter)


def test_blocks_take_one_permit_each(using, name):
    limiter = RateLimiter(name, 2, LONG, using=using, on_busy="raise")
    with limiter:
        pass

    async def enter():
        async with limiter:
            pass
        async with limiter.attempt() as acquired:
            return acquired

    assert not asyncio.run(enter())
    with limiter.attempt() as acquired:
        assert not acquired
    with pytest.raises(LockBusy, match="no permit was left"), limiter:
        pass
    assert taken(limiter) == 2


def test_a_sweep_leaves_what_counts(limiter, using):
    assert limiter.acquire(3)
    sweep_every_kind(locks[using])
    assert taken(limiter) == 3
    assert KEPT[limiter.kind].total_seconds() > LONGEST_PERIOD


def test_many_grants_are_written_together(using, name, monkeypatch):
    monkeypatch.setattr(permits, "_APART", 4)
    limiter = RateLimiter(name, 60, LONG, using=using)
    for _ in range(30):
        assert limiter.acquire(2, blocking=False)
    assert not limiter.acquire(blocking=False)
    assert taken(limiter) == 60
    (record,) = locks[using].store.read(f"rate-limiter:{name}").records.values()
    assert len(record.value["grants"]) <= 2 * 4
    assert sum(n for _, n, *_ in record.value["grants"]) == 60


@pytest.mark.parametrize(
    ("arguments", "wrong"),
    [
        ((0, 60), "permits must be at least 1 .*, got 0"),
        (("3", 60), "permits must be a whole number, not '3'"),
        ((3, 0), "period must be finite and greater than 0, got 0"),
        ((3, 8 * 86400), "period must be at most 604800 seconds, got 691200"),
        ((3, "60"), "period must be a number of seconds, not '60'"),
        ((10**5000, 60), "permits must be at least 1 .*, got a"),
        ((3, -(10**5000)), "period must be finite and greater than 0, got a"),
    ],
)
def test_wrong_arguments_are_named(arguments, wrong):
    with pytest.raises((TypeError, ValueError), match=wrong):
        RateLimiter("wrong", *arguments)


def test_more_than_there_can_be_raises_at_once(limiter):
    with pytest.raises(ValueError, match="n must be at most permits=3, got 4"):
        limiter.acquire(4)
    with pytest.raises(ValueError, match="n must be at least 1 .*, got 0"):
        limiter.acquire(0)
    with pytest.raises(ValueError, match="timeout for a non-blocking call"):
        limiter.acquire(1, False, 3)
