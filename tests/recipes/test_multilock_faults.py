"""MultiLock under interrupts, cancels, forks, kills and storms: all or none, and no circle."""

import asyncio
import itertools
import random
import signal
import threading
import uuid
from contextlib import suppress
from pathlib import Path

import pytest

from distlock import Lock, LockLost, LockNotHeld, locks
from distlock.recipes import MultiLock, RWLock, Semaphore
from tests.children import read_line, write_line
from tests.contract.actor_process import actors
from tests.contract.actors import PATIENCE
from tests.contract.conftest import ONE_LEASE, SHARED
from tests.contract.forks import forked
from tests.contract.watch import cleaned_up, eventually, passed
from tests.core.interrupting import interrupted

#: seconds; what a killed process held is free after that. The shortest that every kind can have
LEASE = 2


@pytest.fixture
def two_local(backend_settings, settings):
    """Two backends in this process."""
    settings.DISTLOCK = backend_settings("local") | backend_settings("local", alias="near")
    yield
    locks.close_all()


@pytest.fixture
def actor(loop):
    """``actor("thread")``: an actor; see actors()."""
    with actors(loop) as make:
        yield make


# Interrupts


def new_parts():
    name = uuid.uuid4().hex
    return [Lock(f"{name}:a"), Lock(f"{name}:b"), Lock(f"{name}:a", using="near")]


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


def others_get(parts):
    got = []

    def take():
        for part in parts:
            assert part.acquire(timeout=10)
            part.release()
            got.append(part)

    other = threading.Thread(target=take, daemon=True)
    other.start()
    other.join(60)
    assert len(got) == len(parts)


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


# Tasks that are cancelled


@pytest.mark.usefixtures("two_local")
class TestCancelling:
    @pytest.mark.parametrize("blocking", [True, False])
    def test_a_cancel_at_any_moment_leaves_nothing(self, actor, blocking):
        parts = new_parts()
        lock = MultiLock(*parts, blocking=blocking)

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
        assert other.tries(parts[0].name)
        assert other.tries(parts[1].name)

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


@pytest.mark.usefixtures("two_local")
def test_the_child_of_a_fork_holds_nothing():
    parts = new_parts()
    lock = MultiLock(*parts)

    def child():
        with pytest.raises(LockNotHeld):
            lock.release()
        return lock.held, lock.acquire(blocking=False)

    with lock:
        assert forked(child) == (False, True)
        lock.verify()


# Many at once


def go_round(names, rounds, seed, counters):
    """Take three random locks in a random order, again and again; count under each of them."""
    dice = random.Random(seed)
    for _ in range(rounds):
        chosen = dice.sample(names, 3)
        with MultiLock(*[Lock(name, using=using) for using, name in chosen]):
            seen = [(counter, counters[counter]) for counter in chosen]
            threading.Event().wait(0.0005)
            for counter, value in seen:
                counters[counter] = value + 1


@pytest.mark.usefixtures("two_local")
def test_threads_that_take_locks_in_any_order_never_stand_still(actor, name):
    """They wait without a limit, so that a circle would be told as LockDeadlock."""
    names = [(using, f"{name}:{letter}") for using in ("default", "near") for letter in "abc"]
    counters = dict.fromkeys(names, 0)
    people = [actor("thread") for _ in range(8)]
    calls = [person.call(go_round, names, 15, seed, counters) for seed, person in enumerate(people)]
    for call in calls:
        call.result(PATIENCE)
    assert sum(counters.values()) == 8 * 15 * 3


@pytest.mark.usefixtures("two_local")
def test_tasks_that_take_locks_in_any_order_never_stand_still(actor, name):
    names = [(using, f"{name}:{letter}") for using in ("default", "near") for letter in "abc"]

    async def work(seed):
        dice = random.Random(seed)
        for _ in range(10):
            chosen = dice.sample(names, 3)
            async with MultiLock(*[Lock(name, using=using) for using, name in chosen]):
                await asyncio.sleep(0)

    async def main():
        await asyncio.gather(*[work(seed) for seed in range(8)])
        return True

    assert actor("task").call(main).result(PATIENCE)


def all_of(places, **options):
    """Return a MultiLock of (alias, name, lease)."""
    return MultiLock(
        *[Lock(name, using=using, lease=lease) for using, name, lease in places], **options
    )


def count_in_files(places, folder, rounds, seed):
    """As go_round(), in a process; the counters are files."""
    dice = random.Random(seed)
    for _ in range(rounds):
        chosen = dice.sample(range(len(places)), 3)
        with all_of([places[number] for number in chosen], timeout=PATIENCE):
            for number in chosen:
                path = Path(folder, str(number))
                value = int(path.read_text()) if path.exists() else 0
                path.write_text(str(value + 1))
    write_line("done")


@pytest.fixture(params=SHARED)
def kind(request):
    """The kind of the backend ``default``."""
    return request.param


@pytest.fixture
def places(kind, name, backend_settings, settings):
    """Locks in the backend under test and in another one; both are shared by processes."""
    near = "postgresql" if kind == "mariadb" else "mariadb"
    settings.DISTLOCK = backend_settings(kind) | backend_settings(near, alias="near")
    lease = None if kind in ONE_LEASE else LEASE
    return [
        ("default", f"{name}:a", lease),
        ("default", f"{name}:b", lease),
        ("near", f"{name}:a", LEASE),
        ("near", f"{name}:b", LEASE),
    ]


#: Lock's own tests try these faults on every kind
every_day_on_one = pytest.mark.every_day_on("postgresql")


def random_orders(child, places, folder, processes, rounds):
    everyone = [
        child(count_in_files, places, str(folder), rounds, seed) for seed in range(processes)
    ]
    for one in everyone:
        assert one.line() == "done"
    assert sum(int(path.read_text()) for path in folder.iterdir()) == processes * rounds * 3


@every_day_on_one
def test_processes_that_take_locks_in_any_order_never_stand_still(places, child, tmp_path):
    random_orders(child, places, tmp_path, 3, 4)


@pytest.mark.slow
def test_many_processes_that_take_locks_in_any_order(places, child, tmp_path):
    random_orders(child, places, tmp_path, 8, 30)


def hold(places):
    with all_of(places) as lock:
        write_line(*sorted(lock.tokens.values()))
        read_line()


@every_day_on_one
def test_what_a_killed_process_held_can_be_taken(places, child):
    killed = child(hold, places)
    tokens = [int(token) for token in killed.line().split()]
    mine = all_of(reversed(places))
    assert not mine.acquire(blocking=False)
    killed.kill()
    assert mine.acquire(timeout=PATIENCE)
    mine.verify()
    assert all(new > old for new, old in zip(sorted(mine.tokens.values()), tokens, strict=True))
    mine.release()


def take(places):
    write_line("asks")
    try:
        with all_of(places) as lock:
            write_line("holds")
            read_line()
            write_line(lock.held)
    except LockLost:
        write_line("lost")


#: a process that is stopped in the middle of writing to SQLite lets all others wait
stoppable = pytest.mark.parametrize("kind", [kind for kind in SHARED if kind != "sqlite"])


@stoppable
@pytest.mark.slow
def test_a_process_that_was_stopped_while_it_held_all_knows_of_the_loss(places, child):
    stopped = child(take, places)
    assert [stopped.line(), stopped.line()] == ["asks", "holds"]
    stopped.signal(signal.SIGSTOP)
    with all_of(places, timeout=PATIENCE):
        stopped.signal(signal.SIGCONT)
        stopped.tell()
        assert [stopped.line(), stopped.line()] == ["False", "lost"]


@stoppable
@pytest.mark.slow
def test_a_process_that_was_stopped_while_it_waited_does_not_hold_what_it_lost(places, child):
    first, second, *_, last = (
        Lock(name, using=using, lease=lease) for using, name, lease in places
    )
    with last:
        stopped = child(take, places)
        assert stopped.line() == "asks"
        eventually(second.locked)  # so it knows that it has the first
        stopped.signal(signal.SIGSTOP)
        assert first.acquire(timeout=PATIENCE)
        stopped.signal(signal.SIGCONT)
    assert stopped.line() == "lost"
    first.verify()
    first.release()
    with all_of(places, timeout=PATIENCE):
        pass


@pytest.mark.slow
def test_processes_that_are_killed_at_random_stop_nobody(places, child, tmp_path):
    dice = random.Random(str(places))
    for _ in range(4):
        victims = [child(count_in_files, places, str(tmp_path), 10_000, n) for n in range(3)]
        eventually(lambda: any(tmp_path.iterdir()))
        passed(dice.uniform(0, 0.2))
        for victim in victims:
            victim.kill()
        mine = all_of(places)
        assert mine.acquire(timeout=PATIENCE)
        mine.verify()
        mine.release()


def take_in_greenlets(first, second):
    import gevent

    def work(names):
        for _ in range(20):
            with MultiLock(*names) as lock:
                gevent.sleep(0)
                lock.check()

    greenlets = [gevent.spawn(work, names) for names in ([first, second], [second, first])]
    gevent.joinall(greenlets, timeout=PATIENCE, raise_error=True)
    write_line(all(greenlet.successful() for greenlet in greenlets))


@pytest.mark.slow
def test_greenlets_are_owners(places, child, name):
    assert child(take_in_greenlets, f"{name}:a", f"{name}:b", gevent=True).line() == "True"
