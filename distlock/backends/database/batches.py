"""Many rows at once, in pieces that one locked row cannot hold up for long."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

from distlock.backends.database.errors import RowLocked

#: Rows in one statement.
SIZE = 400
#: Rows that are tried one by one rather than in still smaller pieces.
_FEW = 30

T = TypeVar("T")
R = TypeVar("R")


def pieces(items: Sequence[T], size: int = SIZE) -> Iterator[Sequence[T]]:
    """Yield the items in order, so many at a time."""
    for start in range(0, len(items), size):
        yield items[start : start + size]


def around_locked(items: Sequence[T], work: Callable[[Sequence[T]], R]) -> Iterator[R]:
    """Do some work on rows, leaving out those that someone else keeps locked.

    A statement waits a second for a locked row before it fails for all of its rows. They are then
    tried again in pieces, and those of the piece that has it one by one: of 400 rows, a locked one
    costs three seconds and 41 statements.
    """
    try:
        yield work(items)
    except RowLocked:
        if len(items) > 1:
            for piece in pieces(items, math.isqrt(len(items)) if len(items) > _FEW else 1):
                yield from around_locked(piece, work)
