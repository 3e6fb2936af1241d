"""Backends of several kinds side by side, and ways to run the command."""

from __future__ import annotations

import json
import time
from contextlib import suppress
from io import StringIO
from types import SimpleNamespace

import pytest
from django.core.management import CommandError, call_command

from distlock import Lock, LockLost, LockNotHeld
from distlock.handler import locks
from distlock.lease import State
from tests.commands.processes import abandon, hold, manage, manage_on_terminal


@pytest.fixture
def run():
    """``run("list", …)``: run ``manage.py locks`` here; its output and exit code."""

    def run_here(*arguments):
        out, err, code = StringIO(), StringIO(), 0
        try:
            call_command("locks", *arguments, stdout=out, stderr=err, no_color=True)
        except CommandError as error:
            err.write(str(error))
            code = error.returncode
        return SimpleNamespace(out=out.getvalue(), err=err.getvalue(), code=code)

    return run_here


@pytest.fixture
def run_json(run):
    """The same with ``--json``; what it printed, parsed."""

    def run_here(*arguments):
        return json.loads(run(*arguments, "--json").out)

    return run_here


@pytest.fixture
def process(child):
    """``process("list", …)``: run ``manage.py locks`` in a process; ``typed`` at its terminal."""

    def run_there(*arguments, typed=None):
        if typed is None:
            started = child(manage, "locks", *arguments)
        else:
            started = child(manage_on_terminal, typed, "locks", *arguments)
        return started

    return run_there


@pytest.fixture
def local(backend_settings, settings):
    """One backend, in this process."""
    settings.DISTLOCK = backend_settings("local")
    return locks["default"]


@pytest.fixture(params=["sqlite", "mariadb", "postgresql"])
def kind(request):
    return request.param


@pytest.fixture
def shared(kind, backend_settings, settings):
    """One backend that other processes see."""
    settings.DISTLOCK = backend_settings(kind)
    yield locks["default"]
    locks.close_all()


@pytest.fixture
def taken():
    """``taken("a", "b")``: hold locks here until the test ends; the locks."""
    held = []

    def take(*names, lease=600, **options):
        new = [Lock(name, lease=lease, **options) for name in names]
        for lock in new:
            assert lock.acquire(blocking=False)
        held.extend(new)
        return new

    yield take
    for lock in held:
        with suppress(LockLost, LockNotHeld):
            lock.release()


@pytest.fixture
def holder(child):
    """``holder("a", "b")``: a process that holds these locks; ``tokens`` are theirs."""

    def start(*names):
        process = child(hold, *names)
        process.tokens = [int(token) for token in process.line().split()]
        return process

    return start


@pytest.fixture
def abandoned(child):
    """``abandoned("a", "b")``: let a process take these locks and go away, and their leases end."""

    def take(*names):
        process = child(abandon, 0.3, *names)
        tokens = [int(token) for token in process.line().split()]
        process.finish()
        while any(locks["default"].inspect(name).state is State.HELD for name in names):
            time.sleep(0.01)
        return tokens

    return take
