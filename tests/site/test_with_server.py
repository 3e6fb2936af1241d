"""``make demo LOCKS=etcd`` runs on a server that comes and goes with it."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator

import pytest

from tests.servers.guard import descendants, started_at
from tests.site.conftest import PROJECT

LIMIT = 60.0

#: Says where the server is, and waits to be ended.
COMMAND = """
import os, time
print(os.environ[{!r}], flush=True)
while True:
    time.sleep(0.1)
"""
#: What a server is asked, and the beginning of its answer.
GREETINGS = {"zookeeper": (b"ruok", b"imok"), "etcd": (b"GET /health HTTP/1.0\r\n\r\n", b"HTTP")}

Run = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def run() -> Iterator[Run]:
    """``run(kind, *command)``: a command with a server, in a process group of their own."""
    started: list[subprocess.Popen[str]] = []

    def start(kind: str, *command: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-m", "tools.with_server", kind, *command],
            cwd=PROJECT,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


@pytest.mark.slow
@pytest.mark.parametrize("kind", GREETINGS)
@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM])
def test_the_server_ends_when_the_command_is_interrupted(
    signum: signal.Signals, kind: str, run: Run
) -> None:
    process = run(kind, sys.executable, "-c", COMMAND.format(kind.upper()))
    assert process.stdout is not None
    host, port = process.stdout.readline().strip().split(":")
    asked, answer = GREETINGS[kind]
    with socket.create_connection((host, int(port)), timeout=LIMIT) as connection:
        connection.sendall(asked)
        assert connection.recv(4) == answer
    born = {pid: started_at(pid) for pid in descendants(process.pid)}
    assert len(born) >= 3  # with the server and the command
    if signum == signal.SIGINT:
        os.killpg(process.pid, signum)  # as a terminal does
    else:
        process.send_signal(signum)
    _, errors = process.communicate(timeout=LIMIT)
    assert process.returncode == 128 + signum
    assert not re.search("with_server", errors)  # but the command's own traceback
    assert not any(start and started_at(pid) == start for pid, start in born.items())


def test_it_ends_as_its_command_does(run: Run) -> None:
    process = run("etcd", sys.executable, "-c", "import sys; sys.exit(7)")
    assert process.communicate(timeout=LIMIT) == ("", "")
    assert process.returncode == 7
