"""MultiLock under interrupts and cancels at any moment: all or none."""

import asyncio
import itertools
import threading
import uuid
from contextlib import suppress

import pytest

from distlock import Lock, LockLost, LockNotHeld, locks
from distlock.recipes import MultiLock, RWLock, Semaphore
from tests.contract.actors import PATIENCE
from tests.contract.watch import cleaned_up, eventually
from tests.core.interrupting import interrupted
from tests.recipes.multilock.users import new_parts, others_get


def interrupted_everywhere(call, prepare=lambda lock, parts: None, error=KeyboardInterrupt):
    """Interrupt ``call(lock)`` at one moment after the other; yield each lock's parts."""
    for moment in itertools.count(1):
        parts = new_parts()
        lock = MultiLock(*reversed(parts))
        prepare(lock, parts)
        interrupt = interrupted(lambda: call(lock), moment, error)  # noqa: B023 - called at once
        yield lock, parts
        if interrupt is None:
            assert moment > 100, "the interrupts did not reach the code"
            return


def all_or_none(interrupts):
    """Each time all locks are held, and are left here, or none is; then others can take them."""
    left = []
    for lock, parts in interrupts:
        eventually(lambda: len({part.held for part in parts}) == 1)  # noqa: B023 - called at once
        while lock.held:
            lock.release()
        assert not any(part.held for part in parts)
        left.extend(parts)
    others_get(left)


def take_all(lock, parts):
    lock.acquire()


@pytest.mark.usefixtures("two_local")
class TestInterrupts:
    @pytest.mark.parametrize("error", [KeyboardInterrupt, LockLost])
    def test_while_taking(self, error):
        all_or_none(interrupted_everywhere(MultiLock.acquire, error=error))

    @pytest.mark.parametrize("error", [KeyboardInterrupt, LockLost])
    def test_while_leaving(self, error):
        all_or_none(interrupted_everywhere(MultiLock.release, take_all, error))

    def test_while_taking_and_telling_of_it(self, sent_events):
        """Where the signal is sent, an interrupt has another thread undo the acquire."""
        all_or_none(interrupted_everywhere(MultiLock.acquire))

    def test_while_leaving_what_was_taken_because_another_is_busy(self):
        def occupy(lock, parts):
            def hold():
                with Lock(parts[2].name, using="near"):
                    taken.set()
                    free.wait(PATIENCE)

            taken, free = threading.Event(), threading.Event()
            holder = threading.Thread(target=hold)
            holder.start()
            taken.wait(PATIENCE)
            holders.append((holder, free))

        def left():
            for lock, parts in interrupted_everywhere(
                lambda lock: lock.acquire(blocking=False), occupy
            ):
                holder, free = holders.pop()
                free.set()
                holder.join(PATIENCE)
                yield lock, parts

        holders = []
        all_or_none(left())

    @pytest.mark.parametrize("held", [0, 1, 2])
    def test_while_taking_what_is_held_in_part(self, held):
        """The lock that was held before is held after it, and as often."""

        def take_one(lock, parts):
            parts[held].acquire()

        def left():
            for lock, parts in interrupted_everywhere(MultiLock.acquire, take_one):
                if lock.held:
                    lock.release()
                parts[held].release()
                yield lock, parts

        all_or_none(left())

    def test_two_interrupts_while_leaving(self, monkeypatch):
        """Signals often come in twos: the second while what the first came in is ended."""
        signals = [KeyboardInterrupt, KeyboardInterrupt]

        def interrupt_first(release):
            def interrupted_release(*args, **kwargs):
                if signals:
                    raise signals.pop()
                return release(*args, **kwargs)

            return interrupted_release

        parts = new_parts()
        lock = MultiLock(*parts)
        lock.acquire()
        with monkeypatch.context() as patch:
            for backend in locks.made():
                patch.setattr(backend, "release", interrupt_first(backend.release))
            with pytest.raises(KeyboardInterrupt):
                lock.release()
        assert not signals
        assert not any(part.held for part in parts)
        others_get(parts)

    def test_a_second_interrupt_at_any_moment_while_leaving(self, monkeypatch):
        def interrupt_once(backend, patch):
            def release(*args, **kwargs):
                patch.undo()
                raise KeyboardInterrupt

            patch.setattr(backend, "release", release)

        def leave(lock):
            with monkeypatch.context() as patch:
                interrupt_once(locks["near"], patch)
                lock.release()

        all_or_none(interrupted_everywhere(leave, take_all))

    def test_while_leaving_what_was_entered_twice(self):
        def take_twice(lock, parts):
            lock.acquire()
            lock.acquire()

        def left():
            for lock, parts in interrupted_everywhere(MultiLock.release, take_twice):
                assert all(part.held for part in parts)
                yield lock, parts

        all_or_none(left())

    def test_while_a_loss_is_found_in_the_middle(self):
        class LosesTheFirst(Lock):
            def acquire(self, blocking=None, timeout=None):
                got = super().acquire(blocking, timeout)
                backend = locks["default"]
                backend.force_release(first.name, backend.inspect(first.name).token)
                return got

        def left():
            nonlocal first
            for moment in itertools.count(1):
                parts = new_parts()
                first = parts[0]
                lock = MultiLock(*parts[:2], LosesTheFirst(parts[2].name, using="near"))

                def take(lock=lock):
                    with suppress(LockLost):
                        lock.acquire()

                over = interrupted(take, moment) is None
                for part in parts[1:]:
                    eventually(lambda part=part: not part.held)
                with suppress(LockLost, LockNotHeld):
                    first.release()
                yield lock, parts
                if over:
                    return

        first = None
        all_or_none(left())

    @pytest.mark.slow
    def test_while_taking_and_leaving_other_kinds(self):
        for moment in itertools.count(1):
            name = uuid.uuid4().hex
            seats, rows = Semaphore(name, 2), RWLock(name).writer()
            lock = MultiLock(name, seats, rows)

            def take_and_leave(lock=lock):
                lock.acquire()
                lock.release()

            over = interrupted(take_and_leave, moment) is None
            eventually(lambda seats=seats, rows=rows: seats.held == rows.held)
            while lock.held:
                lock.release()
            assert not seats.held
            eventually(lambda seats=seats: not seats.info().taken)
            others_get([rows])
            if over:
                return

    def test_a_with_block_can_be_interrupted_everywhere(self):
        def enter_and_leave(lock):
            with lock:
                pass

        all_or_none(interrupted_everywhere(enter_and_leave))


@pytest.mark.usefixtures("two_local")
class TestCancelling:
    @pytest.mark.parametrize("blocking", [True, False])
    def test_a_cancel_at_any_moment_leaves_nothing(self, actor, blocking):
        parts = new_parts()
        lock = MultiLock(*parts, on_busy="wait" if blocking else "raise")

        async def attempt(steps):
            taking = asyncio.create_task(take_and_leave())
            for _ in range(steps):
                await asyncio.sleep(0)
            taking.cancel()
            await asyncio.gather(taking, return_exceptions=True)
            return [await part.alocked() for part in parts]

        async def take_and_leave():
            async with lock:
                await asyncio.sleep(0)

        task = actor("task")
        for steps in [*range(30), 40, 80, 160, 320]:
            task.call(attempt, steps).result(PATIENCE)
            eventually(cleaned_up)
        others_get(parts)

    def test_cancels_while_leaving_leave_nothing(self, actor):
        parts = new_parts()

        async def attempt(steps, more):
            taken = asyncio.Event()
            leaving = asyncio.create_task(take_and_leave(taken))
            await taken.wait()
            for pause in (steps, more, more):
                for _ in range(pause):
                    await asyncio.sleep(0)
                leaving.cancel()
            await asyncio.gather(leaving, return_exceptions=True)

        async def take_and_leave(taken):
            async with MultiLock(*parts):
                taken.set()

        task = actor("task")
        for steps in [*range(6), 10, 20]:
            for more in (0, 1, 2, 5):
                task.call(attempt, steps, more).result(PATIENCE)
                others_get(parts)

    def test_a_cancel_while_waiting_for_the_last_leaves_the_others(self, actor):
        parts = new_parts()
        task, other = actor("task"), actor("thread")
        other.take(parts[2].name, using="near")
        waiting = task.call(MultiLock(*parts).aacquire)
        eventually(lambda: locks["default"].inspect(parts[1].name).owner)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            waiting.result(PATIENCE)
        for part in parts[:2]:  # the task may not have been told yet that it has the second one
            assert other.lock(part.name).acquire(timeout=PATIENCE / 2)

    def test_a_coroutine_that_is_closed_from_outside_leaves_all(self):
        parts, inside = new_parts(), []

        async def work():
            async with MultiLock(*parts):
                inside.append(True)
                await asyncio.Event().wait()

        async def main():
            while not inside:
                await asyncio.sleep(0.005)

        loop = asyncio.new_event_loop()
        abandoned = work()
        task = loop.create_task(abandoned)
        loop.run_until_complete(main())
        loop.close()
        task._log_destroy_pending = False
        abandoned.close()
        others_get(parts)

    def test_a_coroutine_that_is_closed_while_it_waits_leaves_all(self, actor):
        parts = new_parts()
        held = actor("thread").take(parts[2].name, using="near")

        async def main():
            while not locks["default"].inspect(parts[1].name).owner:
                await asyncio.sleep(0.005)

        loop = asyncio.new_event_loop()
        abandoned = MultiLock(*parts).aacquire()
        task = loop.create_task(abandoned)
        loop.run_until_complete(main())
        loop.close()
        task._log_destroy_pending = False
        abandoned.close()
        held.release()
        others_get(parts)
