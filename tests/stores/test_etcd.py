"""What is special about records in etcd."""

import pytest

from distlock import LockUnavailable
from distlock.backends.store import Absent, Exists, Put
from distlock.concurrency.clock import clock
from tests.contract.actors import PATIENCE
from tests.contract.watch import eventually
from tests.stores.clients import put, store_of, values

#: what the tests' etcd keeps its keys below
ROOT = "/distlock/records/"


@pytest.fixture
def using(backend_settings, configured):
    """The alias of the backend under test."""
    configured(backend_settings("etcd"))
    return "default"


def test_who_watches_what_was_compacted_is_woken(store, directory, etcd):
    since = put(directory, "a", 1)
    put(directory, "a", 2)
    etcd.compact()
    assert store.watch(directory, since).wait(clock() + PATIENCE)


def test_a_directory_that_never_changes_wakes_nobody_after_a_compaction(store, directory, etcd):
    """Whoever looks when he is woken would look for ever."""
    put(directory, "a", 1)
    assert store.watch(directory, 0).wait(clock() + PATIENCE)  # so it is followed
    for number in range(3):
        put(f"{directory}:2", "a", number)
        etcd.compact()
        pending = store.watch(directory, store.read(directory).revision)
        other = store.watch(f"{directory}:2", store.read(f"{directory}:2").revision)
        put(f"{directory}:2", "a", -1)
        assert other.wait(clock() + PATIENCE)
        assert not pending.over
        pending.abandon()


def test_a_compaction_keeps_nobody_from_being_woken(store, directory, etcd):
    def change_another(number):
        other = store.watch(f"{directory}:2", store.read(f"{directory}:2").revision)
        put(f"{directory}:2", "a", number)
        assert other.wait(clock() + PATIENCE)

    put(directory, "a", 1)
    first = store.watch(directory, 2**60)
    change_another(-1)  # by then the stream of both is open; who came before is woken for nothing
    pending = store.watch(directory, store.read(directory).revision)
    for number in range(3):
        change_another(number)
        etcd.compact()
    assert not pending.over
    put(directory, "a", 2)
    assert pending.wait(clock() + PATIENCE)
    first.abandon()


def test_a_directory_long_empty_is_swept(store, directory, etcd):
    """One in which there is something is not, nor one that was in use a moment ago."""
    put(directory, "a", 1)
    for name in ("recent", "full"):
        put(f"{directory}:{name}", "a", 1)
    for name in (directory, f"{directory}:recent"):
        store.apply(name, [Put("b", 1)], [Exists("a")])
        session = store.open_session(60)
        for key in "ab":
            put(name, key, 1, session.id)
        store.end_session(session.id)
    for name in (directory, f"{directory}:full"):
        etcd.put(f"{ROOT}{name}/", "1")  # changed long ago
    assert store.sweep().removed == 1
    left = {key.split("/")[3] for key in etcd.keys(f"{ROOT}{directory}")}
    assert left == {f"{directory}:recent", f"{directory}:full"}
    assert store.apply(directory, [Put("a", 1)], [Absent("a")])


def test_the_keys_are_below_the_prefix(store, directory, etcd, session):
    before = set(etcd.keys())
    put(directory, "a/b", 1, session.id)
    new = {key: one for key, one in etcd.keys().items() if key not in before}
    # What tests before have left in other directories may be taken back meanwhile.
    new = {key: one for key, one in new.items() if directory in key or not key.startswith(ROOT)}
    assert set(new) == {f"{ROOT}{directory}/", f"{ROOT}{directory}/=a/b"}
    assert new[f"{ROOT}{directory}/=a/b"]["lease"] == session.id


def count_through_outages(directory, key, times, seconds):
    """See count_up(); returns how many changes were made for sure, and how many perhaps."""
    store = store_of()
    made = perhaps = 0
    while made < times:
        try:
            found = store.get(directory, key, clock() + seconds)
            number, condition = (
                (found.value + 1, Exists(key, found.revision))
                if found
                else (
                    1,
                    Absent(key),
                )
            )
        except LockUnavailable:
            continue
        try:
            made += bool(store.apply(directory, [Put(key, number)], [condition], clock() + seconds))
        except LockUnavailable as error:
            perhaps += error.maybe_applied
    return made, perhaps


@pytest.mark.slow
def test_no_increment_is_lost_when_the_leader_dies(
    directory, etcd_ensemble, backend_settings, settings, actor
):
    settings.DISTLOCK = backend_settings("etcd", LOCATION=etcd_ensemble.hosts)
    counting = [
        actor(what).call(count_through_outages, directory, "a", 400, 5)
        for what in ("thread", "new process", "new process")
    ]
    store = store_of()
    for number in (100, 500):
        eventually(lambda at=number: reached(store, directory, at))
        leader = etcd_ensemble.leader
        leader.kill()
        eventually(lambda at=number: reached(store, directory, at + 100))
        etcd_ensemble.heal()
    results = [one.result(3 * PATIENCE) for one in counting]
    made, perhaps = map(sum, zip(*results, strict=True))
    assert made <= values(store.read(directory))["a"] <= made + perhaps


@pytest.mark.slow
def test_a_session_outlives_the_leader(directory, etcd_ensemble, backend_settings, settings):
    """Elections cost renewals, but the living never leave."""
    settings.DISTLOCK = backend_settings("etcd", LOCATION=etcd_ensemble.hosts)
    store = store_of()
    session = store.open_session(10, clock() + PATIENCE)
    store.apply(directory, [Put("a", 1, session.id)], (), clock() + PATIENCE)
    renewed = 0
    for change in ("kill", "pause", "lead"):
        leader = etcd_ensemble.leader
        if change == "lead":
            leader.lead(next(one for one in etcd_ensemble.members if one is not leader))
        else:
            getattr(leader, change)()
        until = clock() + 4
        while clock() < until:
            try:
                renewal = store.renew([session.id], [(directory, "a")], clock() + 2)
            except LockUnavailable:
                continue
            assert not renewal.ended and not renewal.missing
            renewed += bool(renewal.alive)
        etcd_ensemble.heal()
    assert renewed
    assert store.get(directory, "a", clock() + PATIENCE)
    store.end_session(session.id, clock() + PATIENCE)


def reached(store, directory, number):
    try:
        return values(store.read(directory, clock() + 5)).get("a", 0) >= number
    except LockUnavailable:
        return False
