"""Barrier and DoubleBarrier: all pass together or none does, on every backend."""

import asyncio
import itertools
import threading
from concurrent.futures import ThreadPoolExecutor
from threading import BrokenBarrierError

import pytest

from distlock import LockError, LockNotHeld, ValueNotAgreed, locks
from distlock.recipes import Barrier, DoubleBarrier
from distlock.records.shared_backend import sweep_every_kind
from tests.contract.actors import PATIENCE
from tests.contract.watch import eventually
from tests.recipes.every_kind import pytest_generate_tests  # noqa: F401 - pytest calls it
from tests.recipes.test_crowds import Counter
from tests.recipes.test_queue_reasons import Unprintable


@pytest.fixture
def threads():
    with ThreadPoolExecutor(40) as pool:
        yield pool


def wait(using, name, parties=None, timeout=None, **options):
    """Wait at a barrier; return the number, or "broken"."""
    try:
        return Barrier(name, parties, using=using, **options).wait(timeout)
    except BrokenBarrierError:
        return "broken"


def waiting(using, name):
    return Barrier(name, using=using).n_waiting


def come(threads, using, name, parties, number, **options):
    """Let so many wait, each in a thread; return their futures once they are there."""
    before = waiting(using, name)
    there = [threads.submit(wait, using, name, parties, **options) for _ in range(number)]
    eventually(lambda: waiting(using, name) == before + number)
    return there


def outcomes(futures):
    return [future.result(PATIENCE) for future in futures]


def both(threads, using, name):
    """Let two wait who pass; return their numbers."""
    return sorted(outcomes([threads.submit(wait, using, name, 2) for _ in "ab"]))


def records(using, name, kind="barrier"):
    """Return the keys of the parties that are there."""
    keys = locks[using].store.read(f"{kind}:{name}").records
    return {key for key in keys if key.startswith("h/")}


class TestPassing:
    def test_nobody_passes_before_all_have_come(self, threads, using, name):
        there = come(threads, using, name, 3, 2)
        assert not any(future.done() for future in there)
        last = threads.submit(wait, using, name, 3)
        assert sorted(outcomes([*there, last])) == [0, 1, 2]
        assert last.result() == 2
        assert records(using, name) == set()

    @pytest.mark.faults
    def test_a_barrier_for_one_lets_it_pass(self, using, name):
        assert wait(using, name, 1) == 0

    def test_it_is_used_again_and_again(self, threads, using, name):
        """A fast one may come for the next generation before a slow one has read of the last."""
        rounds, counts, barrier = 3, itertools.count(), Barrier(name, 3, using=using)

        def work():
            seen = []
            for _ in range(rounds):
                next(counts)
                barrier.wait(PATIENCE)
                seen.append(next(counts))
                barrier.wait(PATIENCE)
            return seen

        for seen in outcomes([threads.submit(work) for _ in range(3)]):
            assert [number // 6 for number in seen] == list(range(rounds))
            assert all(number % 6 >= 3 for number in seen)

    @pytest.mark.faults
    def test_who_is_too_much_is_of_the_next_generation(self, threads, using, name):
        there = [threads.submit(wait, using, name, 2) for _ in range(6)]
        assert sorted(outcomes(there)) == [0, 0, 0, 1, 1, 1]

    def test_five_workers_add_to_a_counter_behind_a_barrier(self, actor, other, using, name):
        """Nobody adds before all five are there, and nobody reads before all five have added."""
        workers = [actor("thread"), actor("thread"), actor("thread"), actor(other), actor(other)]
        there = [worker.call(add_and_read, using, name, 5) for worker in workers]
        found = [future.result(PATIENCE) for future in there]
        assert {seen for _, seen in found} == {5}
        assert sorted(before for before, _ in found) == [0, 1, 2, 3, 4]

    def test_tasks_and_threads_wait_for_each_other(self, threads, using, name):
        async def tasks():
            return await asyncio.gather(*(Barrier(name, 3, using=using).await_() for _ in "ab"))

        last = threads.submit(wait, using, name, 3)
        assert sorted([*asyncio.run(tasks()), last.result(PATIENCE)]) == [0, 1, 2]


def add_and_read(using, name, parties):
    """Come, add one to a number that all share, come again, and read it."""
    from distlock.recipes import Config  # noqa: PLC0415

    barrier, number = Barrier(name, parties, using=using), Config(name, using=using)
    barrier.wait(PATIENCE)
    while True:
        found = number.get(0)
        try:
            number.set(found.value + 1, if_version=found.version)
            break
        except LockError:
            pass
    barrier.wait(PATIENCE)
    return found.value, number.get().value


class TestBreaking:
    def test_a_time_out_breaks_it_for_all(self, threads, using, name):
        there = come(threads, using, name, 4, 2)
        assert wait(using, name, 4, 0.1) == "broken"
        assert outcomes(there) == ["broken", "broken"]

    def test_who_gave_up_does_not_stay_counted(self, threads, using, name):
        barrier = Barrier(name, 3, using=using)
        with pytest.raises(BrokenBarrierError, match="waited for too long"):
            barrier.wait(0.05)
        Barrier(name, 3, using=using).reset()  # the record of the first one is still there
        there = come(threads, using, name, 3, 2)
        assert not any(future.done() for future in there)
        assert barrier.wait() == 2
        assert sorted(outcomes(there)) == [0, 1]

    def test_it_stays_broken_until_it_is_reset(self, threads, using, name):
        barrier = Barrier(name, 2, using=using)
        with pytest.raises(BrokenBarrierError):
            barrier.wait(0)
        assert (barrier.broken, barrier.n_waiting) == (True, 0)
        assert wait(using, name, 2) == "broken"
        barrier.reset()
        assert not barrier.broken
        assert both(threads, using, name) == [0, 1]

    @pytest.mark.faults
    def test_abort_breaks_it_for_all(self, threads, using, name):
        there = come(threads, using, name, 3, 2)
        barrier = Barrier(name, 3, using=using)
        barrier.abort()
        assert outcomes(there) == ["broken", "broken"]
        assert "aborted" in barrier.info().broken
        assert wait(using, name, 3) == "broken"

    @pytest.mark.faults
    def test_reset_breaks_it_for_those_who_wait_only(self, threads, using, name):
        there = come(threads, using, name, 2, 1)
        Barrier(name, 2, using=using).reset()
        assert outcomes(there) == ["broken"]
        assert both(threads, using, name) == [0, 1]

    def test_a_cancelled_task_breaks_it_and_leaves_no_record(
        self, threads, using, name, monkeypatch
    ):
        [there] = come(threads, using, name, 3, 1)
        store, loop_waits = locks[using].store, []
        watch = store.watch

        def watched(*args):
            if threading.current_thread() is threading.main_thread():
                loop_waits.append(args)
            return watch(*args)

        async def cancelled():
            monkeypatch.setattr(store, "watch", watched)
            task = asyncio.create_task(Barrier(name, 3, using=using).await_())
            while not loop_waits:
                await asyncio.sleep(0.01)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task

        asyncio.run(cancelled())
        assert there.result(PATIENCE) == "broken"
        eventually(lambda: len(records(using, name)) <= 1)


@pytest.mark.faults
class TestAction:
    def test_the_last_one_calls_it_before_anyone_passes(self, threads, using, name):
        called = []

        def act():
            called.append(threading.current_thread().name)
            called.append(sum(future.done() for future in there))

        there = come(threads, using, name, 3, 2, action=act)
        last = Barrier(name, 3, act, using=using)
        assert last.wait() == 2
        assert called == [threading.current_thread().name, 0]
        assert sorted(outcomes(there)) == [0, 1]

    @pytest.mark.parametrize("error", [ZeroDivisionError, Unprintable])
    def test_if_it_fails_all_are_told(self, threads, using, name, error):
        def fail():
            raise error

        there = come(threads, using, name, 2, 1)
        with pytest.raises(error):
            Barrier(name, 2, fail, using=using).wait()
        assert outcomes(there) == ["broken"]

    def test_if_another_barrier_is_broken_in_it_all_are_told(self, threads, using, name):
        inner = Barrier(f"{name}:inner", 2, using=using)
        inner.abort()
        there = come(threads, using, name, 2, 1)
        outer = Barrier(name, 2, inner.wait, using=using)
        with pytest.raises(BrokenBarrierError):
            outer.wait()
        assert outcomes(there) == ["broken"]

    def test_a_task_calls_it_on_another_thread(self, using, name):
        called = []

        async def act():
            barrier = Barrier(name, 1, lambda: called.append(threading.get_ident()), using=using)
            return await barrier.await_()

        assert asyncio.run(act()) == 0
        assert called != [threading.get_ident()]


@pytest.mark.faults
class TestParties:
    def test_who_says_another_number_is_told_both(self, threads, using, name):
        there = come(threads, using, name, 3, 1)
        with pytest.raises(ValueNotAgreed, match=r"parties=4.* is for 3"):
            Barrier(name, 4, using=using).wait()
        assert waiting(using, name) == 1
        Barrier(name, using=using).abort()
        assert outcomes(there) == ["broken"]

    def test_when_nobody_waits_another_number_is_agreed(self, threads, using, name):
        assert wait(using, name, 1) == 0
        assert both(threads, using, name) == [0, 1]

    def test_who_says_none_takes_that_of_the_others(self, threads, using, name):
        with pytest.raises(ValueNotAgreed, match="no other party has given it"):
            Barrier(name, using=using).wait()
        [there] = come(threads, using, name, 2, 1)
        assert wait(using, name) == 1
        assert there.result(PATIENCE) == 0

    @pytest.mark.parametrize(
        ("parties", "error"), [(0, ValueError), (501, ValueError), ("3", TypeError)]
    )
    def test_bad_numbers_are_refused_by_name(self, parties, error):
        with pytest.raises(error, match="^parties must"):
            Barrier("x", parties)


@pytest.mark.faults
class TestSweeping:
    def test_a_sweep_forgets_what_nobody_uses(self, using, name):
        wait(using, name, 1)
        sweep_every_kind(locks[using])
        assert f"barrier:{name}" not in set(locks[using].store.directories())
        assert wait(using, name, 1) == 0

    def test_a_sweep_leaves_those_who_wait(self, threads, using, name):
        [there] = come(threads, using, name, 2, 1)
        sweep_every_kind(locks[using])
        assert wait(using, name, 2) == 1
        assert there.result(PATIENCE) == 0


PARTIES = 32


@pytest.mark.faults
@pytest.mark.usefixtures("only_hints")
@pytest.mark.parametrize(
    "parties", [pytest.param(2, marks=pytest.mark.slow), pytest.param(PARTIES)]
)
def test_requests_for_each_party(parties, threads, backend, using, name, monkeypatch):
    """They do not grow with the number of parties: the first two and the last one ask for more."""
    counter, there = Counter(monkeypatch, backend.store), []
    for number in range(1, parties + 1):  # one by one: who is woken for each looks that often
        there.append(threads.submit(wait, using, name, parties))
        if number < parties:
            eventually(lambda: waiting(using, name) == number)  # noqa: B023 - called at once
    assert sorted(outcomes(there)) == list(range(parties))
    assert counter.count / parties < 16


class TestDoubleBarrier:
    def test_all_begin_together_and_end_together(self, threads, using, name):
        inside, left = [], []

        def measure():
            with DoubleBarrier(name, 3, using=using):
                inside.append(len(left))
                eventually(lambda: len(inside) % 3 == 0)
                left.append(len(inside))

        for count in (3, 6):
            outcomes([threads.submit(measure) for _ in range(3)])
            assert inside == [0] * 3 + [3] * (count - 3)
        assert left == [3] * 3 + [6] * 3
        assert records(using, name, "double-barrier") == set()

    @pytest.mark.faults
    def test_the_last_one_to_leave_does_not_wait(self, threads, using, name):
        def measure():
            barrier = DoubleBarrier(name, 2, using=using)
            barrier.enter()
            return barrier.leave()

        other = threads.submit(measure)
        barrier = DoubleBarrier(name, 2, using=using)
        place = barrier.enter(PATIENCE)
        eventually(lambda: is_ready(using, name))
        assert barrier.leave(0) == place
        assert other.result(PATIENCE) == 1 - place

    def test_who_fails_inside_breaks_it_for_all(self, threads, using, name):
        def measure():
            with pytest.raises(BrokenBarrierError), DoubleBarrier(name, 2, using=using):
                pass

        other = threads.submit(measure)
        with pytest.raises(ZeroDivisionError), DoubleBarrier(name, 2, using=using):
            raise ZeroDivisionError
        other.result(PATIENCE)

    @pytest.mark.faults
    def test_one_too_many_whose_time_is_over_breaks_nothing(self, threads, using, name):
        first, second, third = (DoubleBarrier(name, 2, using=using) for _ in "abc")
        entered = threads.submit(first.enter)
        second.enter(PATIENCE)
        entered.result(PATIENCE)
        with pytest.raises(BrokenBarrierError, match="others were in it"):
            third.enter(0.05)
        left = threads.submit(first.leave)
        assert sorted([second.leave(PATIENCE), left.result(PATIENCE)]) == [0, 1]

    @pytest.mark.faults
    def test_tasks_enter_and_leave(self, using, name):
        async def measure():
            async with DoubleBarrier(name, 2, using=using) as barrier:
                return len((await barrier.ainfo()).waiting)

        async def both():
            return await asyncio.gather(measure(), measure())

        assert asyncio.run(both()) == [2, 2]

    @pytest.mark.faults
    def test_who_has_not_entered_cannot_leave(self, using, name):
        barrier = DoubleBarrier(name, 1, using=using)
        with pytest.raises(LockNotHeld):
            barrier.leave()
        barrier.enter()
        with pytest.raises(LockError, match="entered already"):
            barrier.enter()
        barrier.leave()


def is_ready(using, name):
    found = locks[using].store.read(f"double-barrier:{name}").records
    return any(key.startswith("r/") for key in found)
