"""``manage.py locks run``: a program runs under a lock, and its exit code is passed on."""

import re
import signal
import sys
import threading
from functools import partial
from types import SimpleNamespace

import pytest
from django.core.management import CommandError, call_command

from distlock import Lock, LockLost, locks
from distlock.commands import LockedCommand
from distlock.commands.exit_codes import BUSY, LOST, UNAVAILABLE, USAGE
from distlock.exceptions import BodyEnded
from distlock.management.commands.locks import Command
from distlock.supervisor.processes import PASSED_ON
from distlock.types.lease import State
from distlock.types.owners import is_reserved
from tests.contract.watch import eventually, passed, steadily
from tests.servers.guard import descendants, started_at
from tests.supervisor.conftest import NOT_RENEWED, gone

pytestmark = pytest.mark.usefixtures("backend")


@pytest.fixture
def here():
    """``here("name", "--", "true")``: ``locks run`` in this process; its code and its error."""

    def run(*arguments):
        try:
            call_command("locks", "run", *arguments)
        except CommandError as error:
            return SimpleNamespace(code=error.returncode, error=str(error))
        return SimpleNamespace(code=0, error="")

    return run


@pytest.mark.parametrize("kind", ["sqlite", "etcd"])
def test_the_program_runs_under_the_lock_and_is_told_of_it(start, backend):
    run = start("stock", "--", "sh", "-c", "echo $DISTLOCK_NAME $DISTLOCK_TOKEN; read word")
    name, token = run.line().split()
    info = backend.inspect("stock")
    assert (name, int(token)) == ("stock", info.token)
    assert (info.state, info.owner.pid) == (State.HELD, run.pid)
    assert info.description == "sh"
    run.tell("go on")
    assert run.wait() == 0
    assert backend.inspect("stock").state is State.FREE


@pytest.mark.parametrize(
    ("program", "code"),
    [
        (["sh", "-c", "exit 7"], 7),
        (["sh", "-c", "exit 255"], 255),
        (["sh", "-c", "kill -KILL $$"], 137),
        (["sh", "-c", "kill -USR2 $$"], 140),
        (["no-such-program"], 127),
        (["/etc/passwd"], 126),
        (["/etc/passwd/program"], 126),
    ],
    ids=str,
)
def test_the_exit_code_is_what_a_shell_would_say(here, backend, program, code):
    assert here("stock", "--", *program).code == code
    assert backend.inspect("stock").state is State.FREE


def test_scripts_see_the_exit_code_and_no_word_more(start):
    run = start("stock", "--", "sh", "-c", "exit 7")
    assert (run.wait(), run.errors) == (7, "")


def test_what_cannot_be_started_is_told(here):
    assert "'no-such-program': No such file" in here("stock", "--", "no-such-program").error


def test_so_are_more_arguments_than_the_system_takes(here):
    result = here("stock", "--", "true", "x" * 200_000)
    assert (result.code, result.error) == (126, "'true': Argument list too long")


def test_options_of_the_program_are_its_own(here, capfd):
    here("stock", "--timeout", "5", "--", "echo", "--timeout", "-v", "--", "--settings=x")
    assert capfd.readouterr().out == "--timeout -v -- --settings=x\n"


def test_standard_input_and_output_are_the_programs(start):
    run = start("stock", "--", "cat")
    run.tell("a line")
    assert run.line() == "a line"


def test_a_busy_lock_is_told_with_its_holder(here):
    with Lock("stock", owner="someone") as lock:
        ended = here("stock", "--timeout=0", "--", "true")
        assert ended.code == BUSY
        holder = lock.info().owner
        who = f"lock 'stock' on 'default' is held by {holder.host} (pid {holder.pid}, "
        assert who in ended.error


def test_a_lock_that_was_left_early_is_told_as_such(here):
    with Lock("stock", at_least=600):
        pass
    ended = here("stock", "--timeout=0", "--", "true")
    assert ended.code == BUSY
    assert "was left by" in ended.error


def test_the_code_for_a_busy_lock_can_be_chosen(here, capfd):
    with Lock("stock", owner="someone"):
        assert here("stock", "--timeout=0", "--busy-code=9", "--", "echo", "ran").code == 9
    assert capfd.readouterr().out == ""


def test_what_is_said_of_it_can_be_chosen(here):
    here("stock", "--at-least=600", "--description=the stock", "--", "true")
    assert ": the stock" in here("stock", "--timeout=0", "--", "true").error


def test_it_waits_for_the_lock(start, backend):
    with Lock("stock"):
        run = start("stock", "--timeout=30", "--", "echo", "ran")
    assert run.finish() == ["ran"]


def test_waiting_ends_when_the_time_is_up(here):
    with Lock("stock", owner="someone"):
        assert here("stock", "--timeout=0.2", "--", "true").code == BUSY


def test_another_backend_can_be_chosen(here, backend_settings, settings):
    settings.DISTLOCK = {**backend_settings("sqlite"), **backend_settings("local", alias="here")}
    with Lock("stock", owner="someone"):
        assert here("stock", "--using=here", "--", "true").code == 0


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["stock"],
        ["stock", "--"],
        ["a\nb", "--", "true"],
        ["stock", "--using=elsewhere", "--", "true"],
        ["stock", "--timeout=-1", "--", "true"],
        ["stock", "--lease=0", "--", "true"],
        ["stock", "--at-least=nan", "--", "true"],
        ["stock", "--busy-code=256", "--", "true"],
        ["stock", "--lease=10", "--grace=4.1", "--", "true"],
        ["stock", "--no-such-option", "--", "true"],
    ],
    ids=str,
)
def test_wrong_use_is_refused(arguments):
    with pytest.raises(SystemExit) as raised:
        Command().run_from_argv(["manage.py", "locks", "run", *arguments])
    assert raised.value.code == USAGE


def test_a_grace_that_the_lease_cannot_hold_is_refused_with_what_can_be(here):
    ended = here("stock", "--lease=10", "--grace=5", "--", "true")
    assert ended.code == USAGE
    assert "--grace 5: with a lease of 10 s it may be at most 4 s" in ended.error


def test_a_backend_that_cannot_be_asked_has_a_code_of_its_own(here, settings):
    settings.DISTLOCK = {
        "default": {
            "BACKEND": "distlock.backends.zookeeper.ZooKeeperBackend",
            "LOCATION": "127.0.0.1:1",
            "OPTIONS": {"timeout": 0.5},
        }
    }
    assert here("stock", "--timeout=0.5", "--", "true").code == UNAVAILABLE


def test_nothing_that_the_program_leaves_behind_works_on(start, beats, backend):
    run = start("stock", "--", "sh", "-c", '"$@" & read word', "sh", *beats.command)
    born = beats.begin()
    run.tell("go on")
    assert run.wait() == 0
    assert gone(born)


def test_not_even_what_ignores_that_it_should_end(start, beats):
    program = ["sh", "-c", '"$@" & read word', "sh", *beats.command, "stubborn"]
    run = start("stock", "--grace=0.2", "--", *program)
    born = beats.begin()
    run.tell("go on")
    assert run.wait() == 0
    assert gone(born)


#: Goes on for a time in a new process every moment, and then as the last one of them for a while.
HOPPING = """
import os, signal, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
file = os.open(sys.argv[1], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
end = time.monotonic() + 0.5
while time.monotonic() < end + 10:
    os.write(file, b"x")
    if time.monotonic() > end:
        time.sleep(0.01)
    elif os.fork():
        os._exit(0)
"""


def test_not_even_what_is_another_process_whenever_one_looks(start, backend, tmp_path):
    file = tmp_path / "hops"
    program = ["sh", "-c", '"$@" & read word', "sh", sys.executable, "-c", HOPPING, str(file)]
    run = start("stock", "--grace=0.1", "--", *program)
    eventually(file.exists)
    run.tell("go on")
    assert run.wait() == 0
    size = file.stat().st_size
    passed(0.2)
    assert file.stat().st_size == size


def test_no_process_is_left(start):
    run = start("stock", "--", "sh", "-c", "echo here; read word")
    run.line()
    born = {pid: started_at(pid) for pid in descendants(run.pid)}
    assert len(born) == 3
    run.tell()
    run.wait()
    assert gone(born)


def test_the_lock_stays_taken_for_a_while_at_the_least(here, backend):
    assert here("stock", "--at-least=600", "--", "true").code == 0
    assert is_reserved(backend.inspect("stock").owner)


@pytest.mark.slow
def test_a_broken_lock_ends_the_program(start, beats, backend):
    run = start("stock", "--lease=6", "--grace=0.1", "--", *beats.command)
    born = beats.begin()
    assert Lock("stock").force_release(backend.inspect("stock").token)
    assert run.wait() == LOST
    assert gone(born)
    assert "was broken" in run.errors


@pytest.mark.slow
def test_leases_longer_than_the_run_are_renewed(start, backend):
    run = start("stock", "--lease=6", "--grace=0.1", "--", "sh", "-c", "read word")
    first = eventually(lambda: backend.inspect("stock").until)
    eventually(lambda: backend.inspect("stock").until > first)
    run.tell()
    assert run.wait() == 0


def test_from_code_it_leaves_signals_as_they_were():
    before = [signal.getsignal(signum) for signum in PASSED_ON]
    call_command("locks", "run", "stock", "--", "true")
    assert [signal.getsignal(signum) for signum in PASSED_ON] == before
    assert signal.set_wakeup_fd(-1) == -1


def break_while_it_runs(name):
    """Wait until the program has the lock, and break it."""

    def work():
        info = eventually(lambda: (found := Lock(name).info()).token and found)
        assert Lock(name).force_release(info.token)

    thread = threading.Thread(target=work)
    thread.start()
    return thread


def test_from_code_a_broken_lock_can_be_taken_again(here):
    def attempt(lease):
        name = f"stock:{lease}"
        breaking = break_while_it_runs(name)
        ended = here(name, f"--lease={lease}", "--grace=0.1", "--", "sleep", "60")
        breaking.join()
        if re.search(NOT_RENEWED, ended.error):
            raise LockLost(ended.error)  # the machine stood still before the next renewal
        assert (ended.code, "was broken" in ended.error) == (LOST, True)
        assert here(name, "--timeout=0", "--", "true").code == 0
        with Lock(name, on_busy="raise") as lock:
            assert lock.held

    steadily(attempt, 3, 9)


class Around(LockedCommand):
    """A command that does its work under a lock of its own."""

    def __init__(self, name, work):
        super().__init__()
        self.lock_name = name
        self.work = work

    def handle(self, **options):
        with pytest.raises(BodyEnded):
            self.work()
        self.lock.check()


@pytest.mark.parametrize("names", [["around"], ["around", "outermost"]])
def test_from_code_the_loss_of_locks_around_it_ends_the_program_first(beats, backend, names):
    """The program has its grace; the second loss comes while the first one waits for that."""
    born, were_gone = {}, []

    def take_it_then():
        born.update(beats.begin())
        for name in names:
            Lock(name).force_release(backend.inspect(name).token)
        with Lock("stock"):
            were_gone.append(gone(born))

    def work():
        call_command("locks", "run", "stock", "--grace=1", "--", *beats.command, "stubborn")

    taking = threading.Thread(target=take_it_then)
    taking.start()
    for name in names:
        work = partial(call_command, Around(name, work))
    with pytest.raises(CommandError, match="'around'|'outermost'") as raised:
        work()
    taking.join()
    assert raised.value.returncode == LOST
    assert were_gone == [True]


@pytest.mark.slow
def test_from_code_a_lock_whose_lease_ran_out_can_be_taken_again(
    here, backend_settings, settings, server
):
    settings.DISTLOCK = backend_settings("postgresql")
    there = server("postgresql")
    stopping = threading.Thread(
        target=lambda: (eventually(lambda: Lock("stock").locked()), there.stop())
    )
    stopping.start()
    ended = here("stock", "--lease=3", "--grace=0.1", "--", "sleep", "60")
    stopping.join()
    assert ended.code == LOST
    assert re.search(NOT_RENEWED, ended.error)
    there.start()
    assert here("stock", "--timeout=10", "--", "true").code == 0
    locks.close_all()


def test_from_code_what_the_caller_held_before_is_still_held_if_it_is_broken(here):
    """It is told of the loss when it leaves the lock itself."""
    lock = Lock("stock")
    lock.acquire()
    assert Lock("stock").force_release(lock.token)
    with pytest.raises(LockLost):
        lock.verify()
    assert here("stock", "--timeout=0", "--", "true").code != 0
    with pytest.raises(LockLost):
        lock.release()
    assert here("stock", "--timeout=0", "--", "true").code == 0
