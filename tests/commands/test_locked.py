"""``LockedCommand``: one instance at a time runs, and a busy lock has an exit code of its own."""

import asyncio
import contextlib
import enum
import io
import signal
import threading
import time

import pytest
from django.contrib.auth.models import Group
from django.core.exceptions import ImproperlyConfigured
from django.core.management import CommandError, call_command
from django.db import transaction

from distlock import Lock, LockLost, LockNotHeld, locks
from distlock.commands import LockedCommand
from distlock.commands.exit_codes import BUSY, LOST, UNAVAILABLE, USAGE
from distlock.testing import held_elsewhere
from distlock.types.lease import State
from distlock.types.owners import is_reserved
from tests.commands.processes import manage
from tests.contract.watch import eventually
from tests.management.commands.report import Command as Report

NIGHTLY = "command:tests.nightly"


class Here(LockedCommand):
    """A command whose work is what the test says."""

    lock_name = "here"

    def __init__(self, work=lambda command: None):
        super().__init__(stdout=io.StringIO(), stderr=io.StringIO())
        self.work = work

    def add_arguments(self, parser):
        parser.add_argument("--shop", default="main")

    def handle(self, **options):
        return self.work(self)


@pytest.fixture
def kind():
    return "sqlite"


@pytest.fixture
def nightly(child, shared):
    """Start the command ``nightly`` in a process."""
    return lambda *arguments: child(manage, "nightly", *arguments)


@pytest.mark.parametrize("slots", [None, 1])
def test_in_a_transaction_it_may_keep_its_lock_until_the_commit(local, slots):
    class Keeping(Here):
        lock_release = "commit"
        lock_slots = slots

    command = Keeping()
    with transaction.atomic():
        call_command(command)
        call_command(command)
        assert command.lock.locked()
    assert not command.lock.locked()


def test_it_is_named_after_its_app_and_itself(nightly):
    run = nightly()
    token = int(run.line().split()[1])
    info = locks["default"].inspect(NIGHTLY)
    assert (info.state, info.token, info.owner.pid) == (State.HELD, token, run.pid)
    assert info.description == "manage.py tests.nightly"
    run.tell("good morning")
    assert run.finish() == ["told good morning"]
    assert not Lock(NIGHTLY).locked()


def test_a_second_one_ends_with_a_code_and_the_holders_name(nightly):
    first = nightly()
    first.line()
    second = nightly()
    assert second.wait() == BUSY
    holder = Lock(NIGHTLY).info().owner
    who = f"lock {NIGHTLY!r} on 'default' is held by {holder.host} (pid {holder.pid}, "
    assert who in second.errors
    assert "since" in second.errors and "manage.py tests.nightly" in second.errors


def test_it_waits_as_long_as_it_is_told(nightly):
    with Lock(NIGHTLY):
        assert nightly("--lock-timeout=0.1").wait() == BUSY
        waiting = nightly("--lock-timeout=30")
    assert waiting.line().startswith("running")


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_it_and_frees_the_lock(nightly, signum):
    run = nightly()
    run.line()
    run.signal(signum)
    assert run.wait() == 128 + signum
    assert not Lock(NIGHTLY).locked()


def test_ctrl_c_ends_it_and_frees_the_lock(nightly):
    run = nightly()
    run.line()
    run.signal(signal.SIGINT)
    assert run.wait() != 0
    assert not Lock(NIGHTLY).locked()


@pytest.mark.slow
def test_who_loses_the_lock_is_ended_at_once(nightly):
    run = nightly()
    token = int(run.line().split()[1])
    assert Lock(NIGHTLY).force_release(token)
    assert run.wait() == LOST
    assert "was broken" in run.errors


def test_help_tells_its_exit_codes(nightly):
    said = " ".join(" ".join(nightly("--help").finish()).split())
    for code in (UNAVAILABLE, BUSY, LOST):
        assert f"{code} " in said


# From code


def test_the_name_is_filled_in_from_the_options(shared):
    assert call_command("report", "7", stdout=io.StringIO()) == (
        "report:7:monthly the monthly report"
    )
    assert call_command("report", 8, kind="daily", stdout=io.StringIO()).startswith(
        "report:8:daily"
    )


def test_it_stays_taken_for_a_while_at_the_least(shared, monkeypatch):
    monkeypatch.setattr(Report, "lock_at_least", 600)
    call_command("report", "7", stdout=io.StringIO())
    assert is_reserved(Lock("report:7:monthly").info().owner)
    with pytest.raises(CommandError, match="was left by") as raised:
        call_command("report", "7", stdout=io.StringIO())
    assert raised.value.returncode == BUSY


def test_where_a_lock_ends_with_its_process_the_command_stays(child, backend_settings, settings):
    settings.DISTLOCK = backend_settings("zookeeper", OPTIONS={"session_timeout": 8})
    began = time.monotonic()
    assert child(manage, "report", "7").wait() == 0
    assert time.monotonic() - began >= 1.5
    eventually(lambda: not Lock("report:7:monthly").locked())
    locks.close_all()


def test_a_busy_lock_raises_with_the_code(local):
    with Lock("here", owner="someone"), pytest.raises(CommandError) as raised:
        call_command(Here())
    assert raised.value.returncode == BUSY


def without_lock(work):
    """Run a command with --no-lock while someone else has its lock."""
    with Lock("here", owner="someone") as real:
        token = real.token
        assert call_command(Here(work), no_lock=True) == "done"
        assert real.info().token == token


def test_without_the_lock_it_runs_whoever_has_it(local):
    def work(command):
        command.lock.check()
        command.lock.verify()
        asyncio.run(command.lock.averify())
        return "done"

    without_lock(work)


def test_without_the_lock_nothing_is_said_to_be_held(local):
    def work(command):
        assert not command.lock.held
        assert command.lock.locked()
        assert "not held" in repr(command.lock)
        for what in ("token", "remaining"):
            with pytest.raises(LockNotHeld, match="'here'.*--no-lock"):
                getattr(command.lock, what)
        return "done"

    without_lock(work)


def test_without_the_lock_no_way_in_takes_it(local):
    def work(command):
        with command.lock as lock:
            assert lock is command.lock
        assert command.lock.acquire(timeout=0)
        command.lock.release()
        with contextlib.ExitStack() as stack:
            stack.enter_context(command.lock)
        assert command.lock(lambda: "ran")() == "ran"
        asyncio.run(in_asyncio(command.lock))
        return "done"

    async def in_asyncio(lock):
        async with lock:
            assert await lock.aacquire()
            await lock.arelease()

    without_lock(work)


@pytest.mark.parametrize("how", ["local", "sqlite"])
def test_without_the_lock_a_transaction_is_just_that(how, backend_settings, settings, sqlite):
    settings.DISTLOCK = backend_settings(how)

    def work(command):
        with pytest.raises(ZeroDivisionError), command.lock.atomic():
            Group.objects.create(name="rolled back")
            raise ZeroDivisionError
        with command.lock.atomic() as lock, lock.atomic():
            Group.objects.create(name="written")
        return "done"

    without_lock(work)
    made = Group.objects.filter(name__in=["rolled back", "written"])
    assert [group.name for group in made] == ["written"]
    made.delete()
    locks.close_all()


def test_an_error_passes_and_frees_the_lock(local):
    def work(command):
        assert Lock("here").held
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        call_command(Here(work))
    assert not Lock("here").locked()


class Skipping(Here):
    lock_on_busy = "skip"


class Waiting(Here):
    lock_on_busy = "wait"
    lock_timeout = 0.05


def test_a_busy_command_may_be_skipped(local):
    def work(command):
        raise AssertionError("it ran")

    with held_elsewhere("here"):
        command = Skipping(work)
        assert call_command(command) is None
        assert command.stderr.getvalue() == ""
        call_command(command, verbosity=2)
        assert "lock 'here' on 'default' is held by" in command.stderr.getvalue()
        with pytest.raises(CommandError) as raised:
            call_command(command, "--busy-code=7")
        assert raised.value.returncode == 7


def test_a_busy_command_may_wait(local):
    with held_elsewhere("here"), pytest.raises(CommandError, match="is held by") as raised:
        call_command(Waiting())
    assert raised.value.returncode == BUSY
    with held_elsewhere("here"), pytest.raises(CommandError):
        call_command(Waiting(), "--lock-timeout=0")


def test_what_becomes_of_a_busy_command_is_one_of_three(local):
    class Wrong(Here):
        lock_on_busy = "retry"

    with pytest.raises(ImproperlyConfigured, match="lock_on_busy must be 'wait', .*, not 'retry'"):
        call_command(Wrong())


@pytest.mark.parametrize(
    ("misspelt", "meant"),
    [("lock_timout", "lock_timeout"), ("lock_on_bussy", "lock_on_busy"), ("lock_at_most", "lock_")],
)
@pytest.mark.parametrize("base", [LockedCommand, Here])
def test_an_attribute_that_is_misspelt_is_refused_with_the_one_that_is_meant(base, misspelt, meant):
    message = rf"test_locked: Nightly sets {misspelt}, .* did you mean {meant}\w*\?"
    with pytest.raises(ImproperlyConfigured, match=message):
        type("Nightly", (base,), {misspelt: 3, "__module__": __name__})


def test_an_attribute_that_is_misspelt_is_refused_in_a_mixin():
    class Patient:
        lock_timout = 3

    with pytest.raises(ImproperlyConfigured, match="did you mean lock_timeout"):
        type("Nightly", (Patient, LockedCommand), {})


def test_methods_and_properties_of_a_command_may_be_about_locks(local):
    class Own(Here):
        def lock_rows(self):
            return "rows"

        @property
        def lock_file(self):
            return "file"

        @staticmethod
        def lock_door():
            return "door"

    def work(command):
        return " ".join([command.lock_rows(), command.lock_file, command.lock_door()])

    assert call_command(Own(work)) == "rows file door"


@pytest.mark.parametrize("timeout", [-2, float("nan"), "soon"])
def test_a_limit_that_is_none_is_refused(local, timeout):
    with pytest.raises(CommandError, match="timeout") as raised:
        call_command(Here(), lock_timeout=timeout)
    assert raised.value.returncode == USAGE


def test_a_backend_that_cannot_be_asked_has_a_code_of_its_own(settings, backend_settings, server):
    settings.DISTLOCK = backend_settings("postgresql")
    server("postgresql").stop()
    with pytest.raises(CommandError) as raised:
        call_command(Here())
    assert raised.value.returncode == UNAVAILABLE
    locks.close_all()


def test_in_another_thread_it_is_ended_just_so(local):
    inside, ended = threading.Event(), []

    def work(command):
        inside.set()
        while True:
            time.sleep(0.01)

    def run():
        try:
            call_command(Here(work))
        except CommandError as error:
            ended.append(error.returncode)

    thread = threading.Thread(target=run)
    thread.start()
    inside.wait()
    assert Lock("here").force_release(Lock("here").info().token)
    thread.join()
    assert ended == [LOST]


def test_a_command_that_would_rather_ask_is_not_ended(local):
    class Asking(Here):
        lock_terminates = False

    def work(command):
        Lock("here").force_release(command.lock.token)
        with pytest.raises(LockLost):
            command.lock.check()

    with pytest.raises(CommandError, match="ran to its end") as raised:
        call_command(Asking(work))
    assert raised.value.returncode == LOST


def test_a_name_of_no_option_is_refused_before_anything_runs(local):
    class Wrong(Here):
        lock_name = "report:{account}"

    with pytest.raises(ImproperlyConfigured, match=r"'account'.*options are:.*shop") as raised:
        call_command(Wrong(pytest.fail))
    assert str(raised.value).count(__name__) == 1


@pytest.mark.parametrize("template", ["a{", "a{}", "", " a", "a\n"])
def test_a_template_that_is_none_is_refused(local, template):
    class Wrong(Here):
        lock_name = template

    with pytest.raises(ImproperlyConfigured, match="lock_name="):
        call_command(Wrong(pytest.fail))


def test_options_that_give_no_name_are_wrong_use(local):
    class Named(Here):
        lock_name = "{shop}"

    with pytest.raises(CommandError, match="lock_name=") as raised:
        call_command(Named(), shop="a\nb")
    assert raised.value.returncode == USAGE


def test_an_option_makes_one_name_from_the_command_line_and_from_code(local):
    class Shop(enum.Enum):
        BERLIN = "berlin"

    class Named(Here):
        lock_name = "{shop}"

    seen = []
    for shop in (Shop.BERLIN, "berlin"):
        call_command(Named(lambda command: seen.append(command.lock.name)), shop=shop)
    assert seen == ["berlin", "berlin"]


def test_attributes_that_cannot_be_are_told_by_name(local):
    class Wrong(Here):
        lock_at_least = 0

    with pytest.raises(ImproperlyConfigured, match="at_least must be .* got 0"):
        call_command(Wrong())


def test_so_is_a_time_limit_that_cannot_be(local):
    class Wrong(Here):
        lock_timeout = "5"

    with pytest.raises(ImproperlyConfigured, match="timeout must be a number of seconds, not '5'"):
        call_command(Wrong())


def test_other_handlers_of_signals_are_left_alone(local):
    def theirs(number, frame):
        pass

    before = signal.signal(signal.SIGTERM, theirs)
    try:
        call_command(Here(lambda command: str(signal.getsignal(signal.SIGTERM) is theirs)))
        assert signal.getsignal(signal.SIGTERM) is theirs
    finally:
        signal.signal(signal.SIGTERM, before)
    call_command(Here())
    assert signal.getsignal(signal.SIGTERM) is before
