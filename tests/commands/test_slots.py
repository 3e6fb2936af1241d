"""At most so many instances of a command at a time, and ``manage.py locks resize``."""

import contextlib
import io
import signal

import pytest
from django.core.exceptions import ImproperlyConfigured
from django.core.management import CommandError, call_command

from distlock import LockNotHeld, locks
from distlock.commands import LockedCommand
from distlock.commands.exit_codes import BUSY, FAILED, USAGE
from distlock.recipes import Progress, Semaphore, bar
from tests.commands.processes import manage
from tests.contract.watch import eventually


class Here(LockedCommand):
    """A command whose work is what the test says."""

    lock_name = "here"
    lock_slots = 2

    def __init__(self, work=lambda command: None):
        super().__init__(stdout=io.StringIO(), stderr=io.StringIO())
        self.work = work

    def handle(self, **options):
        return self.work(self)


@pytest.fixture
def kind():
    return "sqlite"


@pytest.fixture
def mailing(child, shared):
    """Start the command ``mailing``, of which two instances may run, in a process."""
    return lambda *arguments: child(manage, "mailing", *arguments)


def test_as_many_run_as_there_are_slots_and_the_next_one_waits(mailing):
    slots = Semaphore("mailing:main")
    first, second = mailing(), mailing()
    tokens = {int(run.line().split()[1]) for run in (first, second)}
    assert {holder.token for holder in slots.info().holders} == tokens
    waiting, late = mailing("--lock-timeout=30"), mailing()
    assert late.wait() == BUSY
    assert "semaphore 'mailing:main' on 'default' has no free slot (2 of 2" in late.errors
    assert "manage.py tests.mailing" in late.errors
    eventually(lambda: slots.info().waiters)
    first.tell("good morning")
    assert first.finish() == ["told good morning"]
    assert waiting.line().startswith("running")
    assert slots.info().taken == 2
    second.signal(signal.SIGTERM)
    assert second.wait() == 128 + signal.SIGTERM
    assert slots.info().taken == 1
    other_name = mailing("--shop=other")
    assert other_name.line().startswith("running")
    waiting.tell("bye")
    waiting.finish()
    assert slots.info().taken == 0


def test_its_lock_is_the_semaphore(local):
    def work(command):
        command.lock.check()
        return f"{command.lock!r} {Semaphore('here').info().taken}"

    ended = call_command(Here(work))
    assert ended == "<Semaphore 'here' using='default' held> 1"
    assert not Semaphore("here").info().holders


def test_another_number_than_those_say_that_run_now_is_an_error(local):
    with Semaphore("here", 3), pytest.raises(CommandError, match="has 3 seats") as raised:
        call_command(Here())
    assert raised.value.returncode == FAILED


def test_the_number_may_be_the_one_that_was_said_last(local):
    class Agreed(Here):
        lock_slots = "agreed"

    with pytest.raises(CommandError, match="the number of seats is not set yet") as raised:
        call_command(Agreed())
    assert raised.value.returncode == FAILED
    call_command("locks", "resize", "here", "1", "--create", stdout=io.StringIO())
    call_command(Agreed())
    with Semaphore("here"), pytest.raises(CommandError, match=r"\(1 of 1\)") as raised:
        call_command(Agreed())
    assert raised.value.returncode == BUSY


def test_without_the_lock_it_runs_and_has_no_seat(local):
    def work(command):
        command.lock.check()
        with command.lock, contextlib.ExitStack() as stack:
            stack.enter_context(command.lock)
            assert command.lock.acquire(timeout=0)
            command.lock.release()
        assert not command.lock.held
        with pytest.raises(LockNotHeld, match="'here'.*--no-lock"):
            _ = command.lock.token
        return str(command.lock.info().taken)

    with Semaphore("here", 2), Semaphore("here", 2):
        assert call_command(Here(work), no_lock=True) == "2"


def test_its_loop_is_seen_under_the_name_of_its_lock(local):
    def work(command):
        rows = list(command.track([1, 2, 3], unit="rows"))
        return f"{rows} {bar(Progress.get('here'))}"

    assert call_command(Here(work)).startswith("[1, 2, 3] here 100% [")
    assert Progress.get("here").description.startswith("manage.py ")


@pytest.mark.parametrize(
    ("attributes", "says"),
    [
        ({"lock_slots": 0}, "slots must be at least 1 .* got 0"),
        ({"lock_slots": "2"}, "slots must be a number or 'agreed', not '2'"),
        ({"lock_at_least": 60}, "at_least=60 does not go with slots=2"),
    ],
)
def test_attributes_that_cannot_be_are_told_by_name(local, attributes, says):
    with pytest.raises(ImproperlyConfigured, match=says):
        call_command(type("Wrong", (Here,), attributes)(pytest.fail))


class TestResize:
    def test_the_number_is_changed_for_all(self, shared, run):
        assert run("resize", "mailer", "3", "--create").out == (
            "mailer on default had no number yet, and has 3 now; 0 taken.\n"
        )
        with Semaphore("mailer"), Semaphore("mailer"):
            assert run("resize", "mailer", "1").out == (
                "mailer on default had 3 seats, and has 1 now; 2 taken.\n"
                "Seats are granted again when enough of these have been released.\n"
            )
            assert not Semaphore("mailer", on_busy="raise").acquire()
        with Semaphore("mailer") as mailer:
            assert mailer.info().slots == 1

    def test_a_misspelt_name_is_told_and_leaves_nothing(self, shared, run):
        Semaphore("mailer").resize(3)
        ended = run("resize", "mialer", "5")
        assert ended.code == FAILED
        assert "No semaphore mialer on default is in use" in ended.err
        assert "--create" in ended.err
        assert list(locks["default"].store.directories()) == ["semaphore:mailer"]

    def test_a_name_that_somebody_uses_needs_no_more(self, local, run):
        with Semaphore("mailer", 3):
            assert run("resize", "mailer", "5").out.startswith("mailer on default had 3 seats")

    @pytest.mark.parametrize("value", ["0", "-1", "x", "1.5", str(2**31)])
    def test_what_is_no_number_of_seats_is_refused(self, local, run, value):
        ended = run("resize", "mailer", "--", value)
        assert (ended.code != 0, "VALUE: must be at least 1" in ended.err) == (True, True)

    def test_another_backend_may_be_chosen(self, settings, backend_settings, run):
        settings.DISTLOCK = {**backend_settings("local"), **backend_settings("local", alias="b")}
        assert run("resize", "mailer", "3", "--create", "--using=b").code == 0
        assert Semaphore("mailer", using="b").info().slots == 3
        wrong = run("resize", "mailer", "3", "--using=c")
        assert (wrong.code, "no alias 'c'" in wrong.err) == (USAGE, True)

    def test_a_backend_that_cannot_be_asked_is_an_error(self, settings, run):
        zookeeper = "distlock.backends.zookeeper.ZooKeeperBackend"
        entry = {"BACKEND": zookeeper, "LOCATION": "127.0.0.1:1", "OPTIONS": {"timeout": 0.5}}
        settings.DISTLOCK = {"default": entry}
        ended = run("resize", "mailer", "3")
        assert (ended.code, "'default' could not be asked" in ended.err) == (FAILED, True)
