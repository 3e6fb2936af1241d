"""A process that has set Django up, and is forked for each child of the tests.

That costs more processor time than what most children do. The server has no connection, no lock and
no thread: a forked child goes on where a new process would be after ``django.setup()``. It is told
then which databases and locks there are.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import importlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO

_ROOT = Path(__file__).parent.parent
_PROGRAM = "from tests.forkserver import serve; serve()\nfrom tests.children import main; main()"
#: What children import most after that.
_IMPORTED = [
    "asyncio",
    "distlock.backends.database",
    "distlock.backends.etcd",
    "distlock.backends.local",
    "distlock.backends.zookeeper",
    "distlock.commands",
    "django.core.management",
    "django.db.backends.mysql.base",
    "django.db.backends.postgresql.base",
    "django.db.backends.sqlite3.base",
    "pytest",
    "tests.contract.actor_process",
]
_LONGEST_REQUEST = 1 << 20


class ForkedProcess:
    """A child of the fork server; the part of ``subprocess.Popen`` that is needed here."""

    def __init__(self, pid: int, stdin: IO[str], stdout: IO[str], report: IO[str]) -> None:
        self.pid = pid
        self.stdin = stdin
        self.stdout = stdout
        self.returncode: int | None = None
        self._report = report
        self._reading = threading.Lock()

    def wait(self, timeout: float | None = None) -> int:
        """Return its exit code once the server has reaped it; see Popen.wait()."""
        with self._reading:
            if self.returncode is None:
                ready, _, _ = select.select([self._report], [], [], timeout)
                if not ready:
                    raise subprocess.TimeoutExpired(f"process {self.pid}", timeout or 0)
                self.returncode = int(self._report.readline())
                self._report.close()
            return self.returncode

    def send_signal(self, signum: int) -> None:
        """Send a signal, unless it has ended."""
        try:
            self.wait(0)
        except subprocess.TimeoutExpired:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signum)

    def kill(self) -> None:
        """End it at once, if it still runs."""
        self.send_signal(signal.SIGKILL)


class ForkServer:
    """The test run's side of the server."""

    def __init__(self) -> None:
        from tests.servers.guard import guard

        self._requests, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 (kept as long as the server)
        environment = {**os.environ, "DJANGO_SETTINGS_MODULE": "tests.settings"}
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-c", _PROGRAM],
                stdin=theirs,
                stdout=subprocess.PIPE,  # a child's streams are set up like those of the server
                stderr=self._errors,
                cwd=_ROOT,
                start_new_session=True,
                env=environment,
            )
        guard().watch(self._process.pid, signal.SIGTERM)
        atexit.register(self._close)

    def start(self, arguments: Sequence[str], stderr: int, env: Mapping[str, str]) -> ForkedProcess:
        """Fork a child that runs tests.children.main(), with these arguments."""
        their_stdin, stdin = os.pipe()
        stdout, their_stdout = os.pipe()
        report, their_report = os.pipe()
        theirs = [their_stdin, their_stdout, stderr, their_report]
        ignored = [n for n in signal.valid_signals() if signal.getsignal(n) == signal.SIG_IGN]
        message = json.dumps([list(arguments), dict(env), ignored]).encode()
        try:
            socket.send_fds(self._requests, [message], theirs)
        finally:
            for descriptor in (their_stdin, their_stdout, their_report):
                os.close(descriptor)
        told = os.fdopen(report)
        pid = told.readline()
        if not pid:
            raise RuntimeError(f"The fork server has ended:\n{self._last_words()}")
        return ForkedProcess(int(pid), os.fdopen(stdin, "w"), os.fdopen(stdout), told)

    def _close(self) -> None:
        self._process.terminate()
        self._process.communicate()
        self._requests.close()
        self._errors.close()

    def _last_words(self) -> str:
        self._errors.seek(0)
        return self._errors.read().decode(errors="replace")


_server: ForkServer | None = None


def fork_server() -> ForkServer:
    """Return the fork server of this process, started on first use."""
    global _server
    if _server is None:
        _server = ForkServer()
    return _server


def serve() -> None:
    """Be the server. Returns in each child, once it has its own arguments and streams."""
    import django

    django.setup()
    for module in _IMPORTED:
        importlib.import_module(module)
    gc.freeze()
    requests = socket.socket(fileno=0)
    poll = select.poll()
    poll.register(requests, select.POLLIN)
    reports: dict[int, tuple[int, int]] = {}  # by the pidfd of a child, its pid and who is told
    while True:
        for ready, _ in poll.poll():
            if ready in reports:
                poll.unregister(ready)
                pid, report = reports.pop(ready)
                code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
                _tell(report, code)
                os.close(report)
                os.close(ready)
                continue
            message, descriptors, _, _ = socket.recv_fds(requests, _LONGEST_REQUEST, 4)
            if not message:
                os._exit(0)  # the test run has ended
            *streams, report = descriptors
            pid = os.fork()
            if not pid:
                requests.detach()  # its descriptor becomes the child's stdin
                for pidfd, (_, other) in reports.items():
                    os.close(pidfd)
                    os.close(other)
                _become(streams, report, *json.loads(message))
                return
            for stream in streams:
                os.close(stream)
            pidfd = os.pidfd_open(pid)
            reports[pidfd] = pid, report
            poll.register(pidfd, select.POLLIN)


def _tell(report: int, number: int) -> None:
    with contextlib.suppress(BrokenPipeError):  # the test run has ended
        os.write(report, f"{number}\n".encode())


def _become(
    streams: list[int],
    report: int,
    arguments: list[str],
    environment: dict[str, str],
    ignored: list[int],
) -> None:
    """Have what a new process gets from the one that starts it."""
    os.setsid()
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    os.environ.clear()
    os.environ.update(environment)
    sys.argv[1:] = arguments
    for number in ignored:
        signal.signal(number, signal.SIG_IGN)
    _tell(report, os.getpid())  # from now on it is a process of its own
    os.close(report)
