"""What a process that ends in an orderly way has not released."""

import threading

import pytest

from distlock import Lock, locks
from tests.children import read_line, write_line
from tests.contract.actors import PATIENCE

pytestmark = pytest.mark.shared

LEASE = 12 * PATIENCE  # which nobody here waits for
WAYS = ["main", "thread", "inside", "daemon", "named", "not renewed"]


def leave_behind(using, name, way):
    """As a program: end with a lock that was not released."""
    options = {"owner": "worker"} if way == "named" else {}
    if locks[using].capabilities.lease_lengths:
        options["lease"] = LEASE
    lock = Lock(name, using=using, renew=way != "not renewed", **options)
    if way == "inside":
        lock.__enter__()
        lock.acquire()
    elif way in ("thread", "daemon"):
        taken = threading.Event()

        def hold():
            lock.acquire()
            taken.set()
            if way == "daemon":
                threading.Event().wait()

        thread = threading.Thread(target=hold, daemon=way == "daemon")
        thread.start()
        assert taken.wait(PATIENCE)
    else:
        lock.acquire()
    write_line("ends")
    read_line()


@pytest.mark.parametrize("way", WAYS)
def test_what_nobody_can_release_any_more_is_free_when_the_process_has_ended(
    child, third, using, name, way
):
    if not locks[using].capabilities.outlives_process:
        way = "main"  # all ends with its session
    program = child(leave_behind, using, name, way)
    assert program.line() == "ends"
    lock = third.lock(name)
    assert not lock.acquire(blocking=False)
    program.tell()
    assert program.wait(PATIENCE) == 0
    if way in ("daemon", "named", "not renewed"):
        assert not lock.acquire(blocking=False)
    else:
        assert lock.acquire(timeout=PATIENCE)
        lock.release()
