"""Timers call what is due, and nothing that was cancelled."""

import math
import sys
import threading
import time
import weakref
from types import SimpleNamespace

import pytest

from distlock.concurrency import threads
from distlock.concurrency.clock import clock
from distlock.concurrency.threads import Timers
from tests.contract.forks import forked
from tests.contract.watch import eventually
from tests.core.interrupting import interrupted

PATIENCE = 20.0


def test_an_action_is_called_when_it_is_due():
    called, began = threading.Event(), clock()
    timer = threads.call_after(0.01, called.set)
    assert called.wait(PATIENCE)
    assert clock() >= began + 0.01
    assert not timer.cancel()


class Busy:
    """Keeps the thread of the timers busy in a ``with`` block."""

    def __init__(self, timers):
        self.timers = timers
        self.over = threading.Event()

    def __enter__(self):
        begun = threading.Event()
        self.timers.call_after(0, lambda: (begun.set(), self.over.wait(PATIENCE)))
        assert begun.wait(PATIENCE)

    def __exit__(self, *args):
        self.over.set()


def test_a_cancelled_action_is_not_called():
    own, called, later = Timers(), [], threading.Event()
    with Busy(own):
        timer = own.call_after(0, lambda: called.append(True))
        own.call_after(0, later.set)
        assert timer.cancel()
        assert not timer.cancel()
    assert later.wait(PATIENCE)
    assert not called


def test_actions_are_called_in_order_of_time(monkeypatch):
    own, called, over = Timers(), [], threading.Event()
    with Busy(own):
        now = clock()
        monkeypatch.setattr(threads, "clock", lambda: now)
        for number in (3, 1, 2, 4):
            action = over.set if number == 4 else lambda number=number: called.append(number)
            own.call_after(number / 1000, action)
        now += 0.004
    assert over.wait(PATIENCE)
    assert called == [1, 2, 3]


def test_what_is_due_earlier_than_the_others_is_not_late():
    own, called = Timers(), threading.Event()
    late = own.call_after(PATIENCE * 10, lambda: None)
    own.call_after(0.005, called.set)
    assert called.wait(PATIENCE)
    assert late.cancel()


def test_an_action_that_fails_keeps_no_other_from_being_called(caplog):
    own, called = Timers(), threading.Event()
    own.call_after(0, lambda: 1 / 0)
    own.call_after(0.005, called.set)
    assert called.wait(PATIENCE)
    assert "ZeroDivisionError" in caplog.text


def test_a_log_that_fails_keeps_no_action_from_being_called(failing_log, capsys):
    own, called = Timers(), threading.Event()
    own.call_after(0, lambda: 1 / 0)
    own.call_after(0.005, called.set)
    assert called.wait(PATIENCE)
    printed = capsys.readouterr().err
    assert "ZeroDivisionError" in printed  # what was to be logged
    assert failing_log in printed


def test_an_action_is_called_after_the_memory_was_short(monkeypatch):
    own, called, shortages = Timers(), threading.Event(), [MemoryError, MemoryError]

    def due(timer):
        # The process's other timers have a thread of their own.
        if timer is waiting and shortages:
            raise shortages.pop()
        return timer.due

    with Busy(own):
        monkeypatch.setattr(threads, "_by_time", due)
        waiting = own.call_after(0, called.set)
    assert called.wait(PATIENCE)
    assert not shortages


def test_an_action_can_make_a_timer():
    own, called = Timers(), threading.Event()
    own.call_after(0, lambda: own.call_after(0, called.set))
    assert called.wait(PATIENCE)


def test_no_timer_is_missed_that_several_threads_make():
    own, missed = Timers(), []

    def make():
        for number in range(200):
            called = threading.Event()
            own.call_after(0.1, lambda: None).cancel()
            own.call_after(number % 5 / 5000, called.set)
            if not called.wait(PATIENCE):
                missed.append(number)

    threads = [threading.Thread(target=make) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not missed


def test_timers_that_are_cancelled_wake_the_thread_once(monkeypatch):
    own, threads, reads = Timers(), [], []

    def counted():
        # Not of the process's other timers, whose thread has the same name.
        if threading.get_ident() in threads:
            reads.append(True)
        return clock()

    own.call_after(0, lambda: threads.append(threading.get_ident()))
    eventually(lambda: threads)
    monkeypatch.setattr("distlock.concurrency.threads.clock", counted)
    with Busy(own):
        own.call_after(PATIENCE, lambda: None).cancel()
    # Until the thread has seen the first one, the others wake it too.
    eventually(lambda: own._wakes_at < math.inf)
    reads.clear()
    for _ in range(2000):
        own.call_after(PATIENCE, lambda: None).cancel()
    assert own._wakeups.empty()
    assert not reads


def test_an_interrupted_one_leaves_no_timer_behind():
    class Action:
        def __call__(self):
            pass

    moment, interrupt = 1, True
    while interrupt:
        own, made = Timers(), []
        action = Action()
        known = weakref.ref(action)

        def make(own=own, made=made, action=action):
            made.append(own.call_after(PATIENCE * 10, action))

        interrupt = interrupted(make, moment) is not None
        del make, action
        later = threading.Event()
        own.call_after(0.001, later.set)
        assert later.wait(PATIENCE)
        until = clock() + PATIENCE  # the thread may just look at all timers
        while interrupt and known() is not None and clock() < until:
            time.sleep(0.001)
        assert (known() is None) is interrupt
        for timer in made:
            timer.cancel()
        moment += 1
    assert moment > 5


def test_a_timer_is_refused_if_there_is_no_thread(monkeypatch):
    own, called = Timers(), threading.Event()

    def no_threads(call, name, *args):
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(threads, "start", no_threads)
        with pytest.raises(RuntimeError):
            own.call_after(0, lambda: None)
    own.call_after(0.005, called.set)
    assert called.wait(PATIENCE)


@pytest.mark.parametrize("error", [RuntimeError("can't start new thread"), KeyboardInterrupt()])
def test_a_thread_that_another_one_failed_to_start_is_started(monkeypatch, error):
    """Ctrl-C may come when the thread has begun; without more threads it has not."""
    own, called, start = Timers(), threading.Event(), threads.start
    begun, go_on, failed = threading.Event(), threading.Event(), []

    def fail_to_start(*args):
        monkeypatch.setattr(threads, "start", start)
        if isinstance(error, KeyboardInterrupt):
            start(*args)
        begun.set()
        go_on.wait(PATIENCE)
        raise error

    def fail():
        try:
            own.call_after(PATIENCE, lambda: None)
        except BaseException as raised:
            failed.append(raised)

    monkeypatch.setattr(threads, "start", fail_to_start)
    first = threading.Thread(target=fail)
    first.start()
    assert begun.wait(PATIENCE)
    own.call_after(0.1, called.set)
    go_on.set()
    first.join()
    assert failed == [error]
    assert called.wait(PATIENCE)


def test_the_child_of_a_fork_has_no_timers_but_its_own(way):
    called = []

    def in_child():
        mine = threading.Event()
        threads.call_after(0, mine.set)
        return mine.wait(PATIENCE), called

    with Busy(threads):
        threads.call_after(0, lambda: called.append(True))
        assert forked(in_child, way=way) == (True, [])
    eventually(lambda: called)


@pytest.mark.parametrize("has_threads", [0, 1])
def test_it_is_said_once_where_uwsgi_lets_threads_stand_still(monkeypatch, caplog, has_threads):
    monkeypatch.setitem(sys.modules, "uwsgi", SimpleNamespace(has_threads=has_threads))
    timers = Timers()
    for _ in range(2):
        called = threading.Event()
        timers.call_after(0, called.set)
        assert called.wait(PATIENCE)
    said = [record for record in caplog.records if "--enable-threads" in record.getMessage()]
    assert len(said) == (not has_threads)
