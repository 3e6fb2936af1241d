"""What an interrupted wait leaves behind is in nobody's way."""

import gc
import itertools
import sys
import threading
from pathlib import Path

from distlock import Lock
from distlock.backends import zookeeper
from distlock.backends.zookeeper.connection import ZooKeeperConnection
from tests.contract.actors import PATIENCE, answered
from tests.core.interrupting import interrupted

CODE = (str(Path(zookeeper.__file__).parent),)


def test_the_garbage_of_an_interrupted_wait_may_be_collected_while_a_request_is_sent(using):
    """The collector may run anywhere, also in a thread that has the mutex of the connection."""

    def wait():
        lock = Lock("popular", using=using)
        answered(lambda: lock.acquire(timeout=0.02))

    def collect(frame, event, arg):
        in_submit = frame.f_code is ZooKeeperConnection.submit.__code__
        if in_submit and event == "c_call" and arg.__name__ == "append":  # it has the mutex
            gc.collect()

    def take():
        with Lock("free", using=using):
            sys.setprofile(collect)
        sys.setprofile(None)
        taken.append(True)

    taken = []
    gc.disable()
    try:
        with Lock("popular", using="other"):
            for moment in itertools.count(1):
                if interrupted(wait, moment, code=CODE) is None:
                    break
            assert moment > 20, "the interrupts did not reach the code"
            thread = threading.Thread(target=take, daemon=True)
            thread.start()
            thread.join(PATIENCE)
            assert taken
    finally:
        gc.enable()
