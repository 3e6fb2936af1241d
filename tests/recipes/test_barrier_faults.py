"""Barriers whose parties are killed, stopped, interrupted, or cut off: one outcome for all."""

import asyncio
import gc
import itertools
import random
import signal
import threading
import time
import uuid
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from threading import BrokenBarrierError

import pytest

from distlock import LockError, LockLost, LockNotHeld, LockUnavailable, locks
from distlock.backends import background
from distlock.backends.store import Delete, Put
from distlock.concurrency.clock import clock
from distlock.recipes import Barrier, DoubleBarrier
from tests.children import read_line, write_line
from tests.contract.actors import PATIENCE
from tests.contract.watch import eventually
from tests.core.interrupting import interrupted
from tests.recipes.conftest import UNHURRIED
from tests.recipes.every_kind import pytest_generate_tests  # noqa: F401 - pytest calls it
from tests.recipes.test_barrier import both, come, outcomes, records, wait, waiting
from tests.recipes.test_seats_faults import answer, stop
from tests.recipes.wrapping import in_thread


@pytest.fixture
def threads():
    with ThreadPoolExecutor(16) as pool:
        yield pool


def come_and_tell(name, parties, timeout=None):
    """As a child: wait at a barrier, and say what has come of it; then stay until told to end."""
    background.LAST_ANSWER = PATIENCE  # the machine may stand still
    barrier = Barrier(name, parties)
    try:
        write_line(barrier.wait(timeout))
    except BrokenBarrierError:
        write_line("broken")
    read_line()


def act_for_ever(name, parties):
    """As a child: come, and call an action that does not end."""
    Barrier(name, parties, lambda: (write_line("acts"), time.sleep(1000))).wait()


def be_inside(name, parties):
    """As a child: enter a double barrier, and stay inside."""
    DoubleBarrier(name, parties).enter()
    write_line("inside")
    read_line()


def there(using, name, number):
    eventually(lambda: waiting(using, name) == number)


@pytest.mark.shared
@pytest.mark.brief
@pytest.mark.faults
class TestProcesses:
    def test_one_that_is_killed_breaks_it_for_all(self, child, threads, long_leases, using, name):
        killed = child(come_and_tell, name, 4)
        there(using, name, 1)
        long_leases()
        others = come(threads, using, name, 4, 2)
        killed.kill()
        assert outcomes(others) == ["broken", "broken"]

    def test_one_that_is_killed_and_comes_again_is_not_counted_twice(
        self, child, threads, long_leases, using, name
    ):
        killed = child(come_and_tell, name, 3)
        there(using, name, 1)
        long_leases()
        killed.kill()
        told = outcomes([threads.submit(wait, using, name, 3) for _ in "abc"])
        assert sorted(map(str, told)) in (
            ["broken"] * 3,
            # Its record had gone before the others came.
            ["0", "1", "2"],
        )

    @pytest.mark.slow
    def test_one_that_is_stopped_past_its_lease_is_told_the_same_as_all(
        self, child, kind, threads, using, name
    ):
        stopped = child(come_and_tell, name, 3)
        there(using, name, 1)
        others = come(threads, using, name, 3, 1)
        stop(stopped, kind)
        assert outcomes(others) == ["broken"]
        stopped.signal(signal.SIGCONT)
        assert stopped.line() == "broken"

    @pytest.mark.slow
    def test_one_that_is_killed_while_it_acts_breaks_it_for_all(self, child, threads, using, name):
        others = come(threads, using, name, 3, 2)
        killed = child(act_for_ever, name, 3)
        assert killed.line() == "acts"
        killed.kill()
        assert outcomes(others) == ["broken", "broken"]

    @pytest.mark.slow
    def test_one_that_is_killed_inside_a_double_barrier_breaks_it(self, child, using, name):
        killed = child(be_inside, name, 2)
        barrier = DoubleBarrier(name, 2, using=using)
        barrier.enter(PATIENCE)
        assert killed.line() == "inside"
        killed.kill()
        with pytest.raises(BrokenBarrierError, match="gone"):
            barrier.leave()

    @pytest.mark.slow
    def test_a_run_that_was_killed_inside_does_not_stop_the_next_one(self, child, using, name):
        parties = [child(be_inside, name, 2) for _ in "ab"]
        assert [party.line() for party in parties] == ["inside", "inside"]
        for party in parties:
            party.kill()
        again = [child(be_inside, name, 2) for _ in "ab"]
        assert [party.line() for party in again] == ["inside", "inside"]

    @pytest.mark.slow
    def test_what_a_run_left_broken_does_not_stop_the_next_one(self, child, threads, using, name):
        parties = [child(come_and_tell, name, 3, 0.5) for _ in range(2)]
        assert [party.line() for party in parties] == ["broken", "broken"]
        assert wait(using, name, 3) == "broken"
        for party in parties:
            party.kill()
        eventually(lambda: not Barrier(name, using=using).broken)
        assert both(threads, using, name) == [0, 1]


@pytest.mark.shared
@pytest.mark.slow
@pytest.mark.brief
def test_a_storm_of_kills(child, threads, using, name):
    """Whoever passes does so with all of its generation: nobody's number is missing."""
    for number in range(4):
        here = f"{name}:{number}"
        parties = [child(come_and_tell, here, 3) for _ in range(3)]
        time.sleep(random.uniform(0, 0.4))
        killed = parties.pop(random.randrange(3))
        killed.kill()
        told = set(killed.rest())
        here_too = threads.submit(wait, using, here, 3, 10)
        told |= {party.line() for party in parties}
        here_too.result(PATIENCE)
        assert told <= {"0", "1", "2"} or told == {"broken"}, told


@pytest.mark.shared
@pytest.mark.slow
class TestNetwork:
    @pytest.mark.parametrize("how", ["refuse", "silence"])
    def test_an_outage_is_told_and_leaves_no_party(self, proxy, threads, name, how):
        if proxy is None:
            return
        answer(lambda: waiting("default", name))  # it is connected
        waiting_there = [threads.submit(outcome, name, 3, 6) for _ in "ab"]
        there("default", name, 2)
        getattr(proxy, how)()
        assert set(outcomes(waiting_there)) <= {"unknown", "broken"}
        proxy.heal()
        eventually(lambda: answer(lambda: not waiting("default", name)))

    def test_who_waits_outlasts_a_short_outage(self, proxy, threads, name, monkeypatch):
        if proxy is None:
            return
        store, waits = locks["default"].store, threading.Event()
        watch = store.watch

        def watched(*args):
            waits.set()
            return watch(*args)

        monkeypatch.setattr(store, "watch", watched)
        [one] = come(threads, "default", name, 2, 1)
        assert waits.wait(PATIENCE)  # it has been told that it has come
        proxy.refuse()
        time.sleep(0.5)
        proxy.heal()
        answer(lambda: waiting("default", name))  # a party whose coming is not answered breaks it
        last = Barrier(name, 2).wait(PATIENCE)
        assert sorted([one.result(PATIENCE), last]) == [0, 1]


def outcome(name, parties, timeout):
    try:
        return wait("default", name, parties, timeout)
    except LockUnavailable:
        return "unknown"


def come_noted(idents, name, parties):
    """Wait at a barrier in a thread, whose identifier is noted before it comes."""

    def come_after_note():
        idents.append(threading.get_ident())
        return wait("default", name, parties)

    return in_thread(come_after_note)


def says(changes, word):
    """Return whether a change says something of a generation."""
    return any(
        isinstance(one, Put) and one.key == "generation" and one.value[word] for one in changes
    )


class TestRaces:
    """In one process, with the test between a party and the store."""

    @pytest.fixture(autouse=True)
    def records_of_this_process(self, eager):
        """Nobody is lost but by what the test does."""

    def test_one_whose_time_is_over_just_as_the_last_one_comes_goes_on(self, wrapped, name):
        applied, came = wrapped("apply"), []

        def let_the_last_one_come(store, directory, changes, *_):
            if says(changes, "broken") and not came:
                came.append(in_thread(wait, "default", name, 2))
                eventually(lambda: says_full(store, directory))
            elif came and not is_main() and gets_ready(changes):
                # The one whose time is over has said before that it is there.
                eventually(lambda: ready_of(store.read(directory)))

        applied.before = let_the_last_one_come
        assert wait("default", name, 2, 0.05) == 0
        assert came[0]() == 1

    @pytest.mark.usefixtures("only_hints")
    def test_two_who_say_at_once_that_they_are_there_pass(self, wrapped, name):
        """Neither has seen it of the other when it says so: one of them looks after both."""
        applied, both_said = wrapped("apply"), threading.Barrier(2, timeout=PATIENCE)
        applied.before = lambda store, _, changes, *more: gets_ready(changes) and both_said.wait()
        began = clock()
        parties = [in_thread(wait, "default", name, 2) for _ in "ab"]
        assert sorted(party() for party in parties) == [0, 1]
        assert clock() - began < UNHURRIED

    @pytest.mark.usefixtures("only_hints")
    @pytest.mark.parametrize("goes", [0, 1, 2])
    def test_others_are_told_at_once_if_one_goes(self, wrapped, name, goes):
        """The first one sees if another one goes, the second one if the first one does."""
        watch, parties, began = wrapped("watch"), [], clock()
        store, directory = locks["default"].store, f"barrier:{name}"
        for number in range(3):
            parties.append(in_thread(wait, "default", name, 4))
            there("default", name, number + 1)
        here = parties_of(store.read(directory))
        # The first one has seen the last one, and the second one waits.
        eventually(
            lambda: any(key is None and since >= here[2].created for _, since, key in watch.calls)
        )
        eventually(lambda: any(key == here[0].key for *_, key in watch.calls))
        store.apply(directory, [Delete(here[goes].key)])
        told = [party() for party in parties]
        own = told.pop(goes)
        assert own == "broken" or isinstance(own, LockLost)
        assert told == ["broken", "broken"]
        assert clock() - began < UNHURRIED

    def test_what_one_said_who_finds_it_broken_goes_with_its_word(self, threads, name):
        first, second = inside(threads, name)
        store, directory = locks["default"].store, f"double-barrier:{name}"
        left = in_thread(first.leave)
        eventually(lambda: ready_of(store.read(directory)))
        second.abort()
        assert isinstance(left(), BrokenBarrierError)
        eventually(lambda: not ready_of(store.read(directory)))

    def test_the_last_one_is_told_if_it_was_broken_just_before(self, wrapped, name):
        applied, aborted = wrapped("apply"), []

        def abort(store, directory, changes, *_):
            if says(changes, "full") and not aborted:
                aborted.append(Barrier(name, 2))
                aborted[0].abort()

        applied.before = abort
        first = in_thread(wait, "default", name, 2)
        there("default", name, 1)
        assert wait("default", name, 2) == "broken"
        assert first() == "broken"

    def test_those_whose_records_are_all_gone_change_nothing_for_the_next_ones(self, threads, name):
        """For example if all of them were stopped past their leases."""
        lost, store = inside(threads, name), locks["default"].store
        theirs = records("default", name, "double-barrier")
        store.apply(f"double-barrier:{name}", [*map(Delete, theirs)])
        others = inside(threads, name)
        for one in lost:
            with pytest.raises(LockLost):
                one.leave()
        left = in_thread(others[0].leave)
        assert sorted([others[1].leave(PATIENCE), left()]) == [0, 1]

    def test_one_that_is_interrupted_before_others_see_it_breaks_it_for_them(self, wrapped, name):
        read, watch = wrapped("read"), wrapped("watch")
        first, waits, goes_on = [], [], threading.Event()

        def keep_back(store, directory, *_):
            if threading.get_ident() in first and parties_of(read.original(store, directory)):
                goes_on.wait(PATIENCE)

        read.before = keep_back
        result = come_noted(first, name, 3)
        eventually(lambda: locks["default"].store.directories(f"barrier:{name}"))

        async def cancelled():
            task = asyncio.create_task(Barrier(name, 3).await_())
            while not waits:
                await asyncio.sleep(0.01)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task

        watch.before = lambda *_: is_main() and waits.append(True)
        asyncio.run(cancelled())
        eventually(lambda: len(records("default", name)) == 1)
        goes_on.set()
        assert result() == "broken"

    def test_a_slow_one_is_told_though_the_next_generation_has_passed(self, wrapped, name):
        read, slow, goes_on = wrapped("read"), [], threading.Event()

        def keep_back(store, directory, *_):
            if threading.get_ident() in slow:
                found = read.original(store, directory)
                first = [party.key.removeprefix("h/") for party in parties_of(found)[:1]]
                if {*first} & {*ready_of(found)}:  # it came first, and has said that it is ready
                    goes_on.wait(PATIENCE)

        read.before = keep_back
        first = come_noted(slow, name, 2)
        there("default", name, 1)
        assert wait("default", name, 2) == 1
        second = in_thread(wait, "default", name, 2)
        there("default", name, 1)
        assert (wait("default", name, 2), second()) == (1, 0)
        goes_on.set()
        assert first() == 0

    def test_one_too_many_does_not_miss_those_who_passed_between_its_looks(self, wrapped, name):
        applied, read = wrapped("apply"), wrapped("read")
        third, looks = [], itertools.count()
        has_looked, goes_on = threading.Event(), threading.Event()

        def fill_late(store, directory, changes, *_):
            if says(changes, "full"):
                has_looked.wait(PATIENCE)

        def keep_back(*_):
            if threading.get_ident() in third and next(looks) == 2:  # it has come, and looked once
                has_looked.set()
                goes_on.wait(PATIENCE)

        applied.before, read.before = fill_late, keep_back
        parties = [in_thread(wait, "default", name, 2)]
        there("default", name, 1)
        parties.append(in_thread(wait, "default", name, 2))
        there("default", name, 2)
        result = come_noted(third, name, 2)
        assert sorted(party() for party in parties) == [0, 1]
        goes_on.set()
        assert sorted([wait("default", name, 2), result()]) == [0, 1]

    def test_a_lost_answer_at_any_moment(self, wrapped, name, monkeypatch):
        """Whoever is told something is told the same."""
        applied = wrapped("apply")
        for number in itertools.count():
            numbers, here = itertools.count(), f"{name}:{number}"

            def lose(store, directory, *args, here=here, numbers=numbers, number=number):
                if directory.endswith(here) and next(numbers) == number:
                    applied.original(store, directory, *args)
                    raise LockUnavailable("its answer was lost")

            applied.before = lose
            parties = [in_thread(outcome, here, 2, 1) for _ in "ab"]
            told = {party() for party in parties} - {"unknown"}
            assert told in ({0, 1}, {0}, {1}, {"broken"}), (number, told)
            applied.before = lambda *_: None
            eventually(lambda here=here: not waiting("default", here))
            if next(numbers) <= number and told == {0, 1}:  # there was nothing more to lose
                assert number > 5
                break


class TestLeases:
    """In one process, with leases that end soon."""

    @pytest.fixture(autouse=True)
    def records_of_this_process(self, brief):
        """What nobody keeps is gone soon."""

    def test_it_begins_anew_when_no_object_is_left_that_was_told_that_it_is_broken(self, name):
        barrier = Barrier(name, 1)
        barrier.abort()
        assert wait("default", name, 1) == "broken"
        del barrier
        eventually(lambda: gc.collect() >= 0 and not Barrier(name).broken)
        assert wait("default", name, 1) == 0

    @pytest.mark.slow
    def test_one_whose_thread_ends_inside_a_double_barrier_breaks_it(self, name):
        left_open, barrier = DoubleBarrier(name, 2), DoubleBarrier(name, 2)
        in_thread(left_open.enter)
        barrier.enter(PATIENCE)
        with pytest.raises(BrokenBarrierError, match="gone"):
            barrier.leave(PATIENCE)

    @pytest.mark.parametrize("step", [7, pytest.param(1, marks=pytest.mark.slow)])
    def test_an_interrupt_at_any_moment(self, step):
        """The other one passes, or is told that it is broken; nothing is left."""
        for moment in itertools.count(1, step):
            name = uuid.uuid4().hex
            mate, barrier = Barrier(name, 2), Barrier(name, 2)
            other = in_thread(mate.wait)
            there("default", name, 1)
            interrupt = interrupted(barrier.wait, moment)
            with suppress(LockError):
                barrier.abort()
            assert other() == 0 or isinstance(other(), BrokenBarrierError)
            for one in (barrier, mate):
                one.reset()
            eventually(lambda name=name: not records("default", name))
            if interrupt is None:
                assert moment > 50, "the interrupts did not reach the code"
                return

    def test_an_interrupt_as_it_leaves_a_double_barrier(self, threads):
        """Either it is still inside, or the others are told without the garbage collector."""
        gc.disable()
        try:
            for moment in itertools.count(1, 6):
                first, other = inside(threads, uuid.uuid4().hex)
                leaving = threads.submit(other.leave, 2 * PATIENCE)
                interrupt = interrupted(first.leave, moment)
                with suppress(LockNotHeld):
                    first.leave(PATIENCE)
                with suppress(BrokenBarrierError):
                    leaving.result(PATIENCE)
                if interrupt is None:
                    assert moment > 50, "the interrupts did not reach the code"
                    return
        finally:
            gc.enable()

    @pytest.mark.slow
    def test_an_interrupt_while_entering_or_leaving_a_double_barrier(self):
        names = []
        for moment in itertools.count(1, 11):
            name = uuid.uuid4().hex
            names.append(name)
            barrier = DoubleBarrier(name, 1)

            def enter_and_leave(barrier=barrier):
                with barrier:
                    pass

            if interrupted(enter_and_leave, moment) is None:
                break
            del barrier, enter_and_leave
            gc.collect()
        for name in names:
            eventually(lambda: not records("default", name, "double-barrier"))  # noqa: B023


def inside(threads, name):
    """Return two double barriers that were entered, by this thread and one that goes on."""
    barriers = [DoubleBarrier(name, 2) for _ in "ab"]
    entered = threads.submit(barriers[1].enter)
    barriers[0].enter(PATIENCE)
    entered.result(PATIENCE)
    return barriers


def is_main():
    return threading.current_thread() is threading.main_thread()


def gets_ready(changes):
    return any(isinstance(one, Put) and one.key.startswith("r/") for one in changes)


def ready_of(snapshot):
    return [key.removeprefix("r/") for key in snapshot.records if key.startswith("r/")]


def parties_of(snapshot):
    return [record for key, record in snapshot.records.items() if key.startswith("h/")]


def says_full(store, directory):
    record = store.read(directory).records.get("generation")
    return record is not None and record.value["full"]
