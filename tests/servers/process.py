"""What all servers have in common: a folder, a port, and processes that can be made to suffer."""

from __future__ import annotations

import os
import pwd
import random
import shutil
import signal
import socket
import subprocess
import time
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any, ClassVar, Self

from tests.servers.guard import GRACE, descendants, guard, is_at_rest, send

HOST = "127.0.0.1"
#: Seconds in which a server has to answer after its start, also on a machine that has a lot to do.
START_LIMIT = 100.0
#: Seconds in which a server has to end in good order; after that it is killed.
STOP_LIMIT = 30.0


def free_port() -> int:
    """Return a port that nobody listens on, and that outgoing connections do not use either.

    A client that keeps trying to reach a stopped server on an ephemeral port connects to itself
    sooner or later. The port stays this process's own, also while its server is down: other runs
    of the tests see the claim, which is a name that the kernel forgets with the process.
    """
    for port in random.sample(range(20000, 32000), 1000):
        claim = socket.socket(socket.AF_UNIX)
        try:
            claim.bind(f"\0distlock-tests-{port}")
            with socket.socket() as probe:
                probe.bind((HOST, port))
        except OSError:
            claim.close()
            continue
        claim.detach()  # the descriptor stays open
        return port
    raise RuntimeError("There is no free port between 20000 and 32000.")


def await_rest(pids: list[int]) -> None:
    """Wait until signals have taken effect; a process that writes to disk takes a little longer."""
    ends_at = time.monotonic() + GRACE
    while not all(map(is_at_rest, pids)) and time.monotonic() < ends_at:
        time.sleep(0.005)


class Server(ABC):
    """One real server on 127.0.0.1; a context manager that leaves nothing behind."""

    name: ClassVar[str]
    #: The system user it runs as when the tests run as root, because it refuses to be root.
    account: ClassVar[str | None] = None
    stop_signal: ClassVar[signal.Signals] = signal.SIGTERM
    #: its environment variables; None: those of the test run
    environment: dict[str, str] | None = None

    def __init__(self) -> None:
        self.host = HOST
        self.port = free_port()
        self.folder = guard().folder(f"distlock-{self.name}-")
        self._process: subprocess.Popen[bytes] | None = None
        self._as_user: dict[str, Any] = {}
        if self.account and os.geteuid() == 0:
            entry = pwd.getpwnam(self.account)
            os.chown(self.folder, entry.pw_uid, entry.pw_gid)
            self._as_user = {"user": entry.pw_uid, "group": entry.pw_gid, "extra_groups": []}

    @abstractmethod
    def install(self) -> None:
        """Lay out the data folder, once."""

    @abstractmethod
    def command(self) -> list[str]:
        """Return the command that runs the server in the foreground."""

    @abstractmethod
    def answers(self) -> bool:
        """Tell whether the server serves clients now; connects to find out."""

    @property
    def log(self) -> Path:
        return self.folder / "server.log"

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def pids(self) -> list[int]:
        """Return the pids of all its processes, the parent first."""
        return descendants(self._process.pid) if self._process and self.running else []

    def launch(self) -> None:
        """Start the process without waiting until it serves."""
        if self.running:
            raise RuntimeError(f"{self.name} is running already.")
        if not self.log.exists():
            self.install()
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                self.command(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self.folder,
                start_new_session=True,
                env=self.environment,
                **self._as_user,
            )
        guard().watch(self._process.pid, self.stop_signal)

    def await_answer(self) -> None:
        """Wait until the server serves clients; RuntimeError with its log if it does not."""
        assert self._process is not None
        ends_at = time.monotonic() + START_LIMIT
        while not self.answers():
            try:
                self._process.wait(0.05)
            except subprocess.TimeoutExpired:
                if time.monotonic() < ends_at:
                    continue
            raise RuntimeError(f"{self.name} did not start:\n{self.log_tail()}")

    def start(self) -> Self:
        """Start it, on the same port and data as before, and return when it serves clients."""
        self.launch()
        self.await_answer()
        return self

    def stop(self) -> None:
        """End it in good order; sessions are closed, data is kept."""
        self._end(self.stop_signal)

    def kill(self) -> None:
        """End all its processes at once, as a power cut would."""
        self._end(signal.SIGKILL)

    def pause(self) -> None:
        """Stop all its processes where they are; connections stay open and silent."""
        while not all(map(is_at_rest, pids := self.pids())):  # some may be new
            for pid in pids:
                send(pid, signal.SIGSTOP)
            await_rest(pids)

    def resume(self) -> None:
        """Let all its processes go on."""
        for pid in reversed(self.pids()):
            send(pid, signal.SIGCONT)

    def heal(self) -> None:
        """Bring it back from whatever a test has done to it."""
        if self.running:
            self.resume()
        else:
            self.start()

    def close(self) -> None:
        """End it and remove its data."""
        self.stop()
        shutil.rmtree(self.folder, ignore_errors=True)

    def log_tail(self) -> str:
        lines = self.log.read_text(errors="replace").splitlines() if self.log.exists() else []
        return "\n".join(lines[-30:])

    def write(self, name: str, text: str) -> Path:
        """Write a file that the server's user can read; the folder keeps others out."""
        path = self.folder / name
        path.write_text(text)
        path.chmod(0o644)
        return path

    def run(self, *command: str) -> None:
        """Run a program as the server's user; RuntimeError with its output if it fails."""
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            cwd=self.folder,
            **self._as_user,
        )
        if done.returncode:
            raise RuntimeError(f"{' '.join(command)} failed:\n{done.stdout}")

    def __enter__(self) -> Self:
        try:
            return self.start()
        except BaseException:
            self.close()
            raise

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def _end(self, signum: signal.Signals) -> None:
        process = self._process
        if process is None:
            return
        if signum == signal.SIGKILL:
            self.pause()  # or one could start another meanwhile
        family = self.pids()
        for pid in family if signum == signal.SIGKILL else family[:1]:
            send(pid, signum)
        self.resume()
        try:
            process.wait(STOP_LIMIT)
        except subprocess.TimeoutExpired:
            for pid in family:
                send(pid, signal.SIGKILL)
            process.wait()
        await_rest(family)
        guard().forget(process.pid)
        self._process = None
