"""Outages and lost leases leave neither a seat nor a place in the queue behind."""

import itertools
import threading
from dataclasses import replace

import pytest

from distlock import LockError, LockLost, LockUnavailable, locks
from distlock.backends.local_store import LocalStore
from distlock.backends.store import Put
from distlock.concurrency.clock import clock
from distlock.recipes import Semaphore
from tests.contract.actors import PATIENCE
from tests.contract.watch import Once, eventually, passed, steadily
from tests.recipes.every_kind import SHORT
from tests.recipes.wrapping import grants, in_thread, joins

pytestmark = pytest.mark.once


class TestOutages:
    @pytest.mark.usefixtures("soon_given_up")
    @pytest.mark.parametrize("sent", [False, True])
    def test_who_waits_through_one_that_lasts_stands_in_no_queue(self, local, wrapped, sent, name):
        reads = wrapped("read")

        def wait_for(seconds):
            held, looks = Semaphore(f"{name}:{seconds}", 1), itertools.count(1)

            def acquire():
                return Semaphore(held.name, 1).acquire(timeout=seconds)

            def refuse(*_):
                # It looks, joins the queue, looks, and waits; then the backend is away.
                if threading.current_thread() is not me and next(looks) > 2:
                    error = LockUnavailable("not now")
                    error.maybe_applied = sent
                    raise error

            me = threading.current_thread()
            with held:
                reads.before = refuse
                if (result := in_thread(acquire)()) is False:
                    raise LockError("the machine has stood still: it has not looked any more")
                assert isinstance(result, LockUnavailable)
                eventually(lambda: not held.info().waiters)

        steadily(wait_for, 0.1, 5.0)

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
            if not joins(changes):
                raise LockUnavailable("not now")

        with held:
            apply.before = refuse
            for timeout in (0.1, 1, 10):  # on a busy machine its time may be over before it joins
                waiting = in_thread(Semaphore(name, 1, lease=0.1).acquire, timeout=timeout)
                assert waiting() is False
                if held.info().waiters:
                    break
            passed(0.5)
            assert held.info().waiters
            apply.before = lambda *_: None
            eventually(lambda: not held.info().waiters)

    @pytest.mark.slow
    def test_a_seat_is_freed_whose_lease_was_over_before_that_failed(self, brief, wrapped, name):
        """Its session goes on for the other one."""
        apply, seat, other = wrapped("apply"), Semaphore(name, 1), Semaphore(f"{name}:other", 1)

        def refuse(*_):
            apply.before = lambda *_: None
            passed(2 * SHORT)
            raise LockUnavailable("no answer")

        with other:
            seat.acquire()
            apply.before = refuse
            with pytest.raises(LockUnavailable):
                seat.release()
            eventually(lambda: not seat.info().taken)

    def test_who_waits_keeps_its_place_where_nothing_can_be_watched(self, eager, monkeypatch, name):
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
        self, eager, name
    ):
        told = Once()
        lock = Semaphore(name, 1, on_lost=told)
        lock.acquire()
        waiting = in_thread(Semaphore(name, 1).acquire, timeout=PATIENCE)
        eventually(lambda: lock.info().waiters)
        records = eager.store.read(f"semaphore:{name}").records.values()
        (session,) = {record.session for record in records} - {None}
        eager.store.end_session(session)
        assert waiting() is True
        told.wait()
        with pytest.raises(LockLost):
            lock.release()
        assert lock.info().taken == 1

    def test_a_lost_seat_is_freed_though_the_session_goes_on(
        self, backend_settings, settings, name
    ):
        """Its thread has ended, so it is not renewed; the seats of other threads are."""

        def lose(lease):
            settings.DISTLOCK = backend_settings("local", LEASE=lease, RENEW=0.1)
            told, other = Once(), Semaphore(f"{name}:other", 1)
            with other:
                in_thread(Semaphore(name, 1, on_lost=told).acquire)()
                told.wait()
                assert Semaphore(name, 1).acquire(timeout=PATIENCE)
                passed(lease)
                other.verify()

        steadily(lose, 1.0, 5.0)
        locks.close_all()

    def test_a_session_that_is_shorter_than_was_asked_for_is_relied_on_for_no_longer(
        self, local, monkeypatch, name
    ):
        """ZooKeeper's servers have a longest session, which is known when one is connected."""
        open_session = LocalStore.open_session

        def rely_on(seconds):
            monkeypatch.setattr(
                LocalStore, "open_session", lambda store, *_: open_session(store, seconds)
            )
            with Semaphore(f"{name}:{seconds}", 1) as lock:
                end = clock() + lock.remaining
                while clock() < end:
                    assert lock.remaining <= seconds
                    passed(0.05)
                lock.verify()

        steadily(rely_on, 1.0, 5.0)

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
