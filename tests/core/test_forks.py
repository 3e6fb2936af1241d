"""A child of a fork has nothing to do with what its parent holds, or was doing."""

import gc
import os
import threading

from distlock import Lock, locks
from distlock.concurrency.steps import Sleep
from distlock.signals import lock_acquired
from tests.contract.forks import WAYS


def in_child(function, way):
    """Run a function in a fork of this process; return its exit code, as os.wait() does."""
    pid = WAYS[way]()
    if pid == 0:
        threading.Timer(20, os._exit, [9]).start()
        code = 1
        try:
            function()
            code = 0
        finally:
            os._exit(code)
    return os.waitpid(pid, 0)[1]


def test_the_parents_keeper_is_not_told_by_the_child(way):
    with Lock("stock"):
        assert locks["default"].listener is not None

        def look():
            os._exit(0 if locks["default"].listener is None else 1)

        assert in_child(look, way) == 0


def test_a_signal_being_sent_at_the_fork_can_be_sent_in_the_child(way):
    inside, end = threading.Event(), threading.Event()

    def send():
        with lock_acquired.lock:
            inside.set()
            end.wait(30)

    def receive(**kwargs):
        pass

    sender = threading.Thread(target=send)
    lock_acquired.connect(receive)
    sender.start()
    inside.wait(30)
    try:
        assert in_child(lambda: Lock("stock").acquire(), way) == 0
    finally:
        end.set()
        sender.join()
        lock_acquired.disconnect(receive)


async def test_a_forsaken_task_of_the_parent_withdraws_nothing_in_the_child(
    backend, monkeypatch, way
):
    def never(claim, deadline):
        yield Sleep(3600)

    monkeypatch.setattr(backend, "enqueue", never)
    waiting = Lock("stock").aacquire()
    waiting.send(None)  # until the backend has been asked

    def collect():
        nonlocal waiting
        waiting = None
        gc.collect()
        names = {thread.name for thread in threading.enumerate()}
        os._exit(1 if names & {"distlock-undo", "distlock-cleanup"} else 0)

    assert in_child(collect, way) == 0
    waiting.close()
