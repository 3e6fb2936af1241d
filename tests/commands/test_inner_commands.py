"""Commands that run inside of a ``LockedCommand``: the loss of its lock gets through them."""

import contextlib
import threading

import pytest
from django.core.management import CommandError, call_command

from distlock import Lock
from distlock.commands import arguments
from distlock.commands.exit_codes import BUSY, LOST, fail, run_command
from tests.commands.test_locked import Here


def lose_it(*args):
    """Break the lock of the command that runs this, and go on until that ends it."""
    token = Lock("here").info().token
    threading.Thread(target=lambda: Lock("here").force_release(token)).start()
    threading.Event().wait()


class LostWhileTaken(Lock):
    def acquire(self, *args, **options):
        lose_it()


class LostWhileLeft(Lock):
    def release(self):
        super().release()
        if Lock("here").locked():
            lose_it()


def run_inside(lock):
    """Run a command under another lock, inside of one."""
    options = {"timeout": 0, "busy_code": BUSY, "verbosity": 1}
    run_command(Here(), lock, lambda: None, fail_as_lost, **options)


def fail_as_lost(error):
    fail(LOST, str(error))


@pytest.mark.parametrize(
    "step",
    [
        lambda: run_inside(LostWhileTaken("inner")),
        lambda: run_inside(LostWhileLeft("inner")),
        lambda: arguments.ask("default", lose_it),
        lambda: list(arguments.Backends(["default"]).work(lose_it)),
    ],
    ids=["taking another", "leaving another", "asking", "working"],
)
def test_no_command_that_runs_inside_hides_the_loss(local, step):
    def work(command):
        with contextlib.suppress(CommandError):
            step()
        went_on.append(step)

    went_on = []
    with pytest.raises(CommandError, match="'here'") as raised:
        call_command(Here(work))
    assert raised.value.returncode == LOST
    assert not went_on


def test_a_command_whose_own_lock_is_lost_too_does_not_hide_it_either(local):
    class Inner(Here):
        lock_name = "inner"
        lock_terminates = False

    def lose_both(command):
        try:
            lose_it()
        finally:
            Lock("inner").force_release(command.lock.token)

    def work(command):
        with contextlib.suppress(CommandError):
            call_command(Inner(lose_both))
        went_on.append(command)

    went_on = []
    with pytest.raises(CommandError, match="'here'"):
        call_command(Here(work))
    assert not went_on
