"""Ctrl-C, or a worker's time limit, at any moment leaves a lock held or free, never stuck."""

import asyncio
import itertools
import threading
import time
import uuid
from contextlib import suppress

import pytest
from django.db import connections, transaction

from distlock import Lock, LockLost, LockNotHeld, LockUnavailable
from distlock.backends.background import Cleanup
from distlock.exceptions import BodyEnded
from distlock.locking.run_under import run_under
from distlock.runtime import local_queue, manager
from distlock.types.lease import Claim
from distlock.types.owners import current_owner
from tests.contract.actors import PATIENCE
from tests.contract.watch import eventually
from tests.core.interrupting import CODE, interrupted


def interrupted_everywhere(call, prepare=lambda lock: None, error=KeyboardInterrupt, code=CODE):
    """Interrupt ``call(lock)`` at one moment after the other; yield the locks.

    The interrupt is known until the caller goes on, and all that its traceback refers to with it.
    """
    for moment in itertools.count(1):
        lock = Lock(f"{uuid.uuid4().hex}:{moment}")
        prepare(lock)
        interrupt = interrupted(lambda: call(lock), moment, error, code)  # noqa: B023 - called at once
        if interrupt is None:
            assert moment > 20, "the interrupts did not reach the code"
            while lock.held:
                lock.release()
            return
        yield lock


def others_get_it(locks):
    """Let go of what is still held; then another thread has to get all of it."""
    names = []
    for lock in locks:
        while lock.held:
            lock.release()
        names.append(lock.name)
    got = []

    def take():
        for name in names:
            with Lock(name, timeout=10):
                got.append(name)

    other = threading.Thread(target=take, daemon=True)
    other.start()
    other.join(60)
    assert got == names


def test_while_taking():
    others_get_it(interrupted_everywhere(Lock.acquire))


def test_while_releasing():
    others_get_it(interrupted_everywhere(Lock.release, prepare=Lock.acquire))


def others_get_it_after_the_transaction(locks):
    """As others_get_it(), when nobody knows the interrupts any more, nor the hooks in their way."""
    locks = list(locks)
    for lock in locks:
        if (hold := manager.manager().holds.find(lock._key, current_owner())) and hold.entered:
            lock.release()
        eventually(lambda: not lock.held)  # noqa: B023
    others_get_it(locks)


def test_while_left_inside_a_transaction_and_freed_at_its_commit():
    def call(lock):
        with transaction.atomic(), Lock(lock.name, release="commit"):
            pass

    others_get_it_after_the_transaction(interrupted_everywhere(call, code=CODE[:1]))


def test_in_the_middle_of_djangos_commit_it_is_kept_for_its_lease_at_most():
    """Django then neither calls nor drops what was to be called."""
    connection = connections["default"]
    lock = Lock(uuid.uuid4().hex, release="commit", lease=1)

    def interrupt():
        raise KeyboardInterrupt

    with suppress(KeyboardInterrupt), transaction.atomic():
        with lock:
            pass
        connection._commit, commit = interrupt, connection._commit
    connection._commit = commit
    try:
        eventually(lambda: not lock.held)
    finally:
        connection.close()


def test_while_a_command_is_run_inside_a_transaction():
    def call(lock):
        keeping = Lock(lock.name, release="commit")
        with transaction.atomic():
            run_under(keeping, keeping.acquire, lambda: None, lambda error: None)

    others_get_it_after_the_transaction(interrupted_everywhere(call, code=CODE[:1]))


def test_when_the_loss_of_another_lock_ends_the_body():
    others_get_it(interrupted_everywhere(Lock.acquire, error=LockLost))
    others_get_it(interrupted_everywhere(Lock.release, prepare=Lock.acquire, error=LockLost))


def test_while_leaving_one_of_two_levels():
    def twice(lock):
        lock.acquire()
        lock.acquire()

    others_get_it(interrupted_everywhere(Lock.release, prepare=twice))


def take_and_leave(name):
    with Lock(name, timeout=20):
        pass


def test_who_waits_is_woken_when_the_turn_before_it_was_interrupted_in_leaving():
    def wait_for(lock):
        lock.acquire()
        waiting = threading.Thread(target=take_and_leave, args=[lock.name])
        waiting.start()
        waiters.append(waiting)

    waiters = []
    for lock in interrupted_everywhere(Lock.release, prepare=wait_for):
        while lock.held:
            lock.release()
    for waiting in waiters:
        waiting.join(30)
        assert not waiting.is_alive()


def test_who_was_interrupted_is_out_of_the_way_at_once():
    """Nothing is left to the garbage collector: while it waits, one would be one's own rival."""

    def there_and_back(lock):
        lock.acquire()
        lock.release()

    for lock in interrupted_everywhere(there_and_back):
        while lock.held:
            lock.release()
        assert lock.acquire()  # one's own rival would be told of a deadlock
        others_get_it([lock])


def held_by_another(lock):
    """Have another thread hold the lock until it has seen someone wait for it for a moment."""

    def hold():
        with Lock(lock.name):
            taken.set()
            time.sleep(0.01)

    taken = threading.Event()
    threading.Thread(target=hold).start()
    assert taken.wait(10)


def test_while_waiting_for_another_thread():
    others_get_it(interrupted_everywhere(Lock.acquire, prepare=held_by_another))


@pytest.mark.parametrize("error", [KeyboardInterrupt, BodyEnded])
def test_while_being_told_that_the_backend_cannot_be_asked(backend, monkeypatch, error):
    def refuse(claim, deadline):
        raise LockUnavailable("not now")

    def try_to_acquire(lock):
        with suppress(LockUnavailable):
            lock.acquire()

    with monkeypatch.context() as patch:
        patch.setattr(backend, "enqueue", refuse)
        locks = list(interrupted_everywhere(try_to_acquire, error=error))
    others_get_it(locks)


@pytest.mark.parametrize("error", [KeyboardInterrupt, BodyEnded])
def test_while_being_told_that_the_lock_cannot_be_freed(backend, monkeypatch, error):
    def refuse(lease, deadline):
        raise LockUnavailable("not now")

    def try_to_release(lock):
        with suppress(LockUnavailable):
            lock.release()

    with monkeypatch.context() as patch:
        patch.setattr(backend, "release", refuse)
        locks = list(interrupted_everywhere(try_to_release, prepare=Lock.acquire, error=error))
    others_get_it(locks)


def test_while_being_told_of_a_loss(backend):
    def take_and_lose(lock):
        lock.acquire()
        backend.force_release(lock.name, lock.token)

    def leave(lock):
        with suppress(LockLost):
            lock.release()

    def left(locks):
        for lock in locks:
            with suppress(LockLost, LockNotHeld):
                lock.release()
            yield lock

    others_get_it(left(interrupted_everywhere(leave, prepare=take_and_lose)))


def test_a_claim_is_taken_back_though_the_first_attempt_fails_oddly(backend, monkeypatch):
    cancel, errors = backend.cancel, [OSError("too many open files")]

    def fail_first(claim, deadline=None):
        if errors:
            raise errors.pop()
        cancel(claim, deadline)

    claim = Claim(uuid.uuid4().hex, current_owner(), 60.0)
    backend.try_acquire(claim)
    with monkeypatch.context() as patch:
        patch.setattr(backend, "cancel", fail_first)
        backend.cleanup.add(claim)
        eventually(lambda: not Lock(claim.name).locked())


@pytest.mark.parametrize("entered", [False, True], ids=["taking", "releasing"])
def test_an_interrupt_while_one_is_cleaned_up_after(backend, monkeypatch, entered):
    def interrupt(*_):
        raise KeyboardInterrupt

    lock = Lock(uuid.uuid4().hex)
    if entered:
        lock.acquire()
    with monkeypatch.context() as patch:
        patch.setattr(backend, "release" if entered else "enqueue", interrupt)
        patch.setattr(backend.cleanup, "add", interrupt)
        with pytest.raises(KeyboardInterrupt):
            lock.release() if entered else lock.acquire()
    if entered:
        backend.force_release(lock.name, backend.inspect(lock.name).token)
    others_get_it([lock])


@pytest.mark.parametrize("method", ["enqueue", "release"])
def test_a_second_interrupt_at_any_moment_after_the_first(backend, monkeypatch, method):
    """Signals often come in twos. Nobody in this process would ever get the lock again."""

    def interrupt(*_):
        raise KeyboardInterrupt

    for moment in itertools.count(1):
        lock = Lock(f"{uuid.uuid4().hex}:{moment}")
        if method == "release":
            lock.acquire()
        with monkeypatch.context() as patch:
            patch.setattr(backend, method, interrupt)
            second = interrupted(
                lock.acquire if method == "enqueue" else lock.release,
                moment,
                code=(manager.__file__, local_queue.__file__),
            )
        if lock.held:
            lock.release()
        others_get_it([lock])
        if second is None:
            break
    assert moment > 5, "the interrupts did not reach the code"


def test_what_is_granted_just_after_a_cancelled_task_was_cleaned_up_after_is_taken_back(
    backend, monkeypatch
):
    """The request goes on, on another thread, and asks for another clean-up when it is granted."""
    take, cancel, add = backend.try_acquire, backend.cancel, backend.cleanup.add
    asked, go_on, granted, added = (threading.Event() for _ in range(4))

    def take_late(claim, deadline=None):
        asked.set()
        assert go_on.wait(PATIENCE)
        lease = take(claim, deadline)
        granted.set()
        return lease

    def cancel_early(claim, deadline=None):
        cancel(claim, deadline)
        go_on.set()
        assert added.wait(PATIENCE)

    def note(claim, *args):
        add(claim, *args)
        if granted.is_set():
            added.set()

    async def cancelled():
        task = asyncio.create_task(lock.aacquire())
        await asyncio.to_thread(asked.wait, PATIENCE)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert await asyncio.to_thread(added.wait, PATIENCE)

    lock = Lock(uuid.uuid4().hex, lease=600)
    with monkeypatch.context() as patch:
        patch.setattr(backend, "try_acquire", take_late)
        patch.setattr(backend, "cancel", cancel_early)
        patch.setattr(backend.cleanup, "add", note)
        asyncio.run(cancelled())
    eventually(lambda: not lock.locked())


def test_claims_are_taken_back_although_an_earlier_one_was_interrupted(backend):
    def claim_for(name):
        return Claim(name, current_owner(), 30.0)

    for moment in itertools.count(1):
        cleanup, first, second = Cleanup(backend), claim_for("first"), claim_for("second")
        over = not interrupted(lambda: cleanup.add(first), moment)  # noqa: B023
        cleanup.add(second)
        eventually(lambda: not cleanup.pending)  # noqa: B023
        if over:
            return
