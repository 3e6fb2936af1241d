"""Ctrl-C, or a worker's time limit, at any moment costs at most the session it came in."""

import gc
import itertools
import threading
import weakref
from contextlib import suppress

import pytest

from distlock.backends.database import connect
from distlock.backends.database.connection import hung_up_after
from distlock.backends.database.statements import Statement
from distlock.concurrency.clock import clock
from distlock.exceptions import BodyEnded
from tests.contract.watch import eventually
from tests.core.interrupting import interrupted
from tests.database.speaking import claim

# What an interrupt leaves to nobody is closed by the garbage collector.
pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning")

ONE = Statement("SELECT 1")


@pytest.fixture(autouse=True)
def collected():
    gc.collect()
    yield
    gc.collect()


def interrupted_everywhere(call):
    """Interrupt a call at one moment after the other; yield after each."""
    for moment in itertools.count(1):
        if not interrupted(call, moment):
            assert moment > 20, "the interrupts did not reach the code"
            return
        yield


def another_thread_is_served(pool):
    answers = []
    thread = threading.Thread(
        target=lambda: answers.append(pool.run(ONE, clock() + 10).rows), daemon=True
    )
    thread.start()
    thread.join(20)
    return answers == [[(1,)]]


@pytest.mark.slow
@pytest.mark.parametrize("kept", [True, False], ids=["kept", "opened"])
def test_in_a_request_leaves_all_sessions_to_the_others(make, kept):
    pool = make(sessions=1).pool

    def ask():
        if not kept:
            pool.close()
        pool.run(ONE)

    for _ in interrupted_everywhere(ask):
        assert another_thread_is_served(pool)
        assert pool.busy == 0
        assert len(pool._idle) <= 1


@pytest.mark.slow
def test_in_taking_and_leaving_a_lock(make, name):
    backend = make(sessions=1)

    def take_and_leave():
        backend.release(backend.try_acquire(claim(f"{name}:{next(numbers)}")))

    numbers = itertools.count()
    for _ in interrupted_everywhere(take_and_leave):
        assert another_thread_is_served(backend.pool)
    assert backend.pool.busy == 0


@pytest.mark.slow
def test_in_opening_a_session_leaves_none_open(make, monkeypatch):
    opened = []

    class Watched(connect.DatabaseSession):
        def __init__(self, *args):
            super().__init__(*args)
            opened.append(weakref.ref(self))

    class WatchedLocally(connect.SQLiteSession):
        def __init__(self, *args):
            super().__init__(*args)
            opened.append(weakref.ref(self))

    monkeypatch.setattr(connect, "DatabaseSession", Watched)
    monkeypatch.setattr(connect, "SQLiteSession", WatchedLocally)
    pool = make().pool
    had = []
    for _ in interrupted_everywhere(lambda: had.append(pool.open())):
        pass
    for session in had:  # more than one if the garbage collector met an interrupt
        session.close()
    eventually(lambda: not any(is_open(session) for session in opened))


def is_open(session):
    gc.collect()
    return session() is not None and session().usable


@pytest.mark.parametrize("closing", ["driver", "wrapper"])
def test_the_loss_of_a_lock_gets_through_while_a_session_is_closed(make, monkeypatch, closing):
    """It is raised once, and ends the code under that lock."""
    session = make().pool.open()
    wrapper, real = session.wrapper, session.wrapper.connection

    class Closing:
        def close(self):
            with suppress(wrapper.Database.Error):  # it was closed before
                real.close()
            raise BodyEnded

    if closing == "driver":
        wrapper.connection = Closing()
    else:
        monkeypatch.setattr(wrapper, "close", Closing().close)
    with pytest.raises(BodyEnded):
        session.close()


def test_the_loss_of_a_lock_gets_through_although_an_answer_is_late():
    hung_up = threading.Event()
    with pytest.raises(BodyEnded), hung_up_after(0.001, hung_up.set):
        assert hung_up.wait(60)
        raise BodyEnded
