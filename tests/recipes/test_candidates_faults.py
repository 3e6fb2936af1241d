"""Elections in one process: interrupts, losses, forks, and what a hand-over costs."""

import asyncio
import itertools
import logging
import threading
from contextlib import suppress

import pytest

from distlock import (
    Lock,
    LockError,
    LockLost,
    LockNotHeld,
    LockUnavailable,
    locks,
)
from distlock.backends.local import LocalBackend
from distlock.backends.store import Delete, Put
from distlock.concurrency.clock import clock
from distlock.recipes import Election
from tests.contract.actors import PATIENCE
from tests.contract.forks import forked
from tests.contract.watch import eventually, passed
from tests.core.interrupting import interrupted
from tests.recipes.conftest import UNHURRIED
from tests.recipes.standing import begins, is_free, names, terms
from tests.recipes.wrapping import in_thread

#: every day at some moments
at_moments = pytest.mark.parametrize("step", [7, pytest.param(1, marks=pytest.mark.slow)])


@pytest.fixture
def kind():
    return "local"


class TestInterrupts:
    """At each moment at which Python would deliver a signal, or at some of them."""

    @at_moments
    def test_who_is_interrupted_in_its_campaign_neither_stands_nor_leads(self, using, name, step):
        elections = []
        for moment in itertools.count(1, step):
            election = Election(f"{name}:{moment}", using=using)
            elections.append(election)
            if interrupted(election.campaign, moment) is None:
                break
            if election.leading:  # it came after that
                election.resign()
        assert moment > 150
        election.resign()
        for election in elections:
            eventually(lambda: is_free(election))  # noqa: B023
            assert election.campaign(timeout=PATIENCE)
            election.resign()

    @at_moments
    def test_who_is_interrupted_while_it_resigns_leads_no_more(self, using, name, step):
        elections = []
        for moment in itertools.count(1, step):
            election = Election(f"{name}:{moment}", using=using)
            elections.append(election)
            election.campaign()
            if interrupted(election.resign, moment) is None:
                break
            with suppress(LockError):
                election.resign()  # what the interrupt came before
            assert not election.leading
        assert moment > 100
        for election in elections:
            eventually(lambda: is_free(election))  # noqa: B023

    @pytest.mark.parametrize("method", ["read", "apply"])
    def test_a_task_that_is_cancelled_leaves_nothing(self, using, wrapped, name, method):
        calls = wrapped(method)

        async def campaign(at):
            election = Election(f"{name}:{at}", using=using)
            loop, task = asyncio.get_running_loop(), asyncio.current_task()
            calls.calls.clear()

            def cancel(*_):
                if len(calls.calls) == at:
                    loop.call_soon_threadsafe(task.cancel)

            calls.before = cancel
            with suppress(asyncio.CancelledError):
                await election.acampaign()
            calls.before = lambda *_: None
            if election.leading:  # it comes after that, perhaps now
                with suppress(asyncio.CancelledError):
                    await election.aresign()
            return election

        for at in range(1, 6):
            election = asyncio.run(campaign(at))
            eventually(lambda: is_free(election))  # noqa: B023


class TestFailuresOfOthers:
    @pytest.mark.eager
    def test_the_term_of_one_who_resigned_while_it_began_has_ended(self, using, wrapped, name):
        apply, resigned, election = wrapped("apply"), [], Election(name, "A", using=using)

        def resign_before_it_is_told(store, directory, changes, conditions, *_):
            if begins(changes) and not resigned:
                apply.original(store, directory, changes, conditions)
                resigned.append(in_thread(election.resign)())

        apply.before = resign_before_it_is_told
        assert not election.campaign(timeout=PATIENCE)
        assert resigned
        assert terms(election) == [("A", "resigned")]
        eventually(lambda: is_free(election))

    @pytest.mark.eager
    def test_nobody_leads_whose_record_is_gone(self, using, wrapped, name):
        """etcd's Campaign returned without an error, and without its key."""
        apply, gone = wrapped("apply"), []

        def remove_the_record(store, directory, changes, *_):
            if begins(changes) and not gone:
                own = next(key for key in store.read(directory).records if key.startswith("h/"))
                gone.append(own)
                apply.original(store, directory, [Delete(own)], [])

        apply.before = remove_the_record
        with Election(name, "A", using=using) as election:
            assert gone
            records = locks[using].store.read(f"election:{name}").records
            assert len([key for key in records if key.startswith("h/")]) == 1
            assert names(election) == ["A"]
            assert election.leader().term == election.term

    @pytest.mark.eager
    def test_a_term_that_would_begin_after_a_later_one_does_not(self, using, wrapped, name, stand):
        apply, overtaken = wrapped("apply"), []

        def overtake(store, directory, changes, *_):
            if begins(changes) and not overtaken:
                lock = Lock(f"election:{name}", using=using)
                overtaken.append(lock.force_release(lock.info().token))
                b = stand("B", order="succession", priority=9)
                eventually(b.leads)
                b.election.appoint("A")  # so that nobody is before it any more
                overtaken.append(b)

        apply.before = overtake
        a = stand("A", order="succession")
        eventually(lambda: len(overtaken) == 2)
        assert not a.leads()
        overtaken[1].election.resign()
        eventually(a.leads)
        assert terms(a.election) == [("B", "resigned"), ("A", "")]

    @pytest.mark.eager
    def test_the_loss_of_an_earlier_lease_is_told_late_and_ends_no_term(
        self, using, wrapped, name, stand, sent_events
    ):
        apply, overtaken, come, go_on = wrapped("apply"), [], threading.Event(), threading.Event()

        def overtake(store, directory, changes, *_):
            if begins(changes) and not overtaken:
                lock = Lock(f"election:{name}", using=using)
                overtaken.append(lock.force_release(lock.info().token))
                raise LockLost("as it began")

        def stand_still(record):  # whoever tells of the loss
            if (said := record.getMessage()).startswith("lost lock") and name in said:
                come.set()
                go_on.wait(PATIENCE)
            return True

        logger = logging.getLogger("distlock")
        logger.addFilter(stand_still)
        try:
            apply.before = overtake
            a = stand("A")
            eventually(a.leads)
            assert come.wait(PATIENCE)
        finally:
            go_on.set()
            logger.removeFilter(stand_still)
        sent_events.wait_for("lost", f"election:{name}")
        a.election.verify()
        assert a.told == []
        assert terms(a.election) == [("A", "")]

    @pytest.mark.brief
    def test_a_leader_whose_renewals_fail_knows_that_before_the_next_one_leads(
        self, using, monkeypatch, name, stand
    ):
        """Oban's leader went on leading for 19 days."""
        a = stand("A")
        eventually(a.leads)
        failing, renew = {a.election.term}, LocalBackend.renew

        def fail(backend, leases, deadline=None):
            if any(lease.token in failing for lease in leases):
                raise LockUnavailable("it does not answer")
            return renew(backend, leases, deadline)

        monkeypatch.setattr(LocalBackend, "renew", fail)
        b, both = stand("B"), []
        # In this order: time may pass between the two.
        eventually(lambda: (both.append(b.leads() and a.leads()), b.leads())[1])
        assert not any(both)
        eventually(lambda: a.told)
        assert names(b.election) == ["B"]
        assert terms(b.election) == [("A", "lost"), ("B", "")]

    @pytest.mark.brief
    def test_the_next_one_leads_though_nobody_can_be_told_of_the_loss(self, using, name, stand):
        a = stand("A")
        eventually(a.leads)
        b, go_on, told = stand("B"), threading.Event(), []

        def block(lease):
            told.append(lease)
            go_on.wait(PATIENCE)

        others = [Lock(f"{name}:{one}", using=using, on_lost=block) for one in range(32)]
        try:
            for other in others:
                other.acquire()
                other.force_release(other.token)
            eventually(lambda: len(told) == len(others))
            Lock(f"election:{name}", using=using).force_release(a.election.term)
            eventually(b.leads)
            assert not a.told
        finally:
            go_on.set()
            for other in others:
                with suppress(LockLost):
                    other.release()
        eventually(lambda: a.told)

    @pytest.mark.eager
    def test_one_leads_through_an_outage_that_costs_all_candidates_their_records(
        self, using, wrapped, name, stand
    ):
        """Curator's LeaderLatch had two leaders after it was connected again."""
        a = stand("A")
        eventually(a.leads)
        b, term = stand("B"), a.election.term
        store, directory = locks[using].store, f"election:{name}"
        before = set(store.read(directory).records)
        for key in before:
            if key.startswith("h/"):
                store.apply(directory, [Delete(key)])
        eventually(lambda: sorted(names(a.election)) == ["A", "B"])
        assert not before & {key for key in store.read(directory).records if key.startswith("h/")}
        assert a.election.term == term
        assert not b.leads()
        a.election.resign()
        eventually(b.leads)

    @pytest.mark.eager
    @pytest.mark.usefixtures("only_hints", "nobody_is_passed_over")
    def test_the_one_before_may_go_while_a_candidate_comes(self, using, wrapped, name, stand):
        """It has seen that one, and waits for it without looking again."""
        a = stand("A")
        eventually(a.leads)
        apply, resigned = wrapped("apply"), []

        def resign_before_it_stands(known, directory, changes, *_):
            if stands(changes) and not resigned:
                resigned.append(True)
                in_thread(a.election.resign)()

        apply.before = resign_before_it_stands
        b, began = Election(name, "B", using=using), clock()
        assert b.campaign(timeout=PATIENCE)
        assert resigned
        assert clock() - began < UNHURRIED / 2
        b.resign()

    @pytest.mark.eager
    def test_another_order_may_come_while_a_candidate_comes(self, using, wrapped, name, stand):
        a = stand("A")
        eventually(a.leads)
        b, apply, appointed = stand("B"), wrapped("apply"), []

        def appoint_before_it_stands(known, directory, changes, *_):
            if stands(changes) and not appointed:
                appointed.append(True)
                in_thread(a.election.appoint, "B")()

        apply.before = appoint_before_it_stands
        stand("C")
        assert appointed
        a.election.resign()
        eventually(b.leads)


class TestLostAnswers:
    def test_a_candidate_does_not_wait_for_itself(self, using, name, wrapped):
        """The answer to its change was lost, and it cannot be taken back for a time."""
        election, apply, mine = Election(name, using=using), wrapped("apply"), []
        with election:
            pass

        def lose(store, directory, changes, conditions, *rest):
            if directory == f"election:{name}" and stands(changes) and not mine:
                mine.extend(one.key for one in changes)
                apply.original(store, directory, changes, conditions, *rest)
                raise unanswered()
            if mine and {one.key for one in changes} & {*mine}:
                raise unanswered()

        apply.before = lose
        began = clock()
        assert election.campaign(timeout=PATIENCE)
        assert clock() - began < 5.0  # who waits for one before it, of its own process, looks then
        apply.before = lambda *_: None
        election.resign()


class TestForks:
    def test_the_child_neither_leads_nor_stands(self, using, name, way):
        def tell():
            seen = election.leading, election.candidate
            with pytest.raises(LockNotHeld):
                election.resign()
            return seen

        with Election(name, using=using) as election:
            leading, candidate = forked(tell, way=way)
            assert not leading
            assert candidate != election.candidate
            election.verify()


class TestCosts:
    @pytest.mark.usefixtures("only_hints")
    def test_a_hand_over_costs_the_same_however_many_stand(self, using, wrapped, name):
        counted = [wrapped(method) for method in ("read", "look", "apply")]
        costs = {}
        for number in (4, 32):
            group = f"{name}:{number}"
            elections = [Election(group, f"{one:02}", using=using) for one in range(number)]
            threads = []
            for one in elections:
                threads.append(in_thread(one.campaign))
                eventually(lambda: one.candidate in names(elections[0]))  # noqa: B023
            threads[0]()
            seen = []
            for place in range(3):
                eventually(lambda: quiet(counted))
                before = total(counted)
                elections[place].resign()
                assert threads[place + 1]()
                eventually(lambda: quiet(counted))
                seen.append(total(counted) - before)
            # Each candidate also looks now and then by itself: not in each of three hand-overs.
            costs[number] = min(seen)
            for place, one in enumerate(elections[3:], 3):
                threads[place]()
                one.resign()
        assert max(costs.values()) <= 4

    @pytest.mark.usefixtures("only_hints", "nobody_is_passed_over")
    def test_who_comes_after_others_looks_once(self, using, wrapped, name, stand):
        a = stand("A")
        eventually(a.leads)
        looks = wrapped("read_some")
        stand("B")
        passed(0.2)
        assert len(looks.calls) == 1
        stand("C")
        passed(0.2)
        assert len(looks.calls) == 2


def stands(changes):
    """Whether a change puts the record of a candidate."""
    return any(isinstance(one, Put) and one.key.startswith("h/") for one in changes)


def unanswered():
    error = LockUnavailable("no answer")
    error.maybe_applied = True
    return error


def total(counted):
    return sum(len(one.calls) for one in counted)


def quiet(counted):
    before = total(counted)
    passed(0.1)
    return total(counted) == before
