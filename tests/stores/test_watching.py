"""Whoever watches is woken by what he watches; what counts is what he reads then."""

import gc
import threading
import weakref

import pytest

from distlock.backends.store import Delete, Put
from distlock.concurrency.clock import clock
from tests.contract.actors import PATIENCE
from tests.contract.watch import eventually
from tests.stores.clients import count_up, delete, put


def woken(pending):
    return pending.wait(clock() + PATIENCE)


def now_of(store, directory):
    return store.read(directory).revision


@pytest.fixture
def other(others):
    """Who changes something."""
    (other,) = others(1)
    return other


def done(future):
    return future.result(PATIENCE)


@pytest.mark.parametrize("key", [None, "a"], ids=["directory", "record"])
def test_a_change_wakes_who_watches(store, directory, other, key):
    put(directory, "a", 0)
    for number in range(3):
        pending = store.watch(directory, now_of(store, directory), key)
        done(other.call(put, directory, "a", number))
        assert woken(pending)
        pending.take()


@pytest.mark.parametrize("key", [None, "a"], ids=["directory", "record"])
def test_a_deletion_wakes_who_watches(store, directory, other, key):
    put(directory, "a", 0)
    pending = store.watch(directory, now_of(store, directory), key)
    done(other.call(delete, directory, "a"))
    assert woken(pending)


@pytest.mark.parametrize("key", [None, "a"], ids=["directory", "record"])
def test_the_end_of_a_session_wakes_who_watches(store, directory, key):
    session = store.open_session(60)
    put(directory, "a", 0, session.id)
    pending = store.watch(directory, now_of(store, directory), key)
    store.end_session(session.id)
    assert woken(pending)


def test_the_first_record_of_a_directory_wakes_who_watches(store, directory, other):
    pending = store.watch(directory, now_of(store, directory))
    done(other.call(put, directory, "a", 0))
    assert woken(pending)


def test_a_record_that_comes_to_be_wakes_who_watches_for_it(store, directory, other):
    put(directory, "other", 0)
    pending = store.watch(directory, now_of(store, directory), "a")
    done(other.call(put, directory, "a", 0))
    assert woken(pending)


@pytest.mark.parametrize("key", [None, "a"], ids=["directory", "record"])
def test_what_changed_before_the_watch_is_told(store, directory, key):
    since = put(directory, "a", 0)
    put(directory, "a", 1)
    assert woken(store.watch(directory, since, key))


def test_a_deletion_before_the_watch_is_told(store, directory):
    since = put(directory, "a", 0)
    store.apply(directory, [Delete("a")])
    assert woken(store.watch(directory, since, "a"))
    assert woken(store.watch(directory, since))


def undisturbed(attempt, directory):
    """Return whether ``attempt(directory)`` succeeds, in one of ten directories.

    All who watch are woken when a connection was lost, as on a machine that stands still.
    """
    return any(attempt(f"{directory}:{number}") for number in range(10))


def test_other_records_wake_nobody(store, directory, other):
    """Each round is over when someone who watches all has been woken."""

    def sleeps_on(directory):
        put(directory, "a", 0)
        pending = store.watch(directory, now_of(store, directory), "a")
        for number in range(20):
            everything = store.watch(directory, now_of(store, directory))
            done(other.call(put, directory, f"b:{number % 3}", number))
            assert woken(everything)
        sleeps = not pending.over
        done(other.call(put, directory, "a", 1))
        assert woken(pending)
        return sleeps

    assert undisturbed(sleeps_on, directory)


def test_who_waits_for_a_record_to_come_is_not_woken_by_others(store, directory, other):
    """A few times, perhaps; but not at once whenever he looks, which would never end."""
    put(directory, "b", 0)
    idle = 0
    for number in range(10):
        pending = store.watch(directory, now_of(store, directory), "a")
        everything = store.watch(directory, now_of(store, directory))
        idle += not pending.over
        done(other.call(put, directory, "b", number))
        assert woken(everything)
        pending.abandon()
    assert idle > 5


def test_other_directories_wake_nobody(store, directory, other):
    def sleeps_on(directory):
        for name in (directory, f"{directory}:2"):
            put(name, "a", 0)
        pending = store.watch(directory, now_of(store, directory))
        for number in range(5):
            everything = store.watch(f"{directory}:2", now_of(store, f"{directory}:2"))
            done(other.call(put, f"{directory}:2", "a", number))
            assert woken(everything)
        sleeps = not pending.over
        pending.abandon()
        return sleeps

    assert undisturbed(sleeps_on, directory)


@pytest.mark.parametrize("times", [25, pytest.param(400, marks=pytest.mark.slow)])
def test_nothing_is_missed_between_a_look_and_its_watch(store, directory, others, times):
    """Two count; the watcher only ever looks when he is woken, and sees the last number."""
    counting = [one.call(count_up, directory, "a", times) for one in others(2)]
    looks = 0
    while True:
        snapshot = store.read(directory)
        looks += 1
        if "a" in snapshot.records and snapshot.records["a"].value == 2 * times:
            break
        assert woken(store.watch(directory, snapshot.revision, [None, "a"][looks % 2]))
    for one in counting:
        done(one)


def test_each_of_many_is_woken_by_what_it_watches(store, directory, other):
    keys = [f"key-{number}" for number in range(32)]

    def wakes_no_others(directory):
        store.apply(directory, [Put(key, 0) for key in keys])
        since = now_of(store, directory)
        watches = {key: store.watch(directory, since, key) for key in keys}
        # In etcd a watch that begins after a change wakes once. This one is answered after that.
        assert all(woken(store.watch(directory, 0, key)) for key in keys)
        for key in keys[::8]:
            done(other.call(put, directory, key, 1))
            assert woken(watches[key])
        over = {key for key, pending in watches.items() if pending.over}
        for pending in watches.values():
            pending.abandon()
        return over == set(keys[::8])

    assert undisturbed(wakes_no_others, directory)


def test_all_who_watch_are_woken(store, directory, other):
    since = put(directory, "a", 0)
    watches = [store.watch(directory, since, key) for key in [None, "a"] for _ in range(8)]
    done(other.call(put, directory, "a", 1))
    assert all(map(woken, watches))


def test_an_abandoned_watch_leaves_nothing(store, directory):
    since = put(directory, "a", 0)
    store.watch(directory, since, "a").abandon()  # what serves all watches may stay
    threads = threading.active_count()  # of tests before, too, which may need another one
    left = []
    for key in [None, "a", "b"] * 50:
        pending = store.watch(directory, since, key)
        left.append(weakref.ref(pending))
        pending.abandon()
    del pending

    def collected():
        gc.collect()
        return not any(ref() for ref in left)

    eventually(collected)
    # A few threads may serve them all, but none has a thread of its own.
    assert threading.active_count() < threads + len(left) // 5
    assert store.apply(directory, [Put("a", 1)])


def test_a_task_can_watch(store, directory, actor, other):
    put(directory, "a", 0)
    since = now_of(store, directory)

    async def wait():
        pending = store.watch(directory, since)
        began.set()
        return await pending.wait_async(clock() + PATIENCE)

    began = threading.Event()
    waiting = actor("task").call(wait)
    assert began.wait(PATIENCE)
    done(other.call(put, directory, "a", 1))
    assert done(waiting)
