"""How tasks and tests tell each other where they are: lists in Redis, waited for by both."""

from __future__ import annotations

import json
import os
import time
from typing import Any

import redis

#: The address of the Redis that both use; workers inherit it.
URL = "DISTLOCK_TEST_STAGE"
#: Seconds that anything may take here.
LIMIT = 30

_clients: dict[int, redis.Redis] = {}


def client() -> redis.Redis:
    """Return this process's client."""
    pid = os.getpid()
    if pid not in _clients:
        _clients[pid] = redis.Redis.from_url(os.environ[URL], db=5, socket_timeout=2 * LIMIT)
    return _clients[pid]


def publish(where: str, **words: Any) -> None:
    """Tell what has happened."""
    client().rpush(f"said:{where}", json.dumps(words))


def published(where: str, timeout: float = LIMIT) -> dict[str, Any]:
    """Wait for the next thing that was said there; AssertionError if nothing comes."""
    found = client().blpop([f"said:{where}"], timeout)
    assert found is not None, f"nothing was said of {where!r}"
    return json.loads(found[1])


def silence(where: str) -> bool:
    """Return whether nothing that was said there is still to be heard."""
    return not client().llen(f"said:{where}")


def cue(where: str, times: int = 1) -> None:
    """Let those who wait there go on."""
    client().rpush(f"cue:{where}", *["go"] * times)


def wait_for_cue(where: str, timeout: float = LIMIT) -> bool:
    """Wait until one is let go on."""
    until = time.monotonic() + timeout
    # Python may miss a signal that comes in the moment in which it begins to wait, until the end.
    while time.monotonic() < until:
        if client().blpop([f"cue:{where}"], 0.5) is not None:
            return True
    return False
