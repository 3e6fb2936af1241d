"""Interrupts of a task, or of its publication, at any moment: no queueing lock is left behind."""

import contextvars
import dataclasses
import gc
import itertools
import logging
from contextlib import suppress
from functools import partial

import pytest
from celery import Celery
from celery.exceptions import SoftTimeLimitExceeded

from distlock import Lock, locks
from distlock.backends.local import LocalBackend
from distlock.celery import execution, messages, queueing
from distlock.recipes import Semaphore
from distlock.types.lease import State
from tests.celery.in_place import await_free, task_of
from tests.contract.watch import eventually
from tests.core.interrupting import CODE, interrupted


@pytest.fixture(autouse=True)
def local(backend_settings, settings, caplog):
    """Locks of this process, of one second if they are renewed."""
    caplog.set_level(logging.CRITICAL)  # a logged error would keep the task's frames alive
    settings.DISTLOCK = backend_settings("local")
    settings.DISTLOCK = {"default": {**settings.DISTLOCK["default"], "LEASE": 1}}
    yield
    locks.close_all()


@pytest.fixture
def app():
    """An app that runs tasks in place."""
    app = Celery("in_place", set_as_current=False, broker="memory://", backend="cache+memory://")
    app.conf.task_always_eager = True
    yield app
    app.close()


@pytest.mark.filterwarnings("ignore::ResourceWarning")
@pytest.mark.parametrize("is_busy", [False, True], ids=["free", "busy"])
@pytest.mark.parametrize("until", ["started", "finished"])
def test_a_soft_time_limit_at_any_moment_leaves_no_queueing_lock(app, until, is_busy):
    lock = "a" if is_busy else "a:{n}"
    task = task_of(app, lambda n: n, lock=lock, on_busy="raise", queueing_lock="a:{n}", until=until,
                   queueing_ttl=600)  # fmt: skip
    holder = Lock("a", owner="holder", lease=600)
    if is_busy:
        assert holder.acquire(blocking=False)
    for moment in range(1, 10_000):
        call = partial(contextvars.copy_context().run, task.delay, moment)
        code = (execution.__file__, queueing.__file__)
        if interrupted(call, moment, SoftTimeLimitExceeded, code) is None:
            break
    assert moment > 15, "the interrupts did not reach the code"
    gc.collect()
    for number in range(1, moment):
        eventually(lambda: not Lock(f"queueing:a:{number}").locked())  # noqa: B023
    if is_busy:
        holder.release()


# What an interrupt leaves to nobody is closed by the garbage collector.
@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_a_soft_time_limit_at_any_moment_leaves_no_lock(app):
    task = task_of(app, lambda n: n, lock="a:{n}", queueing_lock="a:{n}", until="finished",
                   queueing_ttl=2)  # fmt: skip
    for moment in range(1, 10_000, 5):
        # What is interrupted may leave the description of what goes on as it was then.
        call = partial(contextvars.copy_context().run, task.delay, moment)
        if interrupted(call, moment, SoftTimeLimitExceeded, CODE[:1]) is None:
            break
    assert moment > 300, "the interrupts did not reach the code"
    gc.collect()
    for number in range(1, moment, 5):
        for name in (f"a:{number}", f"queueing:a:{number}"):
            eventually(lambda: not Lock(name).locked())  # noqa: B023 - called at once


@pytest.mark.parametrize("until", ["started", "finished"])
def test_a_soft_time_limit_while_the_queueing_lock_is_freed_leaves_none(app, monkeypatch, until):
    release, struck = LocalBackend.release, []

    def strike(backend, lease, deadline=None):
        if lease.name == "queueing:a" and not struck:
            struck.append(lease)
            raise SoftTimeLimitExceeded
        return release(backend, lease, deadline)

    monkeypatch.setattr(LocalBackend, "release", strike)
    task = task_of(app, lambda: None, queueing_lock="a", until=until)
    with suppress(SoftTimeLimitExceeded):
        task.delay()
    assert struck
    eventually(lambda: locks["default"].inspect("queueing:a").state is State.FREE)


@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_a_soft_time_limit_at_any_moment_leaves_no_seat(app):
    task = task_of(app, lambda n: n, lock="a:{n}", slots=2)
    for moment in range(1, 10_000, 5):
        call = partial(contextvars.copy_context().run, task.delay, moment)
        # One more is there, which must not be left for it, nor lost on a machine that stands still.
        with Semaphore(f"a:{moment}", 2, lease=600):
            ended = interrupted(call, moment, SoftTimeLimitExceeded, CODE[:1])
            assert Semaphore(f"a:{moment}").held
        if ended is None:
            break
    assert moment > 300, "the interrupts did not reach the code"
    gc.collect()
    for number in range(1, moment, 5):
        eventually(lambda: not Semaphore(f"a:{number}").info().holders)  # noqa: B023


def test_an_interrupt_before_the_broker_has_the_task_leaves_nothing_queued(app):
    app.conf.task_always_eager = False
    task = task_of(app, lambda n: n, queueing_lock="a:{n}")
    for moment in itertools.count(1):
        call = partial(task.delay, moment)
        code = (messages.__file__, queueing.__file__, dataclasses.__file__)
        interrupt = interrupted(call, moment, code=code)
        if not app.control.purge():
            await_free(f"queueing:a:{moment}")
        if interrupt is None:
            assert moment > 40, "the interrupts did not reach the code"
            break
