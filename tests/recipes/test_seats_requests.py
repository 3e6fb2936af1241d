"""Requests for seats that are late, or whose replies are lost; others come in between.

This is tried on the store of one process; what other stores do then is told by the tests of faults.
"""

import asyncio
import gc
import itertools
import threading
from contextlib import suppress

import pytest

from distlock import LockUnavailable
from distlock.backends.store import Delete, Put
from distlock.recipes import RWLock, Semaphore
from distlock.records.seats import Seats
from distlock.records.shared_backend import SharedBackend, shared_locks
from tests.contract.actors import PATIENCE
from tests.contract.watch import eventually, passed
from tests.recipes.wrapping import cancel_while_asking, grants, in_thread, is_unused, joins

#: the length of a session that is renewed several times a second
SECONDS = 3.0


class TestOthersAreFaster:
    @pytest.mark.parametrize(
        "take",
        [lambda name: Semaphore(name, 2), lambda name: RWLock(name).writer()],
        ids=["semaphore", "writer"],
    )
    def test_who_is_always_too_late_for_a_free_seat_comes_before_later_ones(
        self, local, wrapped, name, take
    ):
        """Each time it has seen that a seat is free, somebody has changed something."""
        applied, lock = wrapped("apply"), take(name)

        def be_faster(known, directory, changes, *rest):
            if grants(changes):
                applied.original(known, directory, [Put("other", next(numbers))])

        numbers, applied.before = itertools.count(), be_faster
        assert lock.acquire(timeout=PATIENCE)
        lock.release()

    def test_a_try_stands_in_no_queue(self, local, wrapped, name):
        applied = wrapped("apply")

        def be_faster(known, directory, changes, *rest):
            assert not joins(changes)
            if grants(changes) and next(numbers) < 9:
                applied.original(known, directory, [Put("other", 0)])

        numbers, applied.before = itertools.count(), be_faster
        assert Semaphore(name, 2).acquire(blocking=False)


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

    @pytest.mark.usefixtures("soon_given_up")
    def test_who_gives_up_keeps_no_seat_that_is_granted_late(self, local, wrapped, name):
        store, held = wrapped("apply"), Semaphore(name, 1)
        held.acquire()
        late = []

        def delay_the_first(known, directory, changes, *rest):
            if not grants(changes):
                return
            late.append((known, directory, changes, *rest))
            if len(late) == 2:
                passed(2)  # its time is over by now
            if len(late) < 3:
                raise LockUnavailable("no reply")
            store.before = lambda *_: None
            assert store.original(*late[0])

        waiting = in_thread(Semaphore(name, 1).acquire, timeout=1)
        eventually(lambda: held.info().waiters)
        store.before = delay_the_first
        held.release()
        # On a machine that stands still its last request may be one that is not answered.
        assert (result := waiting()) is False or isinstance(result, LockUnavailable)
        eventually(lambda: is_unused(held))

    @pytest.mark.slow
    def test_such_a_grant_on_an_earlier_session_is_renewed_with_it(self, eager, wrapped, name):
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
                shared = shared_locks(eager)
                (put,) = [one for one in late[0][2] if isinstance(one, Put) and one.session]
                assert shared  # the session of the first request goes on
                other = known.open_session(SECONDS)
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
        passed(1.5 * SECONDS)
        went_on.set()
        assert waiting() is True

    def test_who_cannot_join_the_queue_tries_again_after_a_pause(self, local, wrapped, name):
        """A request for a place that is refused again and again must not be a storm."""
        apply, reads = wrapped("apply"), wrapped("read")
        with Semaphore(name, 1):
            refused, accepted = itertools.count(), threading.Event()

            def refuse(known, directory, changes, *rest):
                if joins(changes) and next(refused) < 5:
                    changes.append(Delete("there-is-none"))
                    rest[0].clear()
                    rest[0].append(_Never())
                elif joins(changes):
                    accepted.set()

            apply.before = refuse
            waiting = in_thread(Semaphore(name, 1).acquire, timeout=PATIENCE)
            assert accepted.wait(PATIENCE)
            assert len(reads.calls) < 20
        assert waiting() is True


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

    def test_one_who_did_not_come_holds_up_one_only(self, eager, line):
        """Those behind that one do not wait for it again, each for a second."""
        order, go_on = line("slow", "one", "two", "three", impatient="one")
        eventually(lambda: len(order) == 3)
        go_on.set()
        eventually(lambda: len(order) == 4)
        assert order == ["one", "two", "three", "slow"]

    def test_it_would_hold_up_all_if_it_kept_its_place(
        self, eager, wrapped, line, name, monkeypatch
    ):
        """A control: the others have no patience of their own that would let them in."""
        monkeypatch.setattr(Seats, "passed_by", lambda *_: [])
        order, go_on = line("slow", "one", "two", "three", impatient="one")
        eventually(lambda: order and Semaphore(name, 1).info().taken == 0)
        reads = wrapped("read")
        eventually(lambda: len(reads.calls) > 8)
        assert order == ["one"]
        go_on.set()
        eventually(lambda: len(order) == 4)
        assert order == ["one", "slow", "two", "three"]

    def test_all_of_its_process_are_passed_over_with_it(self, eager, line):
        """Those that go on line up anew, behind the one who passed them over."""
        order, go_on = line("slow", "one", "two", "three", impatient="three")
        eventually(lambda: len(order) == 3)
        go_on.set()
        eventually(lambda: len(order) == 4)
        assert order[0] == "three"
        assert sorted(order[1:3]) == ["one", "two"]

    @pytest.fixture
    def line(self, wrapped, name, monkeypatch):
        """``line(*names, impatient=…)``: threads take the one seat of a semaphore one by one.

        The first does not come when it is free, until it may go on. The impatient one passes over
        who does not come, but only once, and nobody else does. Return the order in which they
        came, and the event that lets the first one go on.
        """
        patience, go_on = SharedBackend.patience, threading.Event()

        def make(*names, impatient):
            apply, held, order = wrapped("apply"), Semaphore(name, 1), []

            def patience_of(backend, passed_over):
                here = threading.current_thread().name
                once = here == impatient and not passed_over
                return patience(backend, passed_over) if once else 2 * PATIENCE

            def hold_back(known, directory, changes, *_):
                if grants(changes) and threading.current_thread().name == names[0]:
                    go_on.wait(PATIENCE)

            def wait():
                with Semaphore(name, 1):
                    order.append(threading.current_thread().name)

            monkeypatch.setattr(SharedBackend, "patience", patience_of)
            held.acquire()
            for number, thread_name in enumerate(names, 1):
                threading.Thread(target=wait, name=thread_name, daemon=True).start()
                eventually(lambda: len(held.info().waiters) == number)  # noqa: B023
            apply.before = hold_back
            held.release()
            return order, go_on

        yield make
        go_on.set()

    def test_the_first_in_line_is_passed_over_just_when_it_comes(self, eager, wrapped, name):
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
        passed(0.5)
        assert not slow.is_set()
        assert held.info().taken == 1
        leave.set()
        eventually(lambda: is_unused(held))


class TestTasks:
    def test_a_task_that_is_cancelled_while_it_asks_gets_nothing(self, local, wrapped, name):
        """The request goes on, on another thread, after the claim has been cancelled."""
        apply = wrapped("apply")
        cancel_while_asking(apply, grants, Semaphore(name, 1).aacquire, local)
        eventually(lambda: any(map(grants, (call[1] for call in apply.calls))))
        eventually(lambda: len(apply.calls) >= 3)
        eventually(lambda: is_unused(Semaphore(name, 1)))

    def test_a_task_that_is_cancelled_while_it_lines_up_leaves_no_place(self, local, wrapped, name):
        """Its place is taken after the claim has been cancelled, and given up once more."""
        apply = wrapped("apply")
        with Semaphore(name, 1):
            cancel_while_asking(apply, joins, Semaphore(name, 1).aacquire, local)
            eventually(lambda: any(map(joins, (call[1] for call in apply.calls))))
            eventually(lambda: not Semaphore(name, 1).info().waiters)
        assert Semaphore(name, 1).acquire(blocking=False)
        assert not local.shared._requests.places

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
