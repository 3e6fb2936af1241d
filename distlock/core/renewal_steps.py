"""Renews many leases some at a time, the nearest to its end first."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from operator import attrgetter
from typing import TypeAlias

from distlock.backends.base import BaseBackend
from distlock.concurrency.threads import start, thread_logger
from distlock.core.held import HeldLease

#: Leases that are renewed in one step. In one step of 10,000 all wait for the last one, and a busy
#: machine may not do that in time; many small steps take longer than few.
STEP = 400
#: Threads that renew leases of one backend at once, so that a step that has no answer does not hold
#: up the others for as long as it gets for that.
_MOST_THREADS = 4

#: Renews some leases of a backend; whether others wait for that.
Renew: TypeAlias = Callable[[BaseBackend, Sequence[HeldLease], bool], object]

#: A backend, and whether these are the leases that are renewed apart from its others.
_Key: TypeAlias = tuple[BaseBackend, bool]

_by_deadline = attrgetter("lease.deadline")


@dataclass(slots=True)
class _RenewalLine:
    """Leases that are due, the nearest to its end last, and how many threads renew them."""

    holds: list[HeldLease] = field(default_factory=list)
    threads: int = 0


class RenewalSteps:
    """The leases of all backends that are due. Each backend has threads of its own for them."""

    def __init__(self, renew: Renew) -> None:
        self._renew = renew
        self._mutex = threading.Lock()
        self._lines: dict[_Key, _RenewalLine] = {}

    def add(self, backend: BaseBackend, apart: bool, holds: Sequence[HeldLease]) -> None:
        """Renew leases soon; ``apart`` from others of the backend, by threads of their own.

        If no thread can be had for them, raises what start() raises, and they are not renewed.
        """
        key = backend, apart
        with self._mutex:
            line = self._lines.setdefault(key, _RenewalLine())
            line.holds = sorted([*line.holds, *holds], key=_by_deadline, reverse=True)
            # Those there are may be waiting for an answer.
            steps = -(-len(line.holds) // STEP)
            most = min(line.threads + steps, _MOST_THREADS)
            while line.threads < most:
                try:
                    start(partial(self._work, key, line), "distlock-renewal")
                except Exception:  # RuntimeError or MemoryError: no thread can be started
                    if line.threads:
                        return  # those there are will do it
                    del self._lines[key]
                    raise
                line.threads += 1

    def _work(self, key: _Key, line: _RenewalLine) -> None:
        backend, _ = key
        while True:
            with self._mutex:
                step = line.holds[-STEP:]
                del line.holds[-STEP:]
                if not step:
                    line.threads -= 1
                    if not line.threads:
                        del self._lines[key]
                    return
                others_wait = bool(line.holds)
            try:
                self._renew(backend, step, others_wait)
            except Exception:  # the others must be renewed all the same
                fields = step[-1].log_fields()  # its lease ends first
                thread_logger.exception("a renewal on %r failed", backend.alias, extra=fields)
