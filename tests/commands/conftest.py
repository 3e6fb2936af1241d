"""Backends of several kinds side by side, and ways to run the command."""

from __future__ import annotations

import json
import socket
from contextlib import ExitStack, closing, suppress
from datetime import UTC, datetime, timedelta
from io import StringIO
from types import SimpleNamespace

import pytest
from django.core.management import CommandError, call_command
from django.db import DatabaseError

from distlock.conf import locks
from distlock.models import AuditEntry, DatabaseLock, DatabaseRecord, RecordDirectory, RecordSession
from tests.commands.processes import abandon, hold, manage, manage_on_terminal
from tests.commands.terminal import MANAGE, Terminal
from tests.databases import ALIASES
from tests.servers.process import free_port


@pytest.fixture(autouse=True)
def _nothing_was_done_by_hand():
    """Let no test see in the audit log what others did to locks of the same names."""
    with suppress(DatabaseError):  # where nobody has migrated it, nothing was written
        AuditEntry.objects.all().delete()


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
def terminal():
    """``terminal("list", columns=60)``: ``manage.py locks`` at a terminal of its own.

    ``program`` is another one, with its own arguments.
    """
    with ExitStack() as running:

        def start(*arguments, program=(*MANAGE, "locks"), **options):
            return running.enter_context(closing(Terminal(*program, *arguments, **options)))

        yield start


@pytest.fixture
def silent():
    """The port of a server that accepts connections, and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield listening.getsockname()[1]


@pytest.fixture
def sqlite_only(backend_settings, settings):
    """One backend that other processes see, the one that is there soonest."""
    settings.DISTLOCK = backend_settings("sqlite")
    yield locks["default"]
    locks.close_all()


@pytest.fixture
def troubled(settings, silent):
    """A dead backend and a silent one beside the others."""
    ports = (("dead", free_port()), ("mute", silent))
    others = {alias: f"127.0.0.1:{port}" for alias, port in ports}
    settings.DISTLOCK = {
        **settings.DISTLOCK,
        **{
            alias: {"BACKEND": "distlock.backends.etcd.EtcdBackend", "LOCATION": where}
            for alias, where in others.items()
        },
    }


@pytest.fixture
def shared(kind, backend_settings, settings):
    """One backend that other processes see, with nothing in it."""
    settings.DISTLOCK = backend_settings(kind)
    _clear(kind)
    yield locks["default"]
    locks.close_all()
    _clear(kind)


def _clear(kind):
    """Delete what a sweep would count: children that were killed leave some, and other files."""
    for model in (RecordSession, DatabaseRecord, RecordDirectory, DatabaseLock):
        if kind in ALIASES:
            model._default_manager.using(ALIASES[kind]).delete()


@pytest.fixture
def holder(child):
    """``holder("a", "b")``: a process that holds these locks; ``tokens`` are theirs."""

    def start(*names):
        process = child(hold, *names)
        process.tokens = [int(token) for token in process.line().split()]
        return process

    return start


@pytest.fixture
def overdue():
    """``overdue("a")``: let a lock on SQLite with a lease of ten minutes have only one left."""

    def change(name):
        until = datetime.now(UTC) + timedelta(seconds=60)
        assert DatabaseLock.objects.filter(lock=name).update(expires_at=until)

    return change


@pytest.fixture
def abandoned(child):
    """``abandoned("a", "b")``: let a process take these locks and go away, and their leases end."""

    def take(*names):
        process = child(abandon, 600, *names)
        tokens = [int(token) for token in process.line().split()]
        process.finish()
        rows = DatabaseLock.objects.using(locks["default"].settings.options["database"])
        rows.filter(lock__in=names).update(expires_at="2020-01-01T00:00:00Z")
        return tokens

    return take
