"""One thread or task inside a hold, with its options."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from distlock.concurrency.work import Work
from distlock.types.lease import Lease
from distlock.types.owners import Liveness

OnLost = Callable[[Lease], object]


@dataclass(slots=True, eq=False)
class Entrant:
    """One thread or task inside a hold: its Lock object, its options, how often it entered."""

    is_alive: Callable[[], bool]
    at_least: float = 0.0
    renews: bool = True
    on_lost: OnLost | None = None
    lock: object = None
    #: the piece of work that it is, None outside of all
    work: Work | None = None
    #: the file and the line where it was asked for, if they are known
    call_site: str = ""
    count: int = 1
    #: whether this is no thread or task, but the end of transactions; see core.until_commit
    until_commit: bool = False
    #: whether its thread or task may enter the hold once more
    reentrant: bool = True
    #: seconds after the grant at which this process gives the hold up
    at_most: float | None = None


def task_of(entry: Entrant) -> asyncio.Task[object] | None:
    """Return the task that has entered; None for others, and for one that is gone."""
    liveness = entry.is_alive
    return liveness.task if isinstance(liveness, Liveness) else None
