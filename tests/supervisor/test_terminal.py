"""At a terminal, under a real shell: the program has the keyboard, Ctrl-C and Ctrl-Z."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import signal
import subprocess
import sys
import termios
import time
from pathlib import Path

import pytest

from distlock.types.lease import State
from tests.children import environment_of_child
from tests.contract.watch import eventually

LIMIT = 30.0


class Shell:
    """An interactive bash at a terminal of its own."""

    def __init__(self, folder: Path, python: str) -> None:
        self.master, slave = pty.openpty()
        (folder / "manage").write_text(
            f'#!/bin/sh\nexec {python} -c "from django.core.management import '
            'execute_from_command_line as run; import sys; run(sys.argv)" "$@"\n'
        )
        (folder / "manage").chmod(0o755)
        self.process = subprocess.Popen(
            ["bash", "--norc", "--noprofile", "-i"],
            stdin=slave,
            stdout=slave,
            stderr=slave,
            start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),  # make it the session's
            env={
                **os.environ,
                **environment_of_child(),
                "PS1": "$ ",
                "PATH": f"{folder}:{os.environ['PATH']}",
            },
            cwd=Path(__file__).parents[2],
        )
        os.close(slave)
        self._seen = ""

    def type(self, text: str) -> None:
        os.write(self.master, text.encode())

    def see(self, pattern: str) -> re.Match[str]:
        """Wait until this is on the screen, after what was seen last."""
        until = time.monotonic() + LIMIT
        while not (match := re.search(pattern, self._seen)):
            rest = until - time.monotonic()
            assert rest > 0 and select.select([self.master], [], [], rest)[0], repr(self._seen)
            self._seen += os.read(self.master, 65536).decode()
        self._seen = self._seen[match.end() :]
        return match

    def close(self) -> None:
        os.killpg(self.process.pid, signal.SIGHUP)
        self.process.kill()
        self.process.wait()
        os.close(self.master)


@pytest.fixture
def shell(backend, tmp_path):
    shell = Shell(tmp_path, sys.executable)
    shell.see(r"\$ ")
    yield shell
    shell.close()


def test_the_keyboard_is_the_programs(shell):
    shell.type("manage locks run stock -- sh -c 'echo re''ady; read word; echo got-$word'\n")
    shell.see("ready")
    shell.type("this\n")
    shell.see("got-this")
    shell.type("echo code-$?\n")
    shell.see("code-0")


def test_ctrl_c_ends_the_program_and_the_shell_has_the_terminal_again(shell, backend):
    # Without the trap a shell may wait for a program that it starts in that very moment.
    script = "trap \"exit 130\" INT; stty -echo; echo re''ady; while :; do sleep 0.05; done"
    shell.type(f"manage locks run stock -- sh -c '{script}'\n")
    shell.see("ready")
    shell.type("\x03")
    shell.see(r"\$ ")
    shell.type("echo code-$?\n")
    shell.see("echo")  # the terminal shows again what is typed
    shell.see("code-130")
    assert backend.inspect("stock").state is State.FREE


def test_ctrl_z_stops_it_and_fg_goes_on(shell, backend):
    shell.type("manage locks run stock -- sh -c 'echo re''ady; read word; echo got-$word'\n")
    shell.see("ready")
    shell.type("\x1a")
    shell.see("Stopped")
    to_the_foreground(shell)
    shell.type("this\n")
    shell.see("got-this")
    shell.type("echo code-$?\n")
    shell.see("code-0")


def to_the_foreground(shell):
    """Let the job go on; the shell names it in its answer, as it may have done just before."""
    shell.type("fg\n")
    shell.see(r"fg\s+.*manage locks run")


def told_of_the_job(shell):
    """What the shell says of what runs in the background; it may be some time behind."""
    shell.type("jobs\n")
    return shell.see("Running|Stopped")[0]


@pytest.mark.slow
def test_in_the_background_it_runs_without_the_keyboard(shell):
    shell.type("manage locks run stock -- sh -c 'echo re''ady; read word; echo got-$word' &\n")
    shell.see("ready")
    # As anything that reads from the terminal in the background.
    eventually(lambda: told_of_the_job(shell) == "Stopped")
    to_the_foreground(shell)
    shell.type("this\n")
    shell.see("got-this")


@pytest.mark.slow
def test_a_program_stopped_past_its_lease_is_not_there_any_more(shell, backend):
    shell.type(
        "manage locks run stock --lease=4 --grace=0.1 --"
        " sh -c 'echo re''ady; read word; echo got-$word'\n"
    )
    shell.see("ready")
    shell.type("\x1a")
    shell.see("Stopped")
    eventually(lambda: backend.inspect("stock").state is State.EXPIRED)
    to_the_foreground(shell)
    shell.see("was ended")
    shell.see(r"\$ ")
    shell.type("echo code-$?\n")
    shell.see("code-79")
