"""Elections whose leaders are killed or stopped, and servers that cannot be reached."""

import signal
import time
from contextlib import suppress

import pytest

from distlock import LockLost
from distlock.recipes import Election
from tests.children import read_line, write_line
from tests.contract.watch import eventually, passed
from tests.recipes.conftest import UNHURRIED
from tests.recipes.every_kind import (  # noqa: F401 - pytest calls it
    ONE_LEASE,
    pytest_generate_tests,
)
from tests.recipes.standing import Candidacy, names, terms
from tests.recipes.test_seats_faults import stop

#: seconds
ANSWER_LIMIT, LEASE = 2.5, 4


def lead(name, candidate, order):
    """As a child: stand, lead, and when told to go on say what has become of that."""
    told = []
    election = Election(name, candidate, order=order, on_lost=told.append)
    write_line("stands")
    election.campaign()
    write_line(election.term)
    read_line()
    write_line("leads" if election.leading else "does not lead")
    try:
        election.resign()
        write_line("resigned")
    except LockLost:
        write_line("lost")
    eventually(lambda: told)
    write_line("told")


def lead_again(name, candidate):
    """As a child: lead as often as it can."""
    election = Election(name, candidate)

    def work():
        write_line(election.term)
        while election.leading:
            time.sleep(0.01)
        write_line("lost")

    election.run(work)


def stand_thrice(name):
    """As a child: stand with three candidates."""
    made = [Candidacy("default", name, f"B{number}") for number in range(3)]
    eventually(lambda: len(names(made[0].election)) == 1 + len(made))
    write_line("stand")
    read_line()


@pytest.fixture
def start(child, using, name):
    """``start("A")``: a process that stands when this returns."""
    look = Election(name, using=using)

    def make(candidate, order="first"):
        new = child(lead, name, candidate, order)
        new.line()
        eventually(lambda: candidate in names(look))
        return new

    return make


@pytest.mark.shared
@pytest.mark.brief
@pytest.mark.faults
class TestProcesses:
    def test_a_is_killed_and_b_leads_and_then_c(self, start, using, name):
        a = start("A")
        first = int(a.line())
        b = start("B")
        c = start("C")
        look = Election(name, using=using)
        assert names(look) == ["A", "B", "C"]
        a.kill()
        second = int(b.line())
        assert look.leader().name == "B"
        b.kill()
        third = int(c.line())
        assert first < second < third
        assert look.leader().name == "C"
        assert names(look) == ["C"]
        assert terms(look) == [("A", "crashed"), ("B", "crashed"), ("C", "")]

    def test_a_leader_that_was_stopped_knows_that_it_leads_no_more(
        self, kind, start, using, long_leases, name
    ):
        a = start("A")
        first = int(a.line())
        stop(a, kind)
        long_leases()
        with Election(name, "B", using=using) as successor:
            assert successor.term > first
            a.tell("go on")
            a.signal(signal.SIGCONT)
            assert a.finish() == ["does not lead", "lost", "told"]
            successor.verify()
            assert names(successor) == ["B"]

    def test_one_that_was_stopped_stands_again_at_the_end(
        self, child, kind, using, long_leases, name
    ):
        a = child(lead_again, name, "A")
        int(a.line())
        stop(a, kind)
        long_leases()
        with Election(name, "B", using=using) as successor:
            a.signal(signal.SIGCONT)
            assert a.line() == "lost"
            eventually(lambda: names(successor) == ["B", "A"])
        assert int(a.line()) > successor.history()[1].term

    @pytest.mark.slow
    def test_one_that_stands_is_stopped_and_keeps_nobody_out(self, kind, start, using, name):
        election = Election(name, "A", using=using)
        election.campaign()
        stopped, next_one = start("B"), start("C")
        stop(stopped, kind)
        with suppress(LockLost):  # it stood still for longer than its short lease
            election.resign()
        assert int(next_one.line()) > 0
        stopped.signal(signal.SIGCONT)
        next_one.kill()
        assert int(stopped.line()) > 0

    @pytest.mark.slow
    @pytest.mark.usefixtures("only_hints")
    def test_one_that_stands_several_times_keeps_nobody_out_for_longer(
        self, child, kind, using, name, stand
    ):
        a = stand("A")
        eventually(a.leads)
        stopped = child(stand_thrice, name)
        stopped.line()
        c = stand("C")
        passed(2.0)  # it looks once more whom it waits for
        stop(stopped, kind)
        a.election.resign()
        eventually(c.leads, UNHURRIED / 2)
        stopped.kill()


@pytest.fixture
def network(kind, proxy, settings):
    """The network before a server. Leases are short where they can."""
    if kind not in ONE_LEASE:
        (entry,) = settings.DISTLOCK.values()
        settings.DISTLOCK = {"default": {**entry, "LEASE": LEASE}}
    return proxy


@pytest.fixture
def campaign(network, name):
    """``campaign("A")``: a candidate, which stands when this returns, and knows it.

    If an outage comes between the two, its campaign() ends with LockUnavailable.
    """
    made = []

    def make(candidate):
        new = Candidacy("default", name, candidate)
        made.append(new)
        eventually(lambda: new.leads() or new.election._candidacy._membership.held)
        return new

    yield make
    network.heal()
    for one in reversed(made):
        one.end()


@pytest.mark.slow
@pytest.mark.not_on("local", "sqlite")  # there is no network
class TestNetwork:
    def test_a_leader_that_is_cut_off_leads_no_more_and_there_is_one_at_a_time(
        self, network, campaign, name
    ):
        a = campaign("A")
        eventually(a.leads)
        first = a.election.term
        network.refuse()
        eventually(lambda: not a.leads())
        with pytest.raises(LockLost):
            a.election.check()
        eventually(lambda: a.told)
        network.heal()
        with pytest.raises(LockLost):
            a.election.resign()
        with Election(name, "next") as successor:
            assert successor.term > first

    def test_those_who_stand_go_on_through_an_outage(self, network, campaign):
        a = campaign("A")
        eventually(a.leads)
        b = campaign("B")
        network.refuse()
        eventually(lambda: not a.leads())
        passed(ANSWER_LIMIT)
        assert b.thread.is_alive()
        network.heal()
        eventually(b.leads)
        assert not a.leads()

    def test_a_short_outage_changes_nothing(self, network, campaign):
        a = campaign("A")
        eventually(a.leads)
        b, term = campaign("B"), a.election.term
        network.cut()
        eventually(lambda: names(a.election) == ["A", "B"])
        assert a.election.term == term
        assert not b.leads()
