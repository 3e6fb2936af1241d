"""What a process that ends in an orderly way has not released."""

import multiprocessing
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


def work():
    """As a process that another one has started: work until it is told that this is enough."""
    write_line("works")
    read_line()
    write_line("done")


def leave_the_work_to_a_process(using, name):
    """As a program: end while a process works under its lock, which Python waits for."""
    Lock(name, using=using).acquire()
    multiprocessing.get_context("fork").Process(target=work).start()


@pytest.mark.parametrize("first", ["tests.contract.early_settings", "tests.settings"])
def test_what_is_held_around_processes_stays_taken_until_they_have_ended(
    child, third, using, name, first
):
    """Python waits for them before or after ours, by what was imported first."""
    program = child(leave_the_work_to_a_process, using, name, env={"DJANGO_SETTINGS_MODULE": first})
    assert program.line() == "works"
    assert not third.lock(name).acquire(timeout=0.4)
    program.tell()
    assert program.line() == "done"
    assert program.wait(PATIENCE) == 0
