"""Processes that run programs under locks, and ways to see what is left of them."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import pytest

from distlock import locks
from tests.commands.processes import manage
from tests.contract.watch import eventually
from tests.servers.guard import descendants, started_at

#: why a lock is lost whose backend does not answer: who has stood still may see it after its end
NOT_RENEWED = "could not be renewed|ended before it was renewed"

BEATING = str(Path(__file__).with_name("beating.py"))


@pytest.fixture
def kind():
    """The kind of backend, as ``backend_settings`` calls it."""
    return "sqlite"


@pytest.fixture
def backend(kind, backend_settings, settings):
    settings.DISTLOCK = backend_settings(kind)
    yield locks["default"]
    locks.close_all()


@pytest.fixture
def start(child):
    """``start("name", "--lease=2", "--", "true")``: ``manage.py locks run`` in a process."""
    return lambda *arguments, **more: child(manage, "locks", "run", *arguments, **more)


class Beats:
    """What the processes of ``beating.py`` have written down."""

    def __init__(self, path):
        self._path = path
        self.command = [sys.executable, BEATING, str(path)]

    def read(self):
        """Return (who, pid, when) of each beat."""
        if not self._path.exists():
            return []
        lines = self._path.read_text().splitlines()
        beats = [line.split() for line in lines]
        # The last line may have been read in part.
        return [(beat[0], int(beat[1]), float(beat[2])) for beat in beats if len(beat) == 3]

    def begin(self):
        """Wait until all three beat; return their pids with when they were born."""
        eventually(lambda: {who for who, _, _ in self.read()} >= {"program", "child", "grandchild"})
        return {pid: started_at(pid) for _, pid, _ in self.read()}

    @property
    def last(self):
        """The last moment in which any of them ran."""
        return max(when for _, _, when in self.read())


@pytest.fixture
def beats(tmp_path):
    return Beats(tmp_path / "beats")


def gone(born):
    """Return whether none of these processes runs any more."""
    return not any(start and started_at(pid) == start for pid, start in born.items())


def watchdog_of(runner):
    """Return the pid of the watchdog of a program that ``runner`` runs."""
    return descendants(runner.pid)[1]


def now():
    return time.time()
