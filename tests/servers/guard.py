"""A process beside the test run that clears away what a killed run leaves behind.

The run tells it of every process and folder; when the run ends, in whatever way, the guard stops
the processes that are still there, each by its own pid, and removes the folders.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

#: Seconds that a process gets to end by itself.
GRACE = 10.0


def _status(pid: int) -> list[str] | None:
    """Return the fields of ``/proc/PID/stat`` from the state on; None without such a process."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None


def started_at(pid: int) -> str | None:
    """Return when a process was started, in ticks of the kernel; None if there is no such process.

    Together with the pid this names a process for ever; a zombie counts as ended.
    """
    fields = _status(pid)
    return fields[19] if fields and fields[0] not in "ZX" else None


def is_at_rest(pid: int) -> bool:
    """Tell whether a process has stopped or ended."""
    fields = _status(pid)
    return fields is None or fields[0] in "TZX"


def descendants(pid: int) -> list[int]:
    """Return ``pid`` and the processes below it, parents first."""
    below: dict[int, list[int]] = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit() and (fields := _status(int(entry))):
            below.setdefault(int(fields[1]), []).append(int(entry))
    family = [pid]
    for member in family:
        family.extend(below.get(member, []))
    return family


def send(pid: int, signum: int) -> None:
    """Send a signal to a process that may have ended."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signum)


class Guard:
    """The test run's side: what there is to clear away, told as it comes and goes."""

    def __init__(self) -> None:
        self._run = os.getpid()
        self._process = subprocess.Popen(
            [sys.executable, "-E", "-S", __file__],
            stdin=subprocess.PIPE,
            text=True,
            start_new_session=True,  # Ctrl-C is for the test run
            cwd="/",
        )
        atexit.register(self.close)

    def watch(self, pid: int, stop_signal: int) -> None:
        """See to it that a process ends with the run; ``stop_signal`` asks it to."""
        self._tell("process", [pid, started_at(pid), int(stop_signal)])

    def forget(self, pid: int) -> None:
        """A process has been reaped."""
        self._tell("ended", pid)

    def folder(self, prefix: str) -> Path:
        """Make a folder that is gone after the run, on a disk rather than in memory."""
        path = Path(tempfile.mkdtemp(prefix=prefix, dir=os.environ.get("TMPDIR", "/var/tmp")))
        self._tell("folder", str(path))
        return path

    def close(self) -> None:
        """Clear away now, and wait until it is done."""
        if os.getpid() != self._run or self._process.stdin is None:
            return  # a forked child: the guard is its parent's
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        self._process.wait()

    def _tell(self, what: str, value: Any) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps([what, value]) + "\n")
        self._process.stdin.flush()


_guard: Guard | None = None


def guard() -> Guard:
    """Return the guard of this process, started on first use."""
    global _guard
    if _guard is None:
        _guard = Guard()
    return _guard


class _Estate:
    """The guard's side: what has to go when the run has ended."""

    def __init__(self) -> None:
        self.processes: dict[int, tuple[str, int]] = {}
        self.folders: list[str] = []

    def note(self, what: str, value: Any) -> None:
        if what == "process":
            pid, started, stop_signal = value
            self.processes[pid] = (started, stop_signal)
        elif what == "ended":
            self.processes.pop(value, None)
        else:
            self.folders.append(value)

    def clear(self) -> None:
        families = {pid: descendants(pid) for pid in self.processes if self._there(pid)}
        for pid, family in families.items():
            send(pid, self.processes[pid][1])
            for member in family:
                send(member, signal.SIGCONT)  # one that is stopped cannot end
        ends_at = time.monotonic() + GRACE
        while any(map(self._there, families)) and time.monotonic() < ends_at:
            time.sleep(0.02)
        for pid, family in families.items():
            if self._there(pid):
                for member in family:
                    send(member, signal.SIGKILL)
        for folder in self.folders:
            shutil.rmtree(folder, ignore_errors=True)

    def _there(self, pid: int) -> bool:
        return started_at(pid) == self.processes[pid][0]


def _main() -> None:
    for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(signum, signal.SIG_IGN)
    estate, run, unread = _Estate(), os.getppid(), b""
    # A forked child of the run may keep the pipe open, so the parent is looked at as well.
    while os.getppid() == run:
        if not select.select([0], [], [], 0.5)[0]:
            continue
        received = os.read(0, 65536)
        if not received:
            break
        *lines, unread = (unread + received).split(b"\n")
        for line in lines:
            estate.note(*json.loads(line))
    estate.clear()


if __name__ == "__main__":
    _main()
