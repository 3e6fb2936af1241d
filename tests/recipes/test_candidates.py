"""Elections in one process: what is decided above the store, and what comes at a certain moment."""

import gc
from datetime import UTC, datetime

import pytest

from distlock import (
    Lock,
    LockError,
    LockLost,
    LockNotHeld,
    ValueNotAgreed,
    locks,
)
from distlock.backends.store import Put
from distlock.concurrency.clock import clock
from distlock.recipes import Election
from distlock.signals import lock_broken, lock_released
from tests.contract.actors import PATIENCE
from tests.contract.watch import eventually
from tests.recipes.conftest import UNHURRIED
from tests.recipes.standing import begins, is_free, names, terms
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
        with pytest.raises(LockNotHeld):
            election.resign()
        assert election.info().candidates == ()
        a = stand("A")
        eventually(a.leads)
        with pytest.raises(ValueNotAgreed, match="^order='succession': <Election .*> has order"):
            Election(name, order="succession", using=using).campaign()
        assert names(election) == ["A"]
        with pytest.raises(LockError, match="leads already"):
            a.election.campaign()
        assert a.leads()

    @pytest.mark.parametrize(
        ("method", "value", "said"),
        [
            (Election.appoint, 5, "candidate must be a str, not 5"),
            (Election.step_down, "last", "term must be an int, not 'last'"),
            (Election.force_release, "last", "term must be an int, not 'last'"),
            (Election.run, 5, "function must be callable, not 5"),
        ],
    )
    def test_wrong_ones_of_methods_are_named(self, using, name, method, value, said):
        election = Election(name, using=using)
        with pytest.raises(TypeError, match=f"^{said}$"):
            method(election, value)
        assert election.info().candidates == ()

    @pytest.mark.parametrize("way", [Election.resign, Election.check, Election.verify])
    def test_who_does_not_lead_is_told_so(self, using, name, way):
        election = Election(name, using=using)
        said = pytest.raises(LockNotHeld, match="^<Election .*>: this candidate does not lead$")
        with said:
            way(election)
        with election:
            election.check()
        with said:
            way(election)

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

    def test_what_was_said_of_an_earlier_term_says_nothing_of_the_present_one(
        self, using, name, stand
    ):
        """A leader that was lost long ago may say why at any time."""
        a = stand("A")
        eventually(a.leads)
        term = a.election.term
        a.election.resign()
        b = stand("B")
        eventually(b.leads)
        said = {"term": term, "why": "lost", "until": str(datetime.now(UTC)), "at": 1}
        locks[using].store.apply(f"election:{name}", [Put("ended", said)])
        assert terms(b.election) == [("A", "resigned"), ("B", "")]
        assert b.election.leader().name == "B"
        b.election.resign()
        assert terms(b.election) == [("A", "resigned"), ("B", "resigned")]
        c = stand("C")
        eventually(c.leads)
        assert terms(c.election) == [("A", "resigned"), ("B", "resigned"), ("C", "")]

    @pytest.mark.usefixtures("only_hints")
    def test_the_end_of_a_term_is_told_at_once_though_nobody_leads_next(self, using, name, stand):
        a = stand("A")
        eventually(a.leads)
        changes = Election(name, using=using).changes(timeout=PATIENCE)
        assert next(changes).why == ""
        a.election.resign()
        resigned_at = clock()
        assert next(changes).why == "resigned"
        assert clock() - resigned_at < UNHURRIED / 2

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
        assert [one.term for one in history] == sorted((one.term for one in history), reverse=True)

    @pytest.mark.brief
    def test_a_leader_that_is_garbage_leads_no_more(self, using, name, stand):
        election = Election(name, "A", using=using)
        election.campaign()
        b = stand("B")
        del election
        gc.collect()
        eventually(b.leads)
        assert names(b.election) == ["B"]
