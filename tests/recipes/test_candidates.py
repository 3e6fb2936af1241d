"""Elections in one process: what is decided above the store, and what comes at a certain moment."""

import asyncio
import gc
import os
import threading
from contextlib import suppress

import pytest

from distlock import (
    Lock,
    LockError,
    LockLost,
    LockNotHeld,
    LockUnavailable,
    ValueNotAgreed,
    locks,
)
from distlock.backends.local import LocalBackend
from distlock.backends.store import Delete, Put
from distlock.recipes import Election
from distlock.signals import lock_broken, lock_released
from tests.contract.actors import PATIENCE
from tests.contract.watch import eventually, passed
from tests.core.interrupting import interrupted
from tests.recipes.standing import names, terms
from tests.recipes.wrapping import in_thread


@pytest.fixture
def kind():
    return "local"


class TestArguments:
    @pytest.mark.parametrize(
        ("arguments", "error", "said"),
        [
            ({"name": ""}, ValueError, "name"),
            ({"name": "x" * 556}, ValueError, "name"),
            ({"name": 5}, TypeError, "5"),
            ({"candidate": ""}, ValueError, "candidate"),
            ({"candidate": "x" * 201}, ValueError, "candidate"),
            ({"candidate": 5}, TypeError, "candidate must be a str, not 5"),
            ({"priority": "high"}, TypeError, "priority must be a whole number, not 'high'"),
            ({"priority": True}, TypeError, "priority"),
            ({"order": "last"}, ValueError, "order must be one of .*, got 'last'"),
            ({"data": {1}}, TypeError, "data"),
            ({"data": {"x": object()}}, TypeError, "data"),
            ({"data": {"x": "y" * 5000}}, ValueError, "data"),
            ({"on_lost": 5}, TypeError, "on_lost"),
            ({"using": 5}, TypeError, "using"),
        ],
    )
    def test_wrong_ones_are_named(self, arguments, error, said):
        with pytest.raises(error, match=said):
            Election(**{"name": "scheduler", **arguments})

    def test_wrong_ones_of_methods_change_nothing(self, using, name, stand):
        election = Election(name, using=using)
        with pytest.raises(ValueError, match="timeout"):
            election.campaign(blocking=False, timeout=1)
        with pytest.raises(LockError, match="'B' does not stand"):
            election.appoint("B")
        with pytest.raises(TypeError, match="candidate"):
            election.appoint(5)
        with pytest.raises(TypeError, match="token"):
            election.step_down("last")
        with pytest.raises(LockNotHeld):
            election.resign()
        assert election.info().candidates == ()
        a = stand("A")
        eventually(a.leads)
        with pytest.raises(ValueNotAgreed, match="order='succession'"):
            Election(name, order="succession", using=using).campaign()
        assert names(election) == ["A"]
        with pytest.raises(LockError, match="leads already"):
            a.election.campaign()
        assert a.leads()

    def test_who_is_appointed_no_more_is_asked_to_step_down(self, using, name, stand):
        operator = Election(name, using=using)
        b = stand("B", order="appointed")
        assert not b.leads()
        operator.appoint("B")
        eventually(b.leads)
        b.election.resign()
        b = stand("B", order="appointed")
        eventually(b.leads)  # it is appointed by its name
        operator.appoint(None)
        eventually(lambda: b.told)
        b.election.resign()
        assert operator.leader() is None
        assert operator.info().appointed is None

    def test_one_follows_the_leader_because_somebody_wants_that(self, using, name, stand):
        a = stand("A")
        eventually(a.leads)
        b, c = stand("B"), stand("C")
        Election(name, using=using).appoint(Election(name, using=using).candidates()[2])
        assert a.leads()
        a.election.resign()
        eventually(c.leads)
        c.election.resign()
        eventually(b.leads)


class TestOneProcess:
    def test_campaign_tries_once_or_for_some_time(self, using, name, stand):
        eventually(stand("A").leads)
        other = Election(name, "B", using=using)
        assert not other.campaign(blocking=False)
        assert not other.campaign(timeout=0.05)
        assert names(other) == ["A"]
        with pytest.raises(LockNotHeld):
            other.check()

    def test_one_who_stands_can_be_stopped_from_another_thread(self, using, name, stand):
        a = stand("A")
        eventually(a.leads)
        b = Election(name, "B", using=using)
        result = in_thread(b.campaign)
        eventually(lambda: names(b) == ["A", "B"])
        b.resign()
        assert result() is False
        assert names(b) == ["A"]

    def test_one_who_is_stopped_as_its_term_begins_leads_no_more(self, using, wrapped, name):
        election, apply = Election(name, using=using), wrapped("apply")
        apply.before = lambda store, directory, changes, *_: begins(changes) and election.resign()
        assert not election.campaign()
        assert not election.leading
        assert is_free(election)

    def test_nothing_is_run_for_one_who_is_stopped_while_it_stands(self, using, name, stand):
        eventually(stand("A").leads)
        b, ran = Election(name, "B", using=using), []
        result = in_thread(b.run, ran.append, "B")
        eventually(lambda: names(b) == ["A", "B"])
        b.resign()
        assert isinstance(result(), LockNotHeld)
        assert not ran

    def test_any_thread_may_use_it(self, using, name, stand):
        a = stand("A")
        eventually(a.leads)
        a.thread.join(PATIENCE)  # it belongs to the object, and not to the thread
        assert a.election.term == Lock(f"election:{name}", using=using).info().token
        a.election.verify()
        a.election.resign()

    def test_one_who_resigns_late_leaves_the_next_term_alone(self, using, name):
        """Another thread leads by then with the same candidate."""
        election = Election(name, using=using)
        election.campaign()
        first = election.term

        def campaign_again(**_):
            lock_released.disconnect(campaign_again)
            assert in_thread(election.campaign, timeout=PATIENCE)()

        lock_released.connect(campaign_again)
        election.resign()
        assert election.term > first
        election.resign()

    def test_run_calls_again_after_a_loss(self, using, name):
        election = Election(name, using=using)
        led = []

        def work():
            led.append(election.term)
            if len(led) < 3:
                Election(name, using=using).force_release(election.term)
                eventually(lambda: not election.leading)
                if len(led) == 1:
                    election.check()
            return "done"

        assert election.run(work) == "done"
        assert len(led) == 3
        assert led == sorted(led)
        assert election.leader() is None
        assert [why for _, why in terms(election)] == ["broken", "broken", "resigned"]

    def test_who_broke_a_lock_knows_better_than_who_lost_it(self, using, name, stand):
        a = stand("A")
        eventually(a.leads)

        def wait_for_the_loss(**_):
            eventually(lambda: terms(a.election) == [("A", "lost")])

        lock_broken.connect(wait_for_the_loss)
        try:
            Election(name, using=using).force_release(a.election.term)
        finally:
            lock_broken.disconnect(wait_for_the_loss)
        assert terms(a.election) == [("A", "broken")]

    def test_run_resigns_and_raises_what_the_function_raises(self, using, name):
        election = Election(name, using=using)
        with pytest.raises(ZeroDivisionError):
            election.run(lambda: 1 / 0)
        assert election.leader() is None
        other = Lock(f"{name}:other", using=using)

        def lose_another():
            with other:
                other.force_release(other.token)
                eventually(lambda: not other.held)

        with pytest.raises(LockLost, match="other"):
            election.run(lose_another)
        assert len(election.history()) == 2

    def test_only_so_many_terms_are_remembered(self, using, name):
        election = Election(name, "x" * 200, using=using)
        for _ in range(52):
            with election:
                pass
        history = election.history()
        assert len(history) == 50
        assert [one.term for one in history] == sorted(one.term for one in history)

    @pytest.mark.brief
    def test_a_leader_that_is_garbage_leads_no_more(self, using, name, stand):
        election = Election(name, "A", using=using)
        election.campaign()
        b = stand("B")
        del election
        gc.collect()
        eventually(b.leads)
        assert names(b.election) == ["B"]


def is_free(election):
    """Whether nobody stands, and nobody has the lock."""
    info, lock = election.info(), Lock(f"election:{election.name}", using=election.using)
    return not info.candidates and not lock.locked()


def begins(changes):
    """Whether a change writes down that a term has begun."""
    return any(
        isinstance(one, Put) and one.key == "history" and not one.value["terms"][-1][-1]
        for one in changes
    )


class TestInterrupts:
    """At each moment at which Python would deliver a signal."""

    def test_who_is_interrupted_in_its_campaign_neither_stands_nor_leads(self, using, name):
        elections, moment = [], 0
        while True:
            moment += 1
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

    def test_who_is_interrupted_while_it_resigns_leads_no_more(self, using, name):
        elections, moment = [], 0
        while True:
            moment += 1
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
    @pytest.mark.brief
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
        eventually(lambda: (both.append(a.leads() and b.leads()), b.leads())[1])
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

    @pytest.mark.brief
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


class TestForks:
    def test_the_child_neither_leads_nor_stands(self, using, name):
        reader, writer = os.pipe()
        with Election(name, using=using) as election:
            pid = os.fork()
            if pid == 0:
                try:
                    said = f"{election.leading} {election.candidate}"
                    with suppress(LockNotHeld):
                        election.resign()
                        said += " resigned"
                    os.write(writer, said.encode())
                finally:
                    os._exit(0)
            os.waitpid(pid, 0)
            said = os.read(reader, 1000).decode().split()
            assert said[0] == "False"
            assert said[1] != election.candidate
            assert len(said) == 2
            election.verify()
        os.close(reader)
        os.close(writer)


class TestCosts:
    def test_a_hand_over_costs_the_same_however_many_stand(self, using, wrapped, name, stand):
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
            eventually(lambda: quiet(counted))
            before = total(counted)
            elections[0].resign()
            assert threads[1]()
            eventually(lambda: quiet(counted))
            costs[number] = total(counted) - before
            for place, one in enumerate(elections[1:], 1):
                threads[place]()
                one.resign()
        assert costs[32] == costs[4]
        assert costs[4] <= 8


def total(counted):
    return sum(len(one.calls) for one in counted)


def quiet(counted):
    before = total(counted)
    passed(0.1)
    return total(counted) == before
