"""Interrupts at any moment while a consumer or a producer stands in line: its place is given up."""

import itertools
import queue as standard
import threading
from functools import partial

import pytest

from distlock.locking import parts, shared
from distlock.recipes import Queue, Semaphore, queue
from distlock.records import shared_backend
from tests.contract.actors import PATIENCE
from tests.contract.watch import eventually
from tests.core.interrupting import interrupted
from tests.recipes.wrapping import in_thread, is_unused

#: what takes the place in the line, and leaves it
CODE = (queue.__file__, parts.__file__, shared.__file__)


@pytest.mark.parametrize("side", ["get", "put"])
def test_who_is_interrupted_in_line_is_not_in_the_way_of_others(local, name, side):
    """Its thread goes on, and would keep the others waiting for as long as that lasts."""
    lines, messages = [], []
    for moment in itertools.count(1):
        letters = Queue(f"{name}:{moment}", maxsize=1)
        lines.append(Semaphore(f"queue:{side}:{letters.name}", 1))
        if side == "put":
            letters.put("first")
        over = threading.Event()
        go_on = in_thread(_answer, letters, lines[-1], side, over)
        ask = letters.get if side == "get" else lambda: letters.put("second")  # noqa: B023
        interrupt = interrupted(lambda: messages.append(ask()), moment, code=CODE)  # noqa: B023
        over.set()
        assert go_on() is None
        if interrupt is None:
            break
    assert moment > 10, "the interrupts did not reach the code"
    for line in lines:
        eventually(lambda: is_unused(line))  # noqa: B023


@pytest.mark.parametrize("step", [5, pytest.param(1, marks=pytest.mark.slow)])
def test_who_is_interrupted_behind_another_leaves_no_place(local, name, monkeypatch, step):
    """It keeps its place while it looks for itself, and has to give it up in the end."""
    monkeypatch.setattr(shared_backend.SharedBackend, "pause", 0.01)
    lines = []
    for moment in itertools.count(1, step):
        letters = Queue(f"{name}:{moment}")
        lines.append(Semaphore(f"queue:get:{letters.name}", 1))
        # A busy machine gets to the first moments, too, before the time is over.
        get = partial(_fail_to_get, letters, PATIENCE if moment <= 50 else 0.08)
        with lines[-1]:
            interrupt = interrupted(get, moment, code=CODE)
        if interrupt is None:
            break
    assert moment > 50, "the interrupts did not reach the code"
    for line in lines:
        eventually(lambda: is_unused(line))  # noqa: B023


def _fail_to_get(letters, timeout):
    with pytest.raises(standard.Empty):
        letters.get(timeout=timeout)


def _answer(letters, line, side, over):
    """Let the one who waits go on once it is in line, or does not wait any more."""
    eventually(lambda: over.is_set() or line.info().taken)
    if side == "get":
        letters.put("for one", timeout=PATIENCE)
    else:
        letters.get(timeout=PATIENCE).ack()
