"""After a fork the child holds nothing and can work, and the parent goes on undisturbed.

So it does if the fork has called no hooks of Python's.
"""

import threading

import pytest

from distlock import Lock, LockNotHeld
from tests.contract.actors import PATIENCE
from tests.contract.forks import begin_forked, forked
from tests.contract.watch import eventually, in_line
from tests.kinds import ONE_PROCESS

# What is called in the child process, which then forks. The fork is not made in the process of the
# test run, whose other threads and servers it does not concern.


def look_after_fork(using, name, way):
    """What a forked child sees of a lock that its parent holds."""
    lock = Lock(name, using=using)

    def child():
        try:
            lock.release()
            refused = False
        except LockNotHeld:
            refused = True
        other = Lock(f"{name}:other", using=using)
        with other:
            works = other.held
        return lock.held, refused, lock.acquire(blocking=False), works

    with lock:
        token = lock.token
        seen = forked(child, way=way)
        lock.verify()
        assert lock.token == token
    return seen


def keep_working_after_fork(using, name, way):
    """The parent's and the child's sessions do not mix: both work at the same time."""
    lock = Lock(f"{name}:parent", using=using)

    def child():
        for number in range(20):
            with Lock(f"{name}:child:{number}", using=using) as mine:
                mine.verify()
        return True

    with lock:
        wait_for_child = begin_forked(child, way=way)
        for number in range(20):
            with Lock(f"{name}:{number}", using=using) as other:
                other.verify()
        worked = wait_for_child()
        lock.verify()
    return worked


def fork_while_another_thread_waits(using, name, way):
    """The child is not in line; the waiting thread of the parent still is."""
    got = threading.Event()

    def wait():
        with Lock(name, using=using):
            got.set()

    def child():
        with Lock(f"{name}:other", using=using) as other:
            return other.held

    with Lock(name, using=using):
        waiter = threading.Thread(target=wait)
        waiter.start()
        eventually(lambda: in_line(using, name) == 2)
        works = forked(child, way=way)
        assert not got.is_set()
    assert got.wait(PATIENCE)
    waiter.join(PATIENCE)
    return works


def fork_while_threads_work(using, name):
    """A fork at any moment: whatever lock inside distlock was held then, the child can work."""
    over, turns = threading.Event(), [0] * 4

    def work(number):
        while not over.is_set():
            with Lock(f"{name}:{number % 2}", using=using):
                turns[number] += 1

    def child():
        with Lock(f"{name}:child", using=using, timeout=PATIENCE) as mine:
            return mine.held

    workers = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for worker in workers:
        worker.start()
    try:
        # The first uses import modules, and Python's import locks do not survive a fork.
        eventually(lambda: min(turns) > 2)
        return [forked(child) for _ in range(12)]
    finally:
        over.set()
        for worker in workers:
            worker.join(PATIENCE)


def end_of_a_forked_child(using, name, way):
    """A child that ends, releasing nothing, takes nothing from its parent."""
    with Lock(name, using=using) as lock:
        forked(lambda: None, way=way)
        lock.verify()
        taken = forked(lambda: Lock(name, using=using).acquire(blocking=False), way=way)
    return taken


def child_of_a_child(using, name, way):
    with Lock(name, using=using):

        def child():
            return forked(grandchild, way=way)

        def grandchild():
            return Lock(f"{name}:deep", using=using).acquire(blocking=False)

        return forked(child, way=way)


@pytest.fixture
def process(actor):
    return actor("new process")


def test_a_forked_child_holds_nothing_and_can_work(process, kind, using, name, way):
    held, refused, got_it, works = process.call(look_after_fork, using, name, way).result(PATIENCE)
    assert held is False
    assert refused is True
    assert got_it is (kind in ONE_PROCESS)
    assert works is True


@pytest.mark.eager
def test_parent_and_child_work_side_by_side(process, using, name, way):
    assert process.call(keep_working_after_fork, using, name, way).result(PATIENCE)


def test_a_fork_while_another_thread_waits(process, using, name, way):
    assert process.call(fork_while_another_thread_waits, using, name, way).result(PATIENCE) is True


@pytest.mark.slow
def test_a_fork_while_other_threads_take_and_leave_locks(process, using, name):
    results = process.call(fork_while_threads_work, using, name).result(2 * PATIENCE)
    assert results == [True] * 12


def test_the_end_of_a_child_takes_nothing_from_its_parent(process, kind, using, name, way):
    taken = process.call(end_of_a_forked_child, using, name, way).result(PATIENCE)
    assert taken is (kind in ONE_PROCESS)


def test_a_grandchild_can_work(process, using, name, way):
    assert process.call(child_of_a_child, using, name, way).result(PATIENCE) is True
