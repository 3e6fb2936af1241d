"""Only the server's clock counts, and no time zone matters."""

import json

import pytest

from distlock.backends.database import DatabaseBackend
from distlock.concurrency.clock import clock
from tests.children import write_line
from tests.database.speaking import claim
from tests.databases import ALIASES

pytestmark = pytest.mark.once

ZONES = ["UTC", "Asia/Kathmandu", "America/St_Johns"]


def take_and_look(database, name, zone, use_tz):
    """In a process with settings of its own."""
    from django.conf import settings
    from django.db import connections

    settings.USE_TZ = use_tz
    settings.TIME_ZONE = zone
    connections.settings[database]["TIME_ZONE"] = zone if use_tz else None
    backend = DatabaseBackend("default", {"OPTIONS": {"database": database, "wait": "poll"}})
    refused = backend.try_acquire(claim(name)) is None
    own = backend.try_acquire(claim(f"{name}:{zone}:{use_tz}"))
    seen, mine = backend.inspect(name), backend.inspect(own.name)
    write_line(
        json.dumps(
            {
                "refused": refused,
                "renewed": backend.renew([own])[own.nonce],
                "swept": backend.sweep().expired,
                "since": seen.since.isoformat(),
                "remaining": seen.remaining,
                "mine": mine.remaining,
                "mine_since": mine.since.isoformat(),
            }
        )
    )
    backend.close()


@pytest.mark.slow
@pytest.mark.parametrize("use_tz", [True, False])
def test_processes_in_different_zones_agree(backend, kind, name, child, use_tz):
    lease = backend.try_acquire(claim(name))
    children = [child(take_and_look, ALIASES[kind], name, zone, use_tz) for zone in ZONES]
    told = [json.loads(one.line()) for one in children]
    info = backend.inspect(name)
    for answer in told:
        assert answer["refused"]
        assert answer["renewed"]
        assert answer["swept"] == 0
        assert answer["since"] == info.since.isoformat()
        assert info.remaining - 1 < answer["remaining"] <= 30.01
        assert 0 < answer["mine"] <= 30.01
    assert backend.release(lease)


def hold_with_another_clock(database, name, shift):
    """In a process whose clocks are wrong."""
    import time

    real = time.time
    time.time = lambda: real() + shift
    time.time_ns = lambda: int((real() + shift) * 1e9)
    backend = DatabaseBackend("default", {"OPTIONS": {"database": database, "wait": "poll"}})
    lease = backend.try_acquire(claim(name))
    write_line(json.dumps({"token": lease.token, "remaining": lease.deadline - clock()}))
    backend.close()


@pytest.mark.slow
@pytest.mark.parametrize("hours", [-1, 1])
def test_a_client_whose_clock_is_wrong_does_no_harm(backend, kind, name, child, hours):
    holder = child(hold_with_another_clock, ALIASES[kind], name, hours * 3600)
    told = json.loads(holder.line())
    info = backend.inspect(name)
    assert info.token == told["token"]
    assert 0 < info.remaining <= 30.01
    assert told["remaining"] <= 30
    assert backend.try_acquire(claim(name)) is None
    assert backend.sweep().expired == 0
