"""``manage.py locks run --elect``: one program at a time, and the next one takes over."""

import signal

import pytest
from django.core.management import CommandError, call_command

from distlock.commands.exit_codes import BUSY, LOST
from distlock.recipes import Election
from tests.contract.watch import eventually

pytestmark = pytest.mark.usefixtures("backend")

ELECT = ["scheduler", "--elect"]
PROGRAM = ["--", "sh", "-c", "echo $DISTLOCK_NAME $DISTLOCK_TOKEN; read word"]


@pytest.fixture
def election():
    return Election("scheduler")


def names(election):
    return [one.name for one in election.candidates()]


def stand(start, election, candidate, *options):
    new = start(*ELECT, f"--candidate={candidate}", *options, *PROGRAM)
    eventually(lambda: candidate in names(election))
    return new


def test_one_program_runs_at_a_time_and_the_next_one_takes_over(start, election):
    a = stand(start, election, "A")
    name, first = a.line().split()
    assert name == "scheduler"
    b = stand(start, election, "B")
    assert election.leader().name == "A"
    assert election.leader().term == int(first)
    late = start(*ELECT, "--timeout=0", *PROGRAM)
    assert late.wait() == BUSY
    a.tell("go on")
    assert a.wait() == 0
    assert int(b.line().split()[1]) > int(first)
    assert names(election) == ["B"]
    b.tell("go on")
    assert b.wait() == 0
    assert [one.why for one in election.history()] == ["resigned", "resigned"]
    assert names(election) == []


def test_a_program_whose_leader_is_asked_to_step_down_is_ended(start, election):
    a = stand(start, election, "A")
    term = int(a.line().split()[1])
    b = stand(start, election, "B")
    assert election.step_down(term)
    assert a.wait() == LOST
    assert "asked to step down" in a.errors
    assert int(b.line().split()[1]) > term
    assert names(election) == ["B"]
    assert election.history()[1].why == "stepped down"
    b.tell("go on")
    assert b.wait() == 0


def test_who_is_ended_while_it_waits_stands_no_more(start, election):
    a = stand(start, election, "A")
    a.line()
    b = stand(start, election, "B")
    b.signal(signal.SIGTERM)
    assert b.wait() == 128 + signal.SIGTERM
    # If the signal came before the answer to its joining, its record ends with the lease.
    eventually(lambda: names(election) == ["A"], limit=60)
    a.tell("go on")
    assert a.wait() == 0


def test_who_is_appointed_runs_the_program(start, election):
    a = stand(start, election, "A", "--order=appointed")
    b = stand(start, election, "B", "--order=appointed")
    election.appoint("B")
    b.line()
    election.appoint("A")
    assert b.wait() == LOST
    a.line()
    a.tell("go on")
    assert a.wait() == 0


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--elect", "--slots=2"], "--slots=2 does not go with --elect"),
        (["--elect", "--at-least=5"], "--at-least=5.0 does not go with --elect"),
        (["--elect", "--lease=5"], "--lease=5.0 does not go with --elect"),
        (["--elect", "--description=x"], "--description=x does not go with --elect"),
        (["--elect", "--order=last"], "argument --order: invalid choice"),
        (["--priority=5"], "--candidate, --priority and --order go with --elect"),
    ],
)
def test_what_cannot_be_is_refused_and_nothing_runs(options, says, election):
    with pytest.raises(CommandError, match=says):
        call_command("locks", "run", "scheduler", *options, "--", "true")
    assert names(election) == []
