"""For the tests of projects: a test that does not leave a lock fails, and the lock is free again.

There is a mixin for Django's test cases, a context manager that is also a decorator, and a fixture
for pytest of the same name. ``held_elsewhere()`` lets another owner hold a lock.
"""

from __future__ import annotations

import gc
import threading
import time
import unittest
from collections.abc import Collection, Iterator, Mapping
from concurrent.futures import Future
from contextlib import ExitStack, contextmanager, suppress
from itertools import islice

from distlock.backends.store import MOST_KEYS, Delete, Record, RecordStore, observers
from distlock.conf import locks
from distlock.exceptions import LockLost, LockNotHeld, NotSupported
from distlock.locking.base_lock import BaseLock
from distlock.locking.lock import Lock
from distlock.locking.run_under import busy_error
from distlock.recipes.log import forget_values
from distlock.records.seats import held_key
from distlock.runtime.hold import Hold
from distlock.runtime.manager import manager
from distlock.types.owners import QUEUEING, current_liveness, current_owner, is_reserved

__all__ = ["IsolatedLocksMixin", "LeakedLock", "held_elsewhere", "isolated_locks"]

#: Seconds that other threads and tasks get to leave what they hold when a test ends.
_TIME_TO_LEAVE = 5.0
_PAUSE = 0.01

#: How often each hold had been entered when a test began.
Entered = Mapping[Hold, int]


class LeakedLock(AssertionError):
    """A test ended without leaving a lock that it had taken."""


@contextmanager
def isolated_locks() -> Iterator[None]:
    """Run any test, as ``with isolated_locks():`` or decorated with ``@isolated_locks()``.

    All locks that this process has taken inside are free afterwards: those that no thread or task
    has left, queueing locks of tasks that no worker ran, and those that ``at_least`` would keep
    taken (except in ZooKeeper). Its data of recipes, such as items of a queue or a value of a
    Config, is removed. Records that existed before stay, as the test has left them.

    Raises LeakedLock, which names the locks that were taken inside and not left. Other threads and
    tasks get five seconds to leave theirs. If the body fails, the names become a note of its error.
    """
    before, written = _entered(), WrittenRecords()
    try:
        with written.noting():
            yield
    except BaseException as error:  # also what pytest.skip() and pytest.fail() raise
        if leaked := _free_again(before, written):
            error.add_note(leaked)
        raise
    _check_for_leaks(before, written)


@contextmanager
def held_elsewhere(*wanted: str | BaseLock) -> Iterator[None]:
    """Let another owner, a thread of this process, hold locks until the block ends.

    Each of ``wanted`` is the name of a Lock, or any lock with its options:
    ``Semaphore("mail", 1)``, ``RWLock("stock").writer()``, ``Lock("report", using="zookeeper")``.
    Naming a semaphore twice takes two of its seats. The test may break them.

    Raises LockBusy if one is not free, LockUnavailable if its backend does not answer.
    """
    each = [Lock(one) if isinstance(one, str) else one for one in wanted]
    held: Future[None] = Future()
    done = threading.Event()

    def hold() -> None:
        try:
            with ExitStack() as entered:
                for lock in each:
                    if not lock.acquire(blocking=False):
                        raise busy_error(lock)
                    entered.callback(_leave, lock)
                held.set_result(None)
                done.wait()
        except Exception as error:
            if held.done():
                raise
            held.set_exception(error)

    thread = threading.Thread(target=hold, name="distlock-test-holder")
    thread.start()
    try:
        held.result()
        yield
    finally:
        done.set()
        thread.join()


def _leave(lock: BaseLock) -> None:
    with suppress(LockLost, LockNotHeld):  # the test may have broken it
        lock.release()


class IsolatedLocksMixin(unittest.TestCase):
    """Runs each test as under :func:`isolated_locks`; locks that ``setUpClass()`` takes stay held.

    Put it before Django's test case: ``class ReportTest(IsolatedLocksMixin, TestCase)``.
    """

    def run(self, result: unittest.TestResult | None = None) -> unittest.TestResult | None:
        """See TestCase.run()."""
        written = WrittenRecords()
        self.addCleanup(_check_for_leaks, _entered(), written)  # the first clean-up runs last
        with written.noting():
            return super().run(result)


def _entered() -> Entered:
    return {hold: hold.entered for hold in manager().all()}


def _check_for_leaks(before: Entered, written: WrittenRecords) -> None:
    if leaked := _free_again(before, written):
        raise LeakedLock(leaked)


def _free_again(before: Entered, written: WrittenRecords) -> str:
    """Free what was taken since then, and remove what was written.

    Returns a message about what was not left, or nothing.
    """
    until = time.monotonic() + _TIME_TO_LEAVE
    while any(map(_is_elsewhere, leaked := _leaked(before))) and time.monotonic() < until:
        time.sleep(_PAUSE)
    message = "; ".join(map(_sentence, leaked))
    for hold in manager().all():
        if hold not in before:
            with suppress(Exception):  # its backend may be down, or closed to this test
                manager().free(hold)
    _free_without_holder()
    written.remove()
    return message


def _leaked(before: Entered) -> list[Hold]:
    # A named owner's hold that ended was left, or entered again, by another process.
    return [
        hold
        for hold in manager().all()
        if hold.entered > before.get(hold, 0) and not (hold.named and hold.lost_for_good)
    ]


def _is_elsewhere(hold: Hold) -> bool:
    """Return whether another thread or task has the hold, and still runs."""
    here = current_liveness()
    return any(entry.is_alive() and entry.is_alive != here for entry in hold.entries)


def _sentence(hold: Hold) -> str:
    lease = hold.lease
    state = f"was lost ({hold.lost}) and not left" if hold.lost else "was not left"
    return (
        f"{lease.claim.kind} {lease.name!r} on {hold.backend.alias!r} {state} by the test;"
        f" {lease.owner} took it (token {lease.token})"
    )


def _free_without_holder() -> None:
    """Free queueing locks, and locks that ``at_least`` reserves, if this process has taken them.

    Other locks of this process are left alone: a thread may be about to free them.
    """
    me = current_owner()
    for backend in locks.made():
        with suppress(Exception):  # a test that may not use this backend has taken nothing in it
            for info in list(backend.list()):
                who, token = info.owner, info.token
                if who is None or token is None or (who.host, who.pid) != (me.host, me.pid):
                    continue
                if is_reserved(who) or info.name.startswith(QUEUEING):
                    backend.force_release(info.name, token)


class WrittenRecords:
    """The directories that this process has changed since this was made."""

    def __init__(self) -> None:
        #: the revision of the first change
        self._first: dict[tuple[RecordStore, str], int] = {}

    @contextmanager
    def noting(self) -> Iterator[None]:
        """Note what is changed inside, by any thread."""
        observers.append(self._note)
        try:
            yield
        finally:
            observers.remove(self._note)

    def _note(self, store: RecordStore, directory: str, revision: int) -> None:
        self._first.setdefault((store, directory), revision)

    def remove(self) -> None:
        """Remove the records that were made since then, but not those of what still runs here."""
        stores = set()
        for backend in locks.made():  # use would open again those that were closed
            with suppress(NotSupported):
                stores.add(backend.store)
        for (store, directory), revision in tuple(self._first.items()):
            if store in stores:
                with suppress(Exception):  # its backend may be down, or closed to this test
                    _remove(store, directory, revision)
        self._first.clear()
        forget_values()


def _remove(store: RecordStore, directory: str, since: int) -> None:
    found = store.read(directory).records.values()
    made = [record for record in found if record.created >= since]
    if _runs_here(made):
        return
    # Records of a session of this process would stay for the length of a lease.
    sessions = {None, *(record.session for record in made if _is_of_this_process(record))}
    keys = (record.key for record in made if record.session in sessions)
    while some := [*islice(keys, MOST_KEYS)]:
        store.apply(directory, [Delete(key) for key in some])


def _runs_here(made: Collection[Record]) -> bool:
    """Return whether something goes on that a record stands for, say a group that nobody left."""
    keys = {record.key for record in made}
    for collect in (lambda: None, gc.collect):  # most of it ends when it is garbage
        collect()
        kept = manager().renewer.renewed()
        alive = [hold for hold in kept if any(one.is_alive() for one in hold.entries)]
        if keys.isdisjoint(held_key(hold.lease.nonce) for hold in alive):
            return False
    return True


def _is_of_this_process(record: Record) -> bool:
    me, said = current_owner(), record.value
    return isinstance(said, dict) and (said.get("host"), said.get("pid")) == (me.host, me.pid)
