"""What the commands print with ``--json``."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from typing import Any

from distlock.types.lease import LockInfo, Owner, Waiting
from distlock.types.owners import NAMED, is_named


def write(
    locks: Iterable[LockInfo], unavailable: Mapping[str, str], write: Callable[[str], object]
) -> None:
    """Write one JSON object as lines, one for each lock as they come.

    ``unavailable`` is read when ``locks`` has come to its end. All but ASCII is escaped, so names
    are exact whatever the terminal or the pipe does to them.
    """
    write('{"locks": [')
    previous = None
    for info in locks:
        if previous is not None:
            write(previous + ",")
        previous = json.dumps(entry(info))
    if previous is not None:
        write(previous)
    write('], "unavailable": ' + json.dumps(dict(unavailable)) + "}")


def entry(info: LockInfo) -> dict[str, Any]:
    """Return what is known of a lock in terms of JSON; times are ISO 8601, spans are seconds."""
    return {
        "using": info.using,
        "name": info.name,
        "state": info.state.value,
        "owner": _owner(info.owner),
        "token": info.token,
        "since": _time(info.since),
        "until": _time(info.until),
        "held_for": info.held_for,
        "remaining": info.remaining,
        "lease": info.lease,
        "renews": info.renews,
        "renewed_at": _time(info.renewed_at),
        "description": info.description,
        "waiters": None if info.waiters is None else [_waiter(waiter) for waiter in info.waiters],
    }


def _owner(owner: Owner | None) -> dict[str, Any] | None:
    if owner is None:
        return None
    name = owner.key.removeprefix(NAMED) if is_named(owner) else None
    return {"host": owner.host, "pid": owner.pid, "thread": owner.thread, "name": name}


def _waiter(waiter: Owner) -> dict[str, Any]:
    waited = waiter.waited if isinstance(waiter, Waiting) else None
    return {**(_owner(waiter) or {}), "waited": waited}


def _time(when: datetime | None) -> str | None:
    return None if when is None else when.isoformat()
