"""Signals reach the program, and no way to end or stop `locks run` lets it work on unguarded."""

import os
import signal
from datetime import timedelta

import pytest

from distlock import Lock
from distlock.commands.exit_codes import LOST
from distlock.supervisor.watchdog_process import KILL_LIMIT
from distlock.types.lease import State
from tests.contract.watch import eventually, passed
from tests.servers.guard import descendants, is_at_rest, started_at
from tests.supervisor.conftest import gone, watchdog_of

#: Who is stopped while he writes to a SQLite file keeps everyone else from it.
on_a_server = pytest.mark.parametrize("kind", ["postgresql"])

PASSED_ON = ["HUP", "INT", "QUIT", "TERM", "USR1", "USR2"]


def test_signals_are_passed_on_to_the_program(start, backend):
    traps = "; ".join(f"trap 'echo {name}' {name}" for name in PASSED_ON)
    run = start(
        "stock",
        "--grace=0.1",
        "--",
        "sh",
        "-c",
        f"{traps}; echo ready; while :; do sleep 0.02; done",
    )
    assert run.line() == "ready"
    for name in PASSED_ON:
        run.signal(getattr(signal, f"SIG{name}"))
        assert run.line() == name
    assert backend.inspect("stock").state is State.HELD


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGINT])
def test_a_program_that_a_signal_ends_ends_the_run(start, backend, beats, signum):
    run = start("stock", "--", *beats.command)
    born = beats.begin()
    run.signal(signum)
    assert run.wait() == 128 + signum
    assert gone(born)
    assert backend.inspect("stock").state is State.FREE


def test_what_was_ignored_stays_ignored(start, backend):
    run = start(
        "stock", "--", "sh", "-c", "trap '' HUP; exec sh -c 'kill -HUP $$; echo still here'"
    )
    assert run.finish() == ["still here"]


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_waiting_for_the_lock_ends_with_a_signal(start, backend, signum):
    with Lock("stock"):
        run = start("stock", "--", "echo", "ran")
        eventually(lambda: waits(run.pid))
        run.signal(signum)
        assert run.wait() == 128 + signum
    assert Lock("stock").acquire(timeout=5)
    Lock("stock").release()


def waits(pid):
    """Return whether the process has got as far as to handle SIGCONT, the last of its signals."""
    with open(f"/proc/{pid}/status") as file:
        caught = next(line for line in file if line.startswith("SigCgt:"))
    return bool(int(caught.split()[1], 16) >> (signal.SIGCONT - 1) & 1)


def test_who_kills_the_run_ends_the_program_and_all_it_started(start, backend, beats):
    run = start("stock", "--lease=9", "--grace=0.3", "--", *beats.command, "stubborn")
    born = beats.begin()
    watchdog = watchdog_of(run)
    born[watchdog] = started_at(watchdog)
    run.kill()
    eventually(lambda: gone(born))
    assert beats.last < backend.inspect("stock").until.timestamp()


def test_who_kills_the_watchdog_ends_the_program_and_all_it_started(start, backend, beats):
    run = start("stock", "--", *beats.command, "stubborn")
    born = beats.begin()
    os.kill(watchdog_of(run), signal.SIGKILL)
    assert run.wait() == 1
    assert gone(born)
    assert "watchdog" in run.errors
    assert backend.inspect("stock").state is State.FREE


def test_who_kills_both_kills_the_program(start, backend):
    run = start("stock", "--", "sh", "-c", "echo $$; read word")
    program = int(run.line())
    born = {program: started_at(program)}
    watchdog = watchdog_of(run)
    for pid in (run.pid, watchdog):
        os.kill(pid, signal.SIGSTOP)
    for pid in (run.pid, watchdog):
        os.kill(pid, signal.SIGKILL)
    eventually(lambda: gone(born))


@pytest.mark.slow
def test_a_watchdog_that_is_stopped_until_long_after_the_grace_still_kills(start, backend):
    stubborn = ["sh", "-c", 'trap "echo asked" TERM; echo $$; while :; do sleep 0.05; done']
    run = start("stock", "--grace=2", "--", "sh", "-c", '"$@" & read word', "sh", *stubborn)
    left = int(run.line())
    born = {left: started_at(left)}
    watchdog = watchdog_of(run)
    run.tell("go on")
    assert run.line() == "asked"
    os.kill(watchdog, signal.SIGSTOP)
    passed(2 + KILL_LIMIT)
    os.kill(watchdog, signal.SIGCONT)
    assert run.wait() == 0
    works_on = not gone(born)
    if works_on:
        os.kill(left, signal.SIGKILL)
    assert not works_on


@on_a_server
def test_going_on_while_the_lock_is_freed_is_no_loss(start, backend, server, kind):
    there = server(kind)
    run = start("stock", "--lease=30", "--", "sh", "-c", "echo here; read word")
    assert run.line() == "here"
    there.pause()
    run.tell()
    eventually(lambda: descendants(run.pid) == [run.pid])
    run.signal(signal.SIGSTOP)
    eventually(lambda: is_at_rest(run.pid))
    run.signal(signal.SIGCONT)
    eventually(lambda: not is_at_rest(run.pid))
    there.heal()
    assert (run.wait(), run.errors) == (0, "")


@pytest.mark.slow
@on_a_server
def test_a_program_that_starts_late_runs_if_the_lease_was_renewed(start, backend):
    run = start("stock", "--lease=6", "--grace=0.1", "--", "sh", "-c", "echo here; read word")
    eventually(lambda: len(descendants(run.pid)) > 1)
    watchdog = watchdog_of(run)
    until = backend.inspect("stock").until
    os.kill(watchdog, signal.SIGSTOP)
    eventually(lambda: backend.inspect("stock").until > until + timedelta(seconds=5.9))
    os.kill(watchdog, signal.SIGCONT)
    assert run.line() == "here"
    run.tell()
    assert run.wait() == 0


@pytest.mark.slow
@on_a_server
def test_a_run_that_is_stopped_past_its_lease_has_no_program_any_more(start, backend, beats):
    run = start("stock", "--lease=9", "--grace=3", "--", *beats.command)
    born = beats.begin()
    run.signal(signal.SIGSTOP)
    until = backend.inspect("stock").until.timestamp()
    eventually(lambda: gone(born))
    assert beats.last < until
    with Lock("stock", timeout=30):
        run.signal(signal.SIGCONT)
        assert run.wait() == LOST


@pytest.mark.slow
@on_a_server
def test_a_run_and_watchdog_that_were_stopped_end_the_program_as_soon_as_they_go_on(
    start, backend, beats
):
    run = start("stock", "--lease=6", "--grace=0.1", "--", *beats.command)
    born = beats.begin()
    watchdog = watchdog_of(run)
    for pid in (run.pid, watchdog, *born):
        os.kill(pid, signal.SIGSTOP)
    eventually(lambda: all(map(is_at_rest, (run.pid, watchdog, *born))))
    count = len(beats.read())
    eventually(lambda: backend.inspect("stock").state is State.EXPIRED)
    with Lock("stock"):
        for pid in (run.pid, watchdog):
            os.kill(pid, signal.SIGCONT)
        assert run.wait() == LOST
        assert gone(born)
    assert len(beats.read()) == count
