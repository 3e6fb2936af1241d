"""``manage.py locks run --slots N``: at most N programs at a time, each gone before its seat is."""

import signal

import pytest
from django.core.management import CommandError, call_command

from distlock import locks
from distlock.commands.exit_codes import BUSY, FAILED, LOST, USAGE
from distlock.recipes import Semaphore
from tests.contract.watch import eventually
from tests.supervisor.conftest import Beats, gone

pytestmark = pytest.mark.usefixtures("backend")

SLOTS = ["stock", "--slots=2", "--lease=6", "--grace=0.1"]
PROGRAM = ["--", "sh", "-c", "echo $DISTLOCK_NAME $DISTLOCK_TOKEN; read word"]
ENDS = {
    "mariadb": "SELECT MAX(expires_at) FROM database_lock_session",
    "postgresql": "SELECT MAX(expires_at) FROM database_lock_session",
}


@pytest.fixture
def slots():
    return Semaphore("stock")


def test_as_many_programs_run_as_there_are_slots_and_the_next_one_waits(start, slots):
    runs = [start(*SLOTS, *PROGRAM), start(*SLOTS, *PROGRAM)]
    said = [run.line().split() for run in runs]
    assert {name for name, _ in said} == {"stock"}
    holders = slots.info().holders
    assert {holder.token for holder in holders} == {int(token) for _, token in said}
    assert {holder.description for holder in holders} == {"sh"}
    waiting, late = start(*SLOTS, *PROGRAM), start(*SLOTS, "--timeout=0", *PROGRAM)
    assert late.wait() == BUSY
    assert "semaphore 'stock' on 'default' has no free slot (2 of 2" in late.errors
    eventually(lambda: slots.info().waiters)
    runs[0].tell("go on")
    assert runs[0].wait() == 0
    assert waiting.line().startswith("stock ")
    assert slots.info().taken == 2
    for run in (runs[1], waiting):
        run.tell("go on")
        assert run.wait() == 0
    assert slots.info().taken == 0


@pytest.mark.parametrize(
    ("options", "code", "says"),
    [
        (["--slots=2", "--at-least=5"], USAGE, "at_least=5.0 does not go with slots=2"),
        (["--slots=0"], None, "argument --slots: it must be at least 1"),
        (["--slots=two"], None, "argument --slots: it must be a number or 'agreed', not 'two'"),
        (["--slots=3"], FAILED, "has 2 seats for its present users"),
    ],
)
def test_what_cannot_be_is_refused_and_nothing_runs(options, code, says, capfd):
    with Semaphore("stock", 2), pytest.raises(CommandError, match=says) as raised:
        call_command("locks", "run", "stock", *options, "--", "echo", "ran")
    assert code in (None, raised.value.returncode)
    assert capfd.readouterr().out == ""


def test_the_number_may_be_the_one_that_was_said_last(capfd):
    Semaphore("stock").resize(1)
    call_command("locks", "run", "stock", "--slots=agreed", "--", "echo", "ran")
    assert capfd.readouterr().out == "ran\n"


@pytest.mark.slow
def test_a_seat_that_is_broken_ends_its_program_and_no_other(start, beats, slots):
    other = start(*SLOTS, *PROGRAM)
    other.line()
    run = start(*SLOTS, "--", *beats.command)
    born = beats.begin()
    (token,) = [each.token for each in slots.info().holders if each.owner.pid == run.pid]
    assert slots.force_release(token)
    assert run.wait() == LOST
    assert gone(born)
    assert "was broken" in run.errors
    other.tell("go on")
    assert other.wait() == 0


@pytest.mark.slow
def test_if_it_is_killed_its_program_is_gone_before_its_seat(start, beats, slots):
    run = start(*SLOTS, "--", *beats.command)
    born = beats.begin()
    run.signal(signal.SIGKILL)
    run.wait()
    eventually(lambda: slots.info().taken == 0)
    assert gone(born)


@pytest.mark.slow
@pytest.mark.parametrize("stopped", ENDS)
def test_programs_are_gone_before_the_servers_could_give_their_seats_to_others(
    start, backend_settings, settings, tmp_path, server, stopped
):
    there = server(stopped)

    def too_late(attempt):
        """Return whether they ran for too long, as when the machine stands still just then."""
        settings.DISTLOCK = backend_settings(stopped)
        there.execute("DELETE FROM database_lock_session")
        beats = Beats(tmp_path / f"beats-{attempt}")
        slots = "--slots=2", "--lease=10", "--grace=1"
        run = start("stock", *slots, "--", *beats.command, "stubborn")
        born = beats.begin()
        there.pause()
        assert run.wait() == LOST
        assert gone(born)
        there.heal()
        ((until,),) = there.execute(ENDS[stopped])
        return beats.last >= int(until) / 1_000_000

    assert not all(map(too_late, range(3)))
    locks.close_all()
