"""Whether each backend answers: for the probes of a deployment."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from distlock.backends.base import BaseBackend
from distlock.fan_out import BackendAnswer, call_backends

#: The lock that is asked for. Nobody takes it.
_NAME = "distlock:ping"


def ping(aliases: Iterable[str], timeout: float | None = None) -> dict[str, BackendAnswer[bool]]:
    """Ask backends, all at once, for what they know of a lock; return their answers by alias.

    Nothing is taken or written. ``timeout`` is the seconds that each one gets, 2 by default. What
    is wrong is the ``problem`` of an answer, which is empty otherwise; no error is raised.
    """

    def ask(backend: BaseBackend, deadline: float) -> bool:
        backend.inspect(_NAME, deadline)
        return True

    return call_backends(aliases, ask, timeout)


def as_json(answer: BackendAnswer[bool]) -> dict[str, Any]:
    """Return what JSON says of an answer, without the problem, which may name addresses."""
    return {"ok": not answer.problem, "seconds": round(answer.seconds, 3)}
