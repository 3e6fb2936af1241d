"""What records of the log say of a lock as attributes of their own, for filters and alerts."""

import asyncio
import json
import logging
import threading

import pytest

from distlock import Lock, locks
from distlock.recipes import Semaphore
from distlock.signals import lock_acquired
from distlock.types.lease import LOG_FIELDS
from tests.contract.watch import Once, eventually, in_line

ALIAS = "default"


@pytest.fixture
def records(caplog, local):
    """The records of this logger, by what their messages begin with."""
    caplog.set_level(logging.DEBUG, "distlock")

    def find(start):
        return [one for one in caplog.records if one.getMessage().startswith(start)]

    return find


def fields(record):
    return {name: getattr(record, name) for name in LOG_FIELDS}


def test_no_field_hides_what_logging_says_itself():
    record = logging.LogRecord("x", logging.INFO, "x.py", 1, "x", None, None)
    assert not set(LOG_FIELDS) & {*vars(record), "message", "asctime"}


def test_an_acquire_and_a_release_have_all_of_them(records):
    with Lock("fields:stock") as lock:
        token = lock.token
        owner = str(lock.info().owner)
    (acquired,), (released,) = records("acquired lock 'fields:st"), records("released lock 'fiel")
    for record in (acquired, released):
        said = fields(record)
        assert said.pop("waited") >= 0
        assert said.pop("held") >= 0
        assert said == {
            "lock": "fields:stock",
            "kind": "lock",
            "backend": ALIAS,
            "token": token,
            "owner": owner,
        }
    assert released.held >= acquired.held


def test_what_was_waited_is_said_when_it_is_acquired_and_when_it_is_released(records):
    first = Lock("fields:waited")
    first.acquire()
    waiter = threading.Thread(target=take_and_leave, args=["fields:waited"], daemon=True)
    waiter.start()
    eventually(lambda: in_line(ALIAS, "fields:waited") == 2)
    first.release()
    waiter.join(30)
    acquired, released = (
        records("acquired lock 'fields:w")[1],
        records("released lock 'fields:w")[1],
    )
    assert acquired.waited == released.waited > 0


def take_and_leave(name):
    with Lock(name):
        pass


def test_a_loss_has_all_of_them(records):
    told = Once()
    lock = Lock("fields:lost", on_lost=told)
    lock.acquire()
    token = lock.token
    assert lock.force_release(token)
    told.wait()
    (broken,) = records("broke lock 'fields:lost'")
    (lost,) = records("lost lock 'fields:lost'")
    assert (broken.lock, broken.token, broken.held) == ("fields:lost", token, None)
    assert (lost.lock, lost.token, lost.backend) == ("fields:lost", token, ALIAS)
    assert lost.held > 0


def test_an_owner_that_ended_without_releasing_is_named(records, in_thread):
    in_thread(Lock("fields:left", lease=0.3).acquire)
    eventually(lambda: any("ended without releasing" in one.getMessage() for one in records("")))
    (record,) = [one for one in records("") if "ended without releasing" in one.getMessage()]
    assert (record.lock, record.kind) == ("fields:left", "lock")
    assert record.held > 0


def test_a_semaphore_tells_its_kind(records):
    with Semaphore("fields:seats", 2):
        pass
    (acquired,) = records("acquired semaphore")
    assert (acquired.lock, acquired.kind) == ("fields:seats", "semaphore")


def test_a_task_has_them_too(records):
    async def take():
        async with Lock("fields:task") as lock:
            return lock.token

    token = asyncio.run(take())
    (released,) = records("released lock 'fields:task'")
    assert released.token == token


def test_a_renewal_that_fails_names_the_lock_that_ends_first(records, monkeypatch, settings):
    def fail(*args):
        raise OSError("no route to host")

    entry = {"BACKEND": "distlock.backends.local.LocalBackend", "RENEW": 0.05}
    settings.DISTLOCK = {"fields": entry}
    with Lock("fields:renewed", using="fields") as lock:
        backend = locks["fields"]
        monkeypatch.setattr(backend, "renew", fail)
        eventually(lambda: records("renewal on 'fields' failed"))
        monkeypatch.undo()
        eventually(lambda: records("renewal on 'fields' works again"))
        token = lock.token
    for start in ("renewal on 'fields' failed", "renewal on 'fields' works again"):
        record = records(start)[0]
        assert (record.lock, record.backend, record.token) == ("fields:renewed", "fields", token)


def test_every_field_can_be_written_as_json(records):
    with Lock("fields:json", owner="checkout"):
        pass
    (record,) = records("released lock 'fields:json'")
    assert json.loads(json.dumps(fields(record))) == fields(record)


def test_a_receiver_of_a_signal_alone_costs_no_record(records, caplog):
    caplog.set_level(logging.WARNING, "distlock")
    seen = []
    receive = lambda **sent: seen.append(sent)  # noqa: E731
    lock_acquired.connect(receive)
    try:
        with Lock("fields:signal"):
            pass
    finally:
        lock_acquired.disconnect(receive)
    assert seen
    assert not records("acquired lock 'fields:signal'")
