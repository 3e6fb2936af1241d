"""A program at a terminal of a given size, and what it prints there."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import struct
import subprocess
import sys
import termios
import time
from pathlib import Path

from tests.children import environment_of_child

LIMIT = 60.0
#: Runs ``manage.py`` with the arguments that follow.
MANAGE = (
    sys.executable,
    "-c",
    "import sys; from django.core.management import execute_from_command_line as run;"
    " run(['manage.py', *sys.argv[1:]])",
)
#: Variables that go before what the terminal itself is; pytest may have set them.
_OF_OTHERS = {"NO_COLOR", "COLUMNS", "LINES"}
#: What moves the cursor, colours and the like: no text.
_CONTROL = re.compile(r"\x1b(\[[0-9;?]*[A-Za-z]|\([AB0]|[=>78])|[\x0e\x0f]")


class Terminal:
    """A terminal with a program in its foreground."""

    def __init__(self, *command, columns=80, rows=24, env=None):
        self.master, slave = pty.openpty()
        self.resize(columns, rows)
        self.before = termios.tcgetattr(slave)
        self.process = subprocess.Popen(
            command,
            stdin=slave,
            stdout=slave,
            stderr=slave,
            start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),  # make it the session's
            env={
                **{name: value for name, value in os.environ.items() if name not in _OF_OTHERS},
                **environment_of_child(),
                "TERM": "xterm-256color",
                "LC_ALL": "C.UTF-8",
                **(env or {}),
            },
            cwd=Path(__file__).parents[2],
        )
        self._slave = slave  # kept open: what the program has printed can be read after its end
        #: all that was printed, as it was
        self.printed = ""
        self._seen = 0

    def resize(self, columns, rows=24):
        """Give the terminal another size, and tell its program."""
        fcntl.ioctl(self.master, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def type(self, text):
        os.write(self.master, text.encode())

    def see(self, pattern):
        """Wait until this has been printed since the last call; return the match."""
        until = time.monotonic() + LIMIT
        while not (match := re.search(pattern, _CONTROL.sub("", self.printed[self._seen :]))):
            assert time.monotonic() < until, f"no {pattern!r} in {self.printed[self._seen :]!r}"
            self._read(0.1)
        self._seen = len(self.printed)
        return match

    def end(self):
        """Wait for the end of the program; return its exit code."""
        until = time.monotonic() + LIMIT
        while self.process.poll() is None:
            assert time.monotonic() < until, f"it has not ended; it printed {self.printed!r}"
            self._read(0.1)
        while self._read(0):
            pass
        return self.process.returncode

    @property
    def lines(self):
        """What was printed, without colours."""
        return self.plain(self.printed).replace("\r", "").splitlines()

    @staticmethod
    def plain(text):
        """Return the text without colours and what moves the cursor."""
        return _CONTROL.sub("", text)

    @property
    def restored(self):
        """Whether the terminal has the modes that it had."""
        return termios.tcgetattr(self._slave) == self.before

    def close(self):
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        os.close(self.master)
        os.close(self._slave)

    def _read(self, seconds):
        if not select.select([self.master], [], [], seconds)[0]:
            return False
        self.printed += os.read(self.master, 65536).decode(errors="replace")
        return True
