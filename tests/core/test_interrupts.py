"""Ctrl-C, or a worker's time limit, at any moment leaves a lock held or free, never stuck."""

import asyncio
import dis
import itertools
import random
import signal
import threading
import time
import timeit
import uuid
from contextlib import suppress

import pytest
from django.db import connections, transaction

from distlock import Lock, LockLost, LockNotHeld, LockUnavailable, ReentrantCall
from distlock.backends.background import Cleanup
from distlock.exceptions import BodyEnded
from distlock.locking.base_lock import BaseLock
from distlock.locking.blocks import Attempt, BlockLock
from distlock.locking.lock import transaction_under
from distlock.locking.run_under import run_under
from distlock.recipes import MultiLock, Semaphore
from distlock.runtime import local_queue, manager
from distlock.types.lease import Claim
from distlock.types.owners import current_owner
from tests.contract.actors import PATIENCE
from tests.contract.watch import eventually
from tests.core.interrupting import CODE, at_moment, cycle, in_destructor, interrupted


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


class OwnAcquire(Lock):
    def acquire(self, blocking=None, timeout=None):
        return super().acquire(blocking, timeout)


class OwnExit(Lock):
    def __exit__(self, exc_type, exc, traceback):
        super().__exit__(exc_type, exc, traceback)


class TwoSeats(Semaphore):
    def __init__(self, name):
        super().__init__(name, 2)

    def acquire(self, blocking=None, timeout=None, n=None):
        return super().acquire(blocking, timeout, n)


class TwoLocks(MultiLock):
    def __init__(self, name):
        super().__init__(f"{name}:1", f"{name}:2")


def block(lock):
    with lock:
        pass


def attempted_block(lock):
    with lock.attempt():
        pass


def interrupt(frame):
    raise KeyboardInterrupt


def entries(lock):
    """Return how often each lock that it consists of is entered in this process."""
    keys = [part._key for part in getattr(lock, "_parts", [lock])]
    holds = manager.manager().all()
    return [sum(hold.count for hold in holds if hold.key == key) for key in keys]


def unprotected(call, make, act=interrupt, prepare=lambda lock: None, code=CODE):
    """Act at each moment of ``call(lock)``; return in which functions it then was left entered."""
    warm, found = make("warm"), []
    block(warm)  # threads of the package run from now on
    while warm.held:
        warm.release()
    for moment in itertools.count(1):
        struck = []

        def note(frame):
            struck.append(frame.f_code.co_name)  # noqa: B023 - called at once
            act(frame)

        lock = make(f"{uuid.uuid4().hex}:{moment}")
        before = entries(lock)
        prepared = prepare(lock)
        with suppress(KeyboardInterrupt, ReentrantCall):
            at_moment(lambda: call(prepared or lock), moment, note, code)  # noqa: B023
        if entries(lock) != before:
            found += struck or ["without an interrupt"]
        while lock.held:
            lock.release()
        if not struck:
            assert moment > 50, "the interrupts did not reach the code"
            return found


@pytest.mark.parametrize("make", [Lock, OwnAcquire, OwnExit, TwoSeats, TwoLocks])
@pytest.mark.parametrize("again", [False, True], ids=["first", "again"])
def test_a_block_that_is_interrupted_is_left(make, again):
    """Python gives nobody a chance to do so if that is as ``__exit__()`` begins."""

    def entered(name):
        lock = make(name)
        if again:
            lock.acquire()
        return lock

    assert unprotected(block, entered) == ["__exit__"]
    assert unprotected(attempted_block, entered) == ["__exit__", "__exit__"]


@pytest.mark.parametrize("make", [Lock, TwoLocks])
def test_a_block_whose_signal_handler_uses_another_lock_is_left(make):
    """The handler lets ReentrantCall through, which is then no error of leaving."""
    assert unprotected(block, make, act=lambda frame: cycle(Lock("other"))) == []


TAKING = [
    BlockLock.__enter__,
    BlockLock.acquire,
    BlockLock._begin,
    Attempt.__enter__,
    BaseLock._acquire,
    MultiLock._acquire,
    transaction_under.__wrapped__,
]


@pytest.mark.parametrize("function", TAKING, ids=lambda function: function.__qualname__)
def test_what_has_taken_a_lock_is_not_called_with_a_star(function):
    """CPython handles signals after such a call, before its result is stored."""
    assert "CALL_FUNCTION_EX" not in {one.opname for one in dis.get_instructions(function)}


@pytest.fixture
def on_alarm():
    """``on_alarm(handle)``: have this signal handler for a while, and the timer of its signal."""
    handler, timer = signal.getsignal(signal.SIGALRM), signal.getitimer(signal.ITIMER_REAL)
    yield lambda handle: signal.signal(signal.SIGALRM, handle)
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, handler)
    signal.setitimer(signal.ITIMER_REAL, *timer)


def wait(struck):
    """Apart, because no ``with`` around a loop protects its jump back."""
    while not struck:
        pass


@pytest.mark.parametrize("make", [Lock, TwoLocks])
def test_a_block_that_a_signal_interrupts_is_left(make, on_alarm):
    """Signals come at moments, too, that the interpreter shows to nobody."""

    def strike(number, frame):
        code = frame.f_code
        begins = code is BlockLock.__exit__.__code__ and frame.f_lineno == code.co_firstlineno
        struck.append(begins)
        if not in_destructor(frame):
            raise KeyboardInterrupt

    on_alarm(strike)
    length = min(timeit.repeat(lambda: block(make("timed")), number=1, repeat=20))
    for number in range(3000):
        struck, lock = [], make(f"{uuid.uuid4().hex}:{number}")
        with suppress(KeyboardInterrupt):
            signal.setitimer(signal.ITIMER_REAL, random.uniform(length / 50, 1.2 * length))
            block(lock)
            wait(struck)
        assert struck == [True] or not any(entries(lock))
        while lock.held:
            lock.release()


def test_who_was_in_a_lost_hold_does_not_leave_the_next_one(backend, in_thread):
    """Another thread of the same owner's name has taken it meanwhile."""

    def leave(lock):
        with suppress(LockLost):
            lock.__exit__(None, None, None)

    for moment in itertools.count(1):
        name = f"{uuid.uuid4().hex}:{moment}"
        lost, taken_again = Lock(name, owner="me"), Lock(name, owner="me")
        lost.__enter__()
        backend.force_release(name, lost.token)
        with pytest.raises(LockLost):
            lost.verify()
        in_thread(taken_again.acquire)
        over = not interrupted(lambda: leave(lost), moment)  # noqa: B023 - called at once
        assert in_thread(lambda: taken_again.held)  # noqa: B023 - called at once
        in_thread(taken_again.release)
        if over:
            break
    assert moment > 20, "the interrupts did not reach the code"


@pytest.mark.parametrize("make", [Lock, TwoLocks])
def test_a_transaction_under_a_lock_that_is_interrupted_at_its_end_is_left(
    make, sqlite, backend_settings, settings
):
    def begin(lock):
        transaction = lock.atomic()
        transaction.__enter__()
        return transaction

    def end(transaction):
        transaction.__exit__(None, None, None)

    settings.DISTLOCK = backend_settings("sqlite")
    try:
        assert unprotected(end, make, prepare=begin, code=CODE[:1]) == ["__exit__"]
    finally:
        connections["default"].close()


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
