"""The event log of processes that take turns, and what a correct one looks like.

Each process appends one line, in one write, to one file: the file has the true order of events.

    enter TOKEN PID     written while the lock is held
    leave TOKEN PID     written before it is released
    kill PID            written by the one who kills, just before: the process may still write
"""

from __future__ import annotations

import os


class Log:
    """A file that several processes append events to."""

    def __init__(self, path):
        self.path = str(path)
        self._file = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def write(self, *words):
        os.write(self._file, (" ".join(map(str, words)) + "\n").encode())

    def close(self):
        os.close(self._file)

    def events(self):
        with open(self.path) as file:
            whole, _, _ = file.read().rpartition("\n")  # the last line may be half read
        return [line.split() for line in whole.splitlines()]


class Overlap(AssertionError):
    """Two holders at the same time."""


class NotGrowing(AssertionError):
    """A later holder with a token that is not greater."""


def check(events):
    """Return the number of turns; raise Overlap or NotGrowing if the events prove a fault."""
    inside = None
    dying = set()
    newest = 0
    turns = 0
    for event in events:
        if event[0] == "enter":
            token, pid = int(event[1]), event[2]
            if inside is not None and inside[1] not in dying:
                raise Overlap(f"{event} while {inside} was inside")
            if token <= newest:
                raise NotGrowing(f"{event} after token {newest}")
            inside, newest = (token, pid), token
            turns += 1
        elif event[0] == "leave":
            if inside != (int(event[1]), event[2]):
                raise Overlap(f"{event} while {inside} was inside")
            inside = None
        else:
            # It goes on until the signal arrives: whether it has left by then, nobody sees.
            dying.add(event[1])
    return turns
