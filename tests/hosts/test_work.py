"""Under each host a request is an owner: what one leaves behind is not the next one's."""

import asyncio

import pytest
from asgiref.sync import async_to_sync, sync_to_async

from distlock import Lock, LockDeadlock
from distlock.concurrency.clock import clock
from tests.contract.watch import eventually
from tests.hosts.stage import await_cue, note

#: one thread or process each, so that requests follow one another on it
HOSTS = [
    ("uwsgi", "--master"),
    ("uwsgi", "--threads", "2"),
    ("gunicorn",),
    ("gunicorn", "--threads", "1", "-k", "gthread"),
    ("gunicorn", "-k", "gevent"),
    ("uvicorn",),
    ("daphne",),
]
SLOW = HOSTS[1], HOSTS[2], HOSTS[6]
EVERY_HOST = [
    pytest.param(host, id=" ".join(host), marks=[pytest.mark.slow] if host in SLOW else [])
    for host in HOSTS
]


@pytest.fixture(params=EVERY_HOST)
def running(request, host, backend_settings, settings):
    settings.DISTLOCK = backend_settings("postgresql", LEASE=2, RENEW=0.5)
    return host(*request.param)


def leave_behind():
    """As a view with a bug between acquire() and release()."""
    return Lock("stock").acquire(blocking=False)


def tries():
    lock = Lock("stock")
    if got := lock.acquire(blocking=False):
        lock.release()
    return got


def hold():
    with Lock("stock", timeout=30) as lock:
        note("in")
        await_cue("go")
        note("out" if lock.held else "lost")
        return lock.held


def test_what_a_request_leaves_behind_is_logged_and_ends_with_its_lease(running):
    assert running.get("leave_behind") is True
    assert running.get("tries") is False
    eventually(lambda: running.get("tries"))
    errors = [line for line in running.log.read_text().splitlines() if "ended without" in line]
    assert len(errors) == 1
    assert "acquired at hosts/test_work.py:" in errors[0]


def test_a_request_keeps_its_lock_for_longer_than_its_lease(running):
    first = running.begin("hold")
    eventually(lambda: running.notes() == ["in"])
    ends = clock() + 3
    eventually(lambda: clock() > ends)
    running.cue("go")
    assert first.result(60) is True
    assert running.notes() == ["in", "out"]


# What asgiref nests on one thread


class Middleware:
    """Holds a lock around the view, which asgiref runs as a job on the same thread."""

    def __init__(self, get_response):
        self.get_response = get_response

    def __call__(self, request):
        with Lock("stock"):
            return self.get_response(request)


def enter():
    with Lock("stock", timeout=5):
        return True


async def enter_by_job():
    return await sync_to_async(enter)()


async def hold_and_enter_by_job():
    async with Lock("other", timeout=5):
        return await sync_to_async(enter_other)(), await asyncio.to_thread(enter_other)


def enter_other():
    with Lock("other", timeout=5):
        return True


def circle():
    async def wait():
        async with Lock("other"):
            return "entered"

    with Lock("other"):
        try:
            return async_to_sync(wait)()
        except LockDeadlock:
            return "told"


@pytest.mark.parametrize("program", ["uvicorn", pytest.param("daphne", marks=pytest.mark.slow)])
def test_a_view_enters_what_a_middleware_around_it_holds(host, program, backend_settings, settings):
    settings.DISTLOCK = backend_settings("postgresql", LEASE=2, RENEW=0.5)
    running = host(program, MIDDLEWARE=["tests.hosts.test_work.Middleware"])
    assert running.get("enter") is True
    assert running.get("enter_by_job") is True
    assert running.get("hold_and_enter_by_job") == [True, True]
    assert running.get("circle") == "told"
    assert "ended without" not in running.log.read_text()
