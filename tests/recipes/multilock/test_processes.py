"""MultiLock among threads, tasks and processes that are stopped and killed: nobody stands still."""

import asyncio
import random
import signal
import threading
from pathlib import Path

import pytest

from distlock import Lock, LockLost, LockNotHeld
from distlock.recipes import MultiLock
from tests.children import read_line, write_line
from tests.contract.actors import PATIENCE
from tests.contract.forks import forked
from tests.contract.watch import eventually, passed
from tests.kinds import ONE_LEASE, SHARED
from tests.recipes.multilock.users import new_parts

#: Seconds; what a killed process held is free after that. Machines stand still for a second or two:
#: so it is renewed more often than leases usually are.
LEASE, RENEW = 3, 0.25


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
    often = {} if kind in ONE_LEASE else {"RENEW": RENEW}
    settings.DISTLOCK = backend_settings(kind, **often) | backend_settings(
        near, alias="near", RENEW=RENEW
    )
    lease = None if kind in ONE_LEASE else LEASE
    return [
        ("default", f"{name}:a", lease),
        ("default", f"{name}:b", lease),
        ("near", f"{name}:a", LEASE),
        ("near", f"{name}:b", LEASE),
    ]


#: Lock's own tests try these faults on every kind
every_day_on_one = pytest.mark.every_day_on("postgresql")


def steady(places):
    """Return the same with leases that end for nobody who stands still for a moment."""
    return [(using, at, lease and 30.0) for using, at, lease in places]


def random_orders(child, places, folder, processes, rounds):
    everyone = [
        child(count_in_files, steady(places), str(folder), rounds, seed)
        for seed in range(processes)
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
    mine = all_of(reversed(steady(places)))
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
        mine = all_of(steady(places))
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
