"""Functions of test modules in processes of their own."""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import inspect
import json
import os
import queue
import select
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

#: Seconds in which a child has to say what it is expected to say.
LIMIT = 60.0

_ROOT = Path(__file__).parent.parent
_PROGRAM = "from tests.children import main; main()"
_PATCHED = "from gevent import monkey; monkey.patch_all(); "  # before anything else is imported


def write_line(*words: object) -> None:
    """In a child: send a line to the parent; whole, whatever other threads say meanwhile."""
    sys.stdout.write(" ".join(map(str, words)) + "\n")
    sys.stdout.flush()


def read_line() -> str:
    """In a child: wait for a line of the parent; EOFError when the parent will send no more."""
    line = b""
    while not line.endswith(b"\n"):
        # Python misses a signal that comes in the moment in which it begins to read or to wait.
        while not select.select([0], [], [], 0.5)[0]:
            pass
        if not (read := os.read(0, 1)):
            raise EOFError
        line += read
    return line[:-1].decode()


class Child:
    """A process that runs ``module:function`` with the databases and locks of this moment."""

    def __init__(
        self,
        function: str | Callable[..., Any],
        *args: Any,
        gevent: bool = False,
        env: Mapping[str, str] | None = None,
    ) -> None:
        from django.conf import settings

        from tests.forkserver import ForkedProcess, fork_server
        from tests.servers.guard import guard

        if not isinstance(function, str):
            function = f"{function.__module__}:{function.__qualname__}"
        arguments = [function, json.dumps(args)]
        environment = {**os.environ, **environment_of_child(), **(env or {})}
        self._function = function
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 (kept as long as the child)
        self._process: subprocess.Popen[str] | ForkedProcess
        # Where more of the settings matters to what is imported: an interpreter of its own.
        if gevent or env or settings.DISTLOCK_GROUPS:
            program = _PATCHED + _PROGRAM if gevent else _PROGRAM
            self._process = subprocess.Popen(
                [sys.executable, "-c", program, *arguments],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._errors,
                text=True,
                cwd=_ROOT,
                start_new_session=True,
                env=environment,
            )
        else:
            self._process = fork_server().start(arguments, self._errors.fileno(), environment)
        self._guard = guard()
        self._guard.watch(self.pid, signal.SIGKILL)
        self._lines: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self._reader = threading.Thread(target=self._read, name="child-output", daemon=True)
        self._reader.start()

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def errors(self) -> str:
        """What it has written to its stderr so far."""
        try:
            return os.pread(self._errors.fileno(), 1_000_000, 0).decode(errors="replace")
        except (ValueError, OSError):  # closed
            return self._last_errors

    def line(self, timeout: float = LIMIT) -> str:
        """Return its next line; AssertionError if it sends none in ``timeout`` seconds."""
        try:
            line = self._lines.get(timeout=timeout)
        except queue.Empty:
            raise AssertionError(self._complaint(f"said nothing for {timeout:g} s")) from None
        if line is None:
            self._lines.put(None)
            raise AssertionError(self._complaint("ended without another line"))
        return line

    def tell(self, text: str = "") -> None:
        """Send it a line."""
        assert self._process.stdin is not None
        self._process.stdin.write(text + "\n")
        self._process.stdin.flush()

    def signal(self, signum: int) -> None:
        """Send it a signal; SIGSTOP has stopped it when this returns."""
        from tests.servers.process import await_rest

        self._process.send_signal(signum)
        if signum == signal.SIGSTOP:
            await_rest([self.pid])

    def kill(self) -> None:
        """End it at once, if it still runs."""
        self._process.kill()
        self.wait()

    def wait(self, timeout: float = LIMIT) -> int:
        """Return its exit code; AssertionError if it has not ended in ``timeout`` seconds."""
        try:
            code = self._process.wait(timeout)
        except subprocess.TimeoutExpired:
            raise AssertionError(self._complaint(f"still runs after {timeout:g} s")) from None
        self._guard.forget(self.pid)
        return code

    def finish(self, timeout: float = LIMIT) -> list[str]:
        """Return its remaining lines once it has ended well; AssertionError otherwise."""
        if code := self.wait(timeout):
            raise AssertionError(self._complaint(f"ended with exit code {code}"))
        return self.rest()

    def rest(self) -> list[str]:
        """Return its remaining lines; waits until it has ended, however that was."""
        return list(iter(self._lines.get, None))

    def close(self) -> None:
        """End it, with the children that it left, and let go of its pipes."""
        self.kill()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)  # else its pipes stay open
        self._reader.join(LIMIT)
        self._last_errors = self.errors
        for pipe in (self._process.stdin, self._process.stdout, self._errors):
            assert pipe is not None
            with contextlib.suppress(BrokenPipeError):  # a line that it never read
                pipe.close()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._lines.put(line.rstrip("\n"))
        self._lines.put(None)

    def _complaint(self, problem: str) -> str:
        return f"{self._function} (process {self.pid}) {problem}. Its stderr:\n{self.errors}"


def environment_of_child() -> dict[str, str]:
    """Return what tells a child which databases and locks there are at this moment."""
    from django.conf import settings

    from tests.settings import INHERITED, NOT_STARTED

    databases = settings.DATABASES.items()
    handed = {
        # Django's checks, which come before every command, ask all databases that are there.
        "DATABASES": {alias: one for alias, one in databases if one["NAME"] != NOT_STARTED},
        "DISTLOCK": getattr(settings, "DISTLOCK", {}),
        "DISTLOCK_GROUPS": settings.DISTLOCK_GROUPS,
    }
    return {
        "DJANGO_SETTINGS_MODULE": "tests.settings",
        INHERITED: json.dumps(handed),
    }


def main() -> None:
    """Be the child: run the function that the command line names."""
    import django
    from django.apps import apps

    if apps.ready:  # in the server that this process was forked from
        _inherit()
    else:
        django.setup()
    target, arguments = sys.argv[1:]
    module, _, name = target.partition(":")
    function: Any = importlib.import_module(module)
    for part in name.split("."):
        function = getattr(function, part)
    if inspect.iscoroutinefunction(function):
        asyncio.run(function(*json.loads(arguments)))
    else:
        function(*json.loads(arguments))


def _inherit() -> None:
    """Take the settings from the environment, though Django was set up with others."""
    from django.conf import settings
    from django.db import connections

    from tests.settings import INHERITED

    inherited = json.loads(os.environ[INHERITED])
    # Models have asked for a connection as they were made, so it is there, but not connected.
    for connection in connections.all(initialized_only=True):
        del connections[connection.alias]
    connections.settings.clear()  # it is settings.DATABASES
    connections.settings.update(connections.configure_settings(inherited.pop("DATABASES")))
    for name, value in inherited.items():
        setattr(settings, name, value)
