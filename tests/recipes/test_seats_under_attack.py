"""What keeps a seat or a place in the queue from being left behind, on the store of one process.

Its methods are wrapped where a test needs an outage, a lost reply or a late request at a certain
point; what other stores do then is told by the tests of faults.
"""

import asyncio
import gc
import itertools
import threading
import uuid
from contextlib import suppress
from dataclasses import replace

import pytest

from distlock import LockLost, LockUnavailable
from distlock.backends.local_store import LocalStore
from distlock.backends.shared import SharedBackend, shared_locks
from distlock.backends.store import Delete, Put
from distlock.concurrency.clock import clock
from distlock.recipes import RWLock, Semaphore
from tests.contract.actors import PATIENCE
from tests.contract.watch import Once, eventually, passed
from tests.core.interrupting import interrupted
from tests.recipes.every_kind import SHORT as LEASE
from tests.recipes.wrapping import in_thread


def grants(changes):
    return any(isinstance(change, Put) and change.key.startswith("h/") for change in changes)


def joins(changes):
    return any(isinstance(change, Put) and change.key.startswith("w/") for change in changes)


def is_unused(lock):
    info = lock.info()
    return info.taken == 0 and info.waiters == ()


class TestLostReplies:
    def test_a_grant_whose_reply_was_lost_is_found(self, local, wrapped, name):
        store, held, waiter = wrapped("apply"), Semaphore(name, 1), Semaphore(name, 1)
        held.acquire()
        waiting = in_thread(lambda: waiter.acquire() and (waiter.token, waiter.verify()))
        eventually(lambda: held.info().waiters)

        def lose_the_reply(known, directory, changes, *rest):
            if grants(changes):
                store.before = lambda *_: None
                assert store.original(known, directory, changes, *rest)
                raise LockUnavailable("the reply was lost")

        store.before = lose_the_reply
        held.release()
        token, _ = waiting()
        assert held.info().token == token
        assert held.info().taken == 1

    def test_a_grant_that_is_carried_out_late_is_found(self, local, wrapped, name):
        """Its reply was lost, and so it was asked for again; then the first request arrives."""
        store, held, waiter = wrapped("apply"), Semaphore(name, 1), Semaphore(name, 1)
        held.acquire()
        late = []

        def delay_the_first(known, directory, changes, *rest):
            if not grants(changes):
                return
            if not late:
                late.append((known, directory, changes, *rest))
                raise LockUnavailable("no reply")
            store.before = lambda *_: None
            assert store.original(*late[0])

        waiting = in_thread(lambda: waiter.acquire() and (waiter.token, waiter.verify()))
        eventually(lambda: held.info().waiters)
        store.before = delay_the_first
        held.release()
        token, _ = waiting()
        assert held.info().token == token
        assert held.info().taken == 1

    @pytest.mark.slow
    def test_such_a_grant_on_an_earlier_session_is_renewed_with_it(self, brief, wrapped, name):
        store, held, waiter = wrapped("apply"), Semaphore(name, 1), Semaphore(name, 1)
        held.acquire()
        late, went_on = [], threading.Event()

        def delay_the_first(known, directory, changes, *rest):
            if not grants(changes):
                return
            if not late:
                late.append((known, directory, changes, *rest))
                raise LockUnavailable("no reply")
            store.before = lambda *_: None
            if len(late) == 1:  # on another session from now on
                shared = shared_locks(brief)
                (put,) = [one for one in late[0][2] if isinstance(one, Put) and one.session]
                assert shared  # the session of the first request goes on
                other = known.open_session(LEASE)
                again = [
                    Put(one.key, one.value, other.id) if one is put else one for one in late[0][2]
                ]
                assert store.original(known, directory, again, *late[0][3:])

        def hold():
            waiter.acquire()
            went_on.wait(PATIENCE)
            waiter.verify()
            return waiter.held

        waiting = in_thread(hold)
        eventually(lambda: held.info().waiters)
        store.before = delay_the_first
        held.release()
        eventually(lambda: held.info().taken)
        passed(2 * LEASE)
        went_on.set()
        assert waiting() is True

    def test_who_cannot_join_the_queue_tries_again_after_a_pause(self, local, wrapped, name):
        """A request for a place that is refused again and again must not be a storm."""
        apply, reads = wrapped("apply"), wrapped("read")
        with Semaphore(name, 1):
            refused = itertools.count()

            def refuse(known, directory, changes, *rest):
                if joins(changes) and next(refused) < 5:
                    changes.append(Delete("there-is-none"))
                    rest[0].clear()
                    rest[0].append(_Never())

            apply.before = refuse
            assert Semaphore(name, 1).acquire(timeout=0.2) is False
            assert len(reads.calls) < 20
        assert next(refused) > 5


class _Never:
    """A condition that no store knows; the local one takes it for Unchanged."""

    revision = -1


class TestRaces:
    def test_another_one_comes_between_the_look_and_the_grant(self, local, wrapped, name):
        apply, others = wrapped("apply"), []

        def be_faster(known, directory, changes, *_):
            if grants(changes) and not others:
                others.append(None)
                others[0] = in_thread(Semaphore(name, 1).acquire, blocking=False)()

        apply.before = be_faster
        lock = Semaphore(name, 1)
        assert lock.acquire(blocking=False) is False
        assert others == [True]
        assert lock.info().taken == 1

    def test_the_number_of_seats_changes_between_the_look_and_the_grant(self, local, wrapped, name):
        apply, held, said = wrapped("apply"), Semaphore(name, 2, n=2), []

        def resize(known, directory, changes, *_):
            if grants(changes) and not said:
                said.append(None)
                said[0] = in_thread(Semaphore(name).resize, 1)()

        held.acquire()
        waiting = in_thread(Semaphore(name, None, n=2).acquire, timeout=PATIENCE)
        eventually(lambda: held.info().waiters)
        apply.before = resize
        held.release()
        assert "n=2" in str(waiting())
        assert said == [2]
        assert held.info().slots == 1
        eventually(lambda: is_unused(held))

    def test_one_who_did_not_come_holds_up_one_only(self, brief, wrapped, monkeypatch, name):
        """Those behind that one do not wait for it again, each for a second."""
        held, apply, go_on = Semaphore(name, 1), wrapped("apply"), threading.Event()

        def hold_back(known, directory, changes, *_):
            if grants(changes) and threading.current_thread().name == "slow":
                go_on.wait(PATIENCE)

        held.acquire()
        order = []

        def wait():
            with Semaphore(name, 1):
                order.append(threading.current_thread().name)

        threads = []
        for thread_name in ["slow", "one", "two", "three"]:
            threads.append(threading.Thread(target=wait, name=thread_name, daemon=True))
            threads[-1].start()
            eventually(lambda: len(held.info().waiters) == len(threads))  # noqa: B023
        apply.before = hold_back
        held.release()
        eventually(lambda: order)
        assert "slow" not in [one.thread for one in held.info().waiters]
        eventually(lambda: len(order) == 3)
        go_on.set()
        eventually(lambda: len(order) == 4)
        assert order == ["one", "two", "three", "slow"]

    def test_the_first_in_line_is_passed_over_just_when_it_comes(self, brief, wrapped, name):
        """It was slow; when its request arrives at last, the seat is taken."""
        apply, held, passed_by = wrapped("apply"), Semaphore(name, 1), threading.Event()

        def hold_back(known, directory, changes, *_):
            if grants(changes) and threading.current_thread().name == "slow":
                apply.before = lambda *_: None
                assert passed_by.wait(PATIENCE)

        def wait(done, leave):
            with Semaphore(name, 1) as lock:
                done.set()
                leave.wait(PATIENCE)
                lock.verify()
                done.clear()

        held.acquire()
        served, leave = [threading.Event(), threading.Event()], threading.Event()
        for thread_name, done in zip(["slow", "fast"], served, strict=True):
            threading.Thread(target=wait, args=(done, leave), name=thread_name, daemon=True).start()
            eventually(lambda: thread_name in [one.thread for one in held.info().waiters])  # noqa: B023
        apply.before = hold_back
        held.release()
        slow, fast = served
        assert fast.wait(PATIENCE)
        passed_by.set()
        eventually(lambda: len(held.info().waiters) == 1)
        passed(LEASE / 2)
        assert not slow.is_set()
        assert held.info().taken == 1
        leave.set()
        eventually(lambda: is_unused(held))


class TestOutages:
    @pytest.mark.parametrize("sent", [False, True])
    def test_who_waits_through_one_that_lasts_stands_in_no_queue(self, local, wrapped, sent, name):
        reads, held = wrapped("read"), Semaphore(name, 1)

        def refuse(*_):
            error = LockUnavailable("not now")
            error.maybe_applied = sent
            raise error

        def acquire():
            return Semaphore(name, 1).acquire(timeout=0.5)

        with held:
            waiting = in_thread(acquire)
            eventually(lambda: held.info().waiters)
            reads.before = refuse
            assert isinstance(waiting(), LockUnavailable)
            reads.before = lambda *_: None
            eventually(lambda: not held.info().waiters)

    def test_who_waits_keeps_its_place_over_a_short_one(self, local, wrapped, name):
        reads, held = wrapped("read"), Semaphore(name, 1)
        held.acquire()
        waiting = in_thread(Semaphore(name, 1).acquire, timeout=PATIENCE)
        eventually(lambda: held.info().waiters)
        failed = threading.Event()

        def refuse(*_):
            if len(reads.calls) - before > 3:
                reads.before = lambda *_: None
            failed.set()
            raise LockUnavailable("not now")

        before, reads.before = len(reads.calls), refuse
        held.release()
        assert failed.wait(PATIENCE)
        assert waiting() is True

    def test_a_place_is_taken_back_for_as_long_as_its_session_goes_on(self, local, wrapped, name):
        """The session of the process outlasts the short lease that was asked for."""
        apply, held = wrapped("apply"), Semaphore(name, 1)

        def refuse(known, directory, changes, *_):
            raise LockUnavailable("not now")

        with held:
            waiting = in_thread(Semaphore(name, 1, lease=0.1).acquire, timeout=0.3)
            eventually(lambda: held.info().waiters)
            apply.before = refuse
            assert waiting() is False
            passed(0.5)
            apply.before = lambda *_: None
            eventually(lambda: not held.info().waiters)

    def test_who_waits_keeps_its_place_where_nothing_can_be_watched(self, brief, monkeypatch, name):
        def refuse(*_):
            error = LockUnavailable("not now")
            error.maybe_applied = False
            raise error

        with Semaphore(name, 1) as held:
            monkeypatch.setattr(LocalStore, "watch", refuse)
            waiting = in_thread(Semaphore(name, 1).acquire, timeout=PATIENCE)
            eventually(lambda: held.info().waiters)
        assert waiting() is True

    def test_who_waits_keeps_its_place_when_the_process_has_another_session(
        self, brief, monkeypatch, wrapped, name
    ):
        """After an outage the store may still know the session that the process has given up."""
        open_session, renewals = LocalStore.open_session, wrapped("renew")

        def open_for_long(store, seconds, *_):
            return replace(open_session(store, 60), seconds=seconds, deadline=clock() + seconds)

        def refuse(*_):
            raise LockUnavailable("not now")

        def places():
            found = brief.store.read(f"semaphore:{name}").records
            return [(key, one.created) for key, one in found.items() if key.startswith("w/")]

        def sessions():
            found = brief.store.read(f"semaphore:{name}").records
            return {one.session for key, one in found.items() if key.startswith("w/")}

        monkeypatch.setattr(LocalStore, "open_session", open_for_long)
        with Semaphore(name, 1, lease=600, renew=False):
            waiting = []
            for number in (1, 2):
                waiting.append(in_thread(Semaphore(name, 1).acquire, timeout=PATIENCE))
                eventually(lambda: len(places()) == number)  # noqa: B023 - called at once
            before, earlier = places(), sessions()
            renewals.before = refuse
            eventually(lambda: not earlier & sessions())
            renewals.before = lambda *_: None
            assert places() == before
        assert waiting[0]() is True


class TestLostLeases:
    def test_when_the_session_of_the_process_ends_holders_are_told_and_waiters_line_up_anew(
        self, brief, name
    ):
        told = Once()
        lock = Semaphore(name, 1, on_lost=told)
        lock.acquire()
        waiting = in_thread(Semaphore(name, 1).acquire, timeout=PATIENCE)
        eventually(lambda: lock.info().waiters)
        records = brief.store.read(f"semaphore:{name}").records.values()
        (session,) = {record.session for record in records} - {None}
        brief.store.end_session(session)
        assert waiting() is True
        told.wait()
        with pytest.raises(LockLost):
            lock.release()
        assert lock.info().taken == 1

    def test_a_lost_seat_is_freed_though_the_session_goes_on(self, brief, name):
        """Its thread has ended, so it is not renewed; the seats of other threads are."""
        told, other = Once(), Semaphore(f"{name}:other", 1)
        with other:
            in_thread(Semaphore(name, 1, on_lost=told).acquire)()
            told.wait()
            assert Semaphore(name, 1).acquire(timeout=PATIENCE)
            passed(LEASE)
            other.verify()

    def test_a_session_that_is_shorter_than_was_asked_for_is_relied_on_for_no_longer(
        self, local, monkeypatch, name
    ):
        """ZooKeeper's servers have a longest session, which is known when one is connected."""
        open_session = LocalStore.open_session
        monkeypatch.setattr(
            LocalStore, "open_session", lambda store, *_: open_session(store, LEASE)
        )
        with Semaphore(name, 1) as lock:
            end = clock() + lock.remaining
            while clock() < end:
                assert lock.remaining <= LEASE
                passed(0.05)
            lock.verify()

    def test_sessions_of_own_leases_are_ended_with_them(self, local, wrapped, name):
        opened, ended = wrapped("open_session"), wrapped("end_session")
        for _ in range(3):
            with Semaphore(name, 1, lease=600):
                assert not Semaphore(name, 1, lease=600).acquire(blocking=False)
        assert len(opened.calls) == len(ended.calls) == 3

    def test_a_session_of_its_own_serves_all_attempts(self, local, wrapped, name):
        """Others are faster again and again; each attempt would leave a session behind."""
        apply, opened, others = wrapped("apply"), wrapped("open_session"), itertools.count()

        def be_faster(known, directory, changes, *_):
            if grants(changes) and next(others) < 4:
                store = apply.original
                store(known, directory, [Put("x/else", next(others))])

        apply.before = be_faster
        lock = Semaphore(name, 1, lease=600)
        assert lock.acquire(timeout=PATIENCE)
        assert len(opened.calls) == 1


class TestTasks:
    def test_a_task_that_is_cancelled_while_it_asks_gets_nothing(self, local, wrapped, name):
        """The request goes on, on another thread, after the claim has been cancelled."""
        apply, asked, go_on = wrapped("apply"), threading.Event(), threading.Event()

        def hold_back(known, directory, changes, *_):
            if grants(changes):
                apply.before = lambda *_: None
                asked.set()
                go_on.wait(PATIENCE)

        async def cancelled():
            task = asyncio.create_task(Semaphore(name, 1).aacquire())
            await asyncio.to_thread(asked.wait, PATIENCE)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            while local.shared.cleanup.pending:
                await asyncio.sleep(0.01)
            go_on.set()

        apply.before = hold_back
        asyncio.run(cancelled())
        eventually(lambda: any(map(grants, (call[1] for call in apply.calls))))
        eventually(lambda: len(apply.calls) >= 3)
        eventually(lambda: is_unused(Semaphore(name, 1)))

    def test_a_loop_that_is_closed_leaves_no_waiter(self, local, name):
        """It is seen when the task would be woken; what is left of it is garbage then."""
        loop, held = asyncio.new_event_loop(), Semaphore(name, 1)
        with held:
            task = loop.create_task(Semaphore(name, 1).aacquire())
            while not held.info().waiters:
                loop.run_until_complete(asyncio.sleep(0.01))
            del task
            loop.close()
        gc.collect()
        eventually(lambda: is_unused(held))


class TestStarting:
    def test_two_threads_that_come_first_share_one_backend(self, local, monkeypatch):
        made, initialise = threading.Barrier(2, timeout=0.3), SharedBackend.__init__

        def slow(*args):
            with suppress(threading.BrokenBarrierError):
                made.wait()
            initialise(*args)

        monkeypatch.setattr(SharedBackend, "__init__", slow)
        one, two = in_thread(shared_locks, local), in_thread(shared_locks, local)
        assert one() is two()
        assert local.store is local.store

    def test_one_who_tries_again_while_a_generator_is_left_elsewhere(self, local, wrapped, name):
        """It is not held any more, and not yet free: it is somebody's, and no error."""
        apply, go_on, leaving = wrapped("apply"), threading.Event(), threading.Event()
        lock, ended = RWLock(name).reader(), threading.Event()

        def block():
            with lock:
                yield

        def hold_back(*_):
            apply.before = lambda *_: None
            leaving.set()
            go_on.wait(PATIENCE)

        def own_thread(parts):
            generator = block()
            next(generator)
            parts.append(generator)
            ended.wait(PATIENCE)
            return lock.acquire(blocking=False)

        parts = []
        tries = in_thread(own_thread, parts)
        eventually(lambda: parts)
        apply.before = hold_back
        parts.pop().close()
        assert leaving.wait(PATIENCE)
        ended.set()
        assert tries() is False
        go_on.set()


# Interrupts


def interrupted_everywhere(make, call, prepare=lambda lock: None, *, step=1):
    """Interrupt ``call(lock)`` at one moment after the other; yield the locks."""
    for moment in itertools.count(1, step):
        lock = make(uuid.uuid4().hex)
        prepare(lock)
        interrupt = interrupted(lambda: call(lock), moment)  # noqa: B023 - called at once
        yield lock
        if interrupt is None:
            assert moment > 50, "the interrupts did not reach the code"
            return


def nothing_is_left(locks):
    """Let go of what is still held; then nobody may be in, or in the queue."""
    left = []
    for lock in locks:
        while lock.held:
            lock.release()
        left.append(lock)
    for lock in left:
        eventually(lambda: is_unused(lock))  # noqa: B023 - called at once


MAKERS = [
    pytest.param(lambda name: Semaphore(name, 2), id="semaphore"),
    pytest.param(lambda name: Semaphore(name, 2, lease=600), id="own-lease"),
    pytest.param(lambda name: RWLock(name).writer(), id="writer"),
]


@pytest.mark.parametrize("make", MAKERS)
class TestInterrupts:
    def test_while_taking(self, local, make):
        nothing_is_left(interrupted_everywhere(make, lambda lock: lock.acquire()))

    def test_while_leaving(self, local, make):
        def take(lock):
            lock.acquire()

        nothing_is_left(interrupted_everywhere(make, lambda lock: lock.release(), take))

    def test_while_waiting_in_vain(self, local, make):
        """Joining the queue, waiting, and leaving it."""
        holders = []

        def held_by_another(lock):
            holder = make(lock.name)
            in_thread(lambda: holder.acquire(**all_of(holder)))()
            holders.append((holder, holder.info()))

        def locks():
            for lock in interrupted_everywhere(
                make, lambda lock: lock.acquire(timeout=0.001), held_by_another, step=3
            ):
                assert not lock.held
                (holder, info) = holders[-1]
                eventually(lambda: not holder.info().waiters)  # noqa: B023 - called at once
                assert holder.force_release(info.token)
                yield lock

        nothing_is_left(locks())

    @pytest.mark.slow
    def test_while_waiting_and_being_served(self, local, make):
        def held_by_another(lock):
            in_thread(_hold_until_someone_waits, make(lock.name))
            eventually(lambda: lock.info().taken)

        def wait(lock):
            lock.acquire(timeout=PATIENCE, **all_of(lock))

        nothing_is_left(interrupted_everywhere(make, wait, held_by_another))


def all_of(lock):
    """Return the arguments that ask for all seats."""
    return {"n": 2} if isinstance(lock, Semaphore) else {}


def _hold_until_someone_waits(lock):
    with lock:
        until = threading.Event()
        for _ in range(20):
            if lock.info().waiters:
                break
            until.wait(0.001)
