"""Ctrl-C, or a worker's time limit, at any moment in the client of etcd leaves nothing stuck."""

import itertools
from contextlib import suppress
from pathlib import Path

import pytest

from distlock import Lock, LockLost, LockNotHeld
from distlock.backends import etcd as package
from distlock.exceptions import BodyEnded
from tests.contract.actors import PATIENCE, answered
from tests.contract.watch import eventually
from tests.core.interrupting import interrupted

CODE = (str(Path(package.__file__).parent),)


def interrupted_everywhere(call, name, **options):
    """Interrupt ``call(lock)`` at one moment after the other, each time with another lock."""
    made = []
    for moment in itertools.count(1):
        lock = Lock(f"{name}:{moment}", **options)
        made.append(lock)
        interrupt = interrupted(lambda: call(lock), moment, code=CODE)  # noqa: B023 - called at once
        with suppress(LockNotHeld, LockLost):
            while lock.held:
                lock.release()
        if interrupt is None:
            assert moment > 20, "the interrupts did not reach the code"
            return made


def others_get(made):
    for lock in made:
        with Lock(lock.name, using="other", timeout=PATIENCE):
            pass


def test_while_a_lock_is_taken(using, name):
    others_get(interrupted_everywhere(Lock.acquire, name, using=using))


def test_while_a_lock_is_freed(using, name):
    def free(lock):
        lock.release()

    made = []
    for moment in itertools.count(1):
        lock = Lock(f"{name}:{moment}", using=using)
        lock.acquire()
        made.append(lock)
        if interrupted(lambda: free(lock), moment, code=CODE) is None:  # noqa: B023 - called at once
            break
    assert moment > 20, "the interrupts did not reach the code"
    others_get(made)


def test_the_loss_of_an_outer_lock_reaches_who_frees_another(using, name):
    """Also while a long lease is ended, which may fail otherwise."""

    def free():
        try:
            lock.release()
        except BodyEnded:
            reached.append(moment)
            raise

    reached = []
    for moment in itertools.count(1):
        lock = Lock(f"{name}:{moment}", using=using, lease=400)
        lock.acquire()
        if interrupted(free, moment, BodyEnded, CODE) is None:
            break
    assert moment > 20, "the interrupts did not reach the code"
    assert reached == [*range(1, moment)]


@pytest.mark.slow
def test_while_a_lock_is_waited_for(using, etcd, name):
    held = []

    def wait(lock):
        held.append(Lock(lock.name, using="other"))
        held[-1].acquire()
        answered(lambda: lock.acquire(timeout=0.02))

    made = interrupted_everywhere(wait, name, using=using)
    eventually(lambda: not any("/w/" in key for key in etcd.keys(f"/distlock/locks/{name}")))
    for lock in held:
        if lock.held:
            lock.release()
    others_get(made)
