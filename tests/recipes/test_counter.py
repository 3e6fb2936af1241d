"""Counter: all processes add to one number, on every backend, and each add counts once."""

import asyncio
from concurrent.futures import ThreadPoolExecutor

import pytest

from distlock import LockUnavailable, locks
from distlock.recipes import Counter
from distlock.recipes.counter import MOST
from distlock.records.shared_backend import sweep_every_kind
from tests.children import write_line
from tests.contract.actors import PATIENCE
from tests.contract.forks import WAYS, forked
from tests.recipes.every_kind import pytest_generate_tests  # noqa: F401 - pytest calls it
from tests.recipes.losing import Losing
from tests.recipes.test_seats_faults import answer


@pytest.fixture
def counter(using, name):
    return Counter(name, using=using)


def add(using, name, times):
    """Return what each add has returned."""
    return [Counter(name, using=using).add(1) for _ in range(times)]


def test_it_begins_with_0_and_adds(counter, using, name):
    assert counter.value == 0
    assert counter.info().by is None
    assert counter.add(3) == 3
    assert counter.add() == 4
    assert counter.add(-6) == -2
    assert Counter(name, using=using).get() == -2
    info = counter.info()
    assert info.value == -2
    assert info.by
    assert info.token


def test_it_outlives_who_has_added_and_a_sweep(counter, actor, other, using, name):
    assert actor(other).call(add, using, name, 2).result(PATIENCE) == [1, 2]
    sweep_every_kind(locks[using])
    assert counter.get() == 2


def test_each_add_of_many_returns_another_value(counter, actor, other, using, name):
    actors = [actor(other) for _ in range(3)]
    adding = [one.call(add, using, name, 5) for one in actors]
    with ThreadPoolExecutor(3) as threads:
        here = [threads.submit(add, using, name, 5) for _ in range(3)]
        found = [value for one in (*adding, *here) for value in one.result(PATIENCE)]
    assert sorted(found) == list(range(1, 31))
    assert counter.get() == 30


def test_tasks_add(using, name):
    async def both():
        counter = Counter(name, using=using)
        await asyncio.gather(counter.aadd(2), counter.aadd(3))
        return await counter.aget()

    assert asyncio.run(both()) == 5


@pytest.fixture
def losing(counter, monkeypatch):
    return Losing(monkeypatch, f"counter:{counter.name}")


def test_it_has_64_bits(counter):
    counter.add(MOST)
    with pytest.raises(OverflowError, match="n=1: .*is 9223372036854775807"):
        counter.add(1)
    with pytest.raises(OverflowError, match="n=a.* int.*: .*is 9223372036854775807"):
        counter.add(10**5000)  # Python makes no text of it
    assert counter.get() == MOST


@pytest.mark.parametrize("n", [1.5, "1", True, None])
def test_it_adds_whole_numbers_only(counter, n):
    with pytest.raises(TypeError, match="n must be an int"):
        counter.add(n)


def test_an_add_whose_answer_was_lost_counts_once(counter, losing):
    counter.add(1)
    losing.replies = 1
    assert counter.add(5) == 6
    assert counter.get() == 6
    assert losing.lost == 1


def test_so_it_does_though_others_have_added_meanwhile(counter, losing, using, name):
    losing.replies = 1
    losing.then = lambda: [Counter(name, using=using).add(10) for _ in range(3)]
    assert counter.add(1) == 1
    assert counter.get() == 31


def test_and_though_the_answer_to_the_next_try_is_lost_too(counter, losing):
    losing.requests, losing.replies = 1, 1
    assert counter.add(1) == 1
    assert counter.get() == 1
    assert losing.lost == 2


def test_one_that_was_lost_and_comes_late_counts_once(counter, losing, using, name):
    losing.late = 1
    assert counter.add(1) == 1
    assert losing.come() is None, "another one was made in its place"
    assert counter.get() == 1


def test_in_a_long_outage_it_says_that_it_may_have_been_counted(brief, name, monkeypatch):
    counter = Counter(name)
    losing = Losing(monkeypatch, f"counter:{name}")
    counter.add(1)
    losing.replies = 1
    losing.then = lambda: setattr(losing, "away", True)
    with pytest.raises(LockUnavailable) as caught:
        counter.add(1)
    assert caught.value.maybe_applied
    losing.away = False
    assert counter.add(1) == 3


def test_what_never_was_sent_is_not_tried_again(counter, losing):
    losing.away = True
    with pytest.raises(LockUnavailable) as caught:
        counter.add(1)
    assert not caught.value.maybe_applied
    assert losing.asked == 1


def test_a_call_that_was_given_up_and_goes_on_adds_nothing(counter, using, monkeypatch):
    counter.add(1)
    records, calls = locks[using].shared.records, []
    change = records.change

    def noted(*args, **kwargs):
        calls.append((args, kwargs))
        return change(*args, **kwargs)

    monkeypatch.setattr(records, "change", noted)
    counter.add(1)
    counter.add(1)
    for args, kwargs in calls:
        change(*args, **kwargs)
    assert counter.get() == 3


@pytest.mark.shared
@pytest.mark.parametrize("way", WAYS)
def test_the_child_of_a_fork_counts_by_itself(counter, way):
    assert counter.add() == 1
    assert forked(lambda: [counter.add(), counter.add()], way=way) == [2, 3]
    assert counter.add() == 4


def add_for_ever(name):
    """As a child: add, and say what came of it."""
    while True:
        write_line(Counter(name).add())


@pytest.mark.shared
@pytest.mark.faults
class TestFaults:
    def test_the_killed_have_counted_what_they_said(self, child, using, name):
        children = [child(add_for_ever, name) for _ in range(3)]
        for each in children:
            for _ in range(5):
                each.line()
        children[0].kill()
        for _ in range(5):
            children[1].line()
        for each in children[1:]:
            each.kill()
        said = [int(line) for each in children for line in each.rest() if line.isdecimal()]
        assert len(said) == len(set(said))
        # Each of them may have been killed between an add and saying so.
        assert 0 <= Counter(name, using=using).get() - len(said) - 5 * 4 <= 3

    def test_a_lost_reply_counts_once(self, proxy, kind, name):
        if proxy is None:
            return
        counter = Counter(name)
        answer(counter.get)
        assert counter.add() == 1
        lost = proxy.lose_reply(b"request_put" if kind == "etcd" else b"result")
        assert counter.add(5) == 6
        assert lost.wait(PATIENCE)
        proxy.heal()
        assert answer(counter.get) == 6
