"""CountDownLatch: wait until something has happened so many times, on every backend."""

import asyncio
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest

from distlock import LockUnavailable, ValueNotAgreed, locks
from distlock.recipes import CountDownLatch
from distlock.records.shared_backend import sweep_every_kind
from distlock.registry import KEPT
from distlock.types.lease import Kind
from tests.contract.actors import PATIENCE
from tests.recipes.every_kind import pytest_generate_tests  # noqa: F401 - pytest calls it
from tests.recipes.losing import Losing


@pytest.fixture
def latch(using, name):
    return CountDownLatch(name, 3, using=using)


def count_down(using, name, times):
    """Return what was left each time."""
    return [CountDownLatch(name, 20, using=using).count_down() for _ in range(times)]


def wait(using, name):
    return CountDownLatch(name, using=using).wait(PATIENCE)


def test_it_opens_when_it_was_counted_down(latch, using, name):
    assert latch.count == 3
    assert not latch.wait(0)
    assert latch.count_down() == 2
    assert CountDownLatch(name, using=using).count == 2
    assert latch.info().began == 3
    assert not latch.wait(0)
    assert latch.count_down(5) == 0
    assert latch.wait(0)
    assert latch.count_down() == 0
    assert (latch.count, latch.info().began) == (0, 3)


def test_who_says_another_count_is_told_both(latch, using, name):
    other = CountDownLatch(name, 2, using=using)
    latch.count_down()
    for use in (other.count_down, lambda: other.wait(0), lambda: other.count):
        with pytest.raises(ValueNotAgreed, match=r"count=2: .* began with 3"):
            use()
    assert latch.count == 2


def test_each_of_many_counts(actor, other, using, name):
    latch = CountDownLatch(name, 20, using=using)
    actors = [actor(other) for _ in range(2)]
    waiting = actor(other).call(wait, using, name)
    counting = [one.call(count_down, using, name, 5) for one in actors]
    with ThreadPoolExecutor(3) as threads:
        here = [threads.submit(count_down, using, name, 5) for _ in range(2)]
        assert threads.submit(latch.wait, PATIENCE).result(2 * PATIENCE)
        left = [number for one in (*counting, *here) for number in one.result(PATIENCE)]
    assert sorted(left) == list(range(20))
    assert waiting.result(PATIENCE)


def test_tasks_wait(using, name):
    async def both():
        latch = CountDownLatch(name, 1, using=using)
        waiting = asyncio.create_task(latch.await_(PATIENCE))
        assert await latch.acount_down() == 0
        return await waiting, (await latch.ainfo()).count

    assert asyncio.run(both()) == (True, 0)


def test_a_sweep_forgets_it_only_some_time_after_it_has_opened(latch, using, monkeypatch):
    soon = timedelta(seconds=-60)  # the clocks of servers differ
    with monkeypatch.context() as patch:
        patch.setitem(KEPT, Kind.COUNT_DOWN_LATCH, soon)
        latch.count_down()
        sweep_every_kind(locks[using])
        assert latch.count == 2
        latch.count_down(2)
    sweep_every_kind(locks[using])
    assert latch.wait(0)
    monkeypatch.setitem(KEPT, Kind.COUNT_DOWN_LATCH, soon)
    sweep_every_kind(locks[using])
    assert latch.count == 3
    assert f"count-down-latch:{latch.name}" not in locks[using].store.directories(
        "count-down-latch:"
    )


@pytest.mark.usefixtures("only_hints")
def test_those_who_wait_are_woken_by_the_last_one(latch, using, name):
    with ThreadPoolExecutor(4) as threads:
        waiting = [threads.submit(wait, using, name) for _ in range(4)]
        latch.count_down()
        latch.count_down(2)
        assert all(one.result(PATIENCE) for one in waiting)


@pytest.fixture
def losing(latch, monkeypatch):
    return Losing(monkeypatch, f"count-down-latch:{latch.name}")


@pytest.mark.parametrize("count", [0, -1])
def test_it_begins_with_1_at_least(count):
    with pytest.raises(ValueError, match=f"count must be at least 1 .*, got {count}"):
        CountDownLatch("start", count)


@pytest.mark.parametrize("n", [0, -1])
def test_it_never_goes_up(latch, n):
    with pytest.raises(ValueError, match=f"n must be at least 1 .*, got {n}"):
        latch.count_down(n)


def test_without_a_count_others_have_to_say_it(latch, using, name):
    other = CountDownLatch(name, using=using)
    assert not other.wait(0)
    assert other.info().count is None
    for use in (other.count_down, lambda: other.count):
        with pytest.raises(ValueNotAgreed, match="no other process has given it"):
            use()
    latch.count_down()
    assert other.count_down() == 1


def test_a_lost_answer_counts_once(latch, losing, using, name):
    losing.replies = 1
    losing.then = lambda: CountDownLatch(name, 3, using=using).count_down()
    assert latch.count_down() == 2
    assert latch.count == 1


def test_a_lost_answer_to_the_last_one_opens_it(latch, losing):
    latch.count_down(2)
    losing.replies = 1
    assert latch.count_down() == 0
    assert latch.wait(0)


def test_in_a_long_outage_it_says_that_it_may_have_been_counted(brief, name, monkeypatch):
    latch = CountDownLatch(name, 3)
    losing = Losing(monkeypatch, f"count-down-latch:{name}")
    losing.requests = 1
    losing.then = lambda: setattr(losing, "away", True)
    with pytest.raises(LockUnavailable) as caught:
        latch.count_down()
    assert caught.value.maybe_applied
    losing.away = False
    assert latch.count == 3
