"""Sweeping removes what is over, and nothing else."""

import threading

import pytest

from distlock.backends.store import Delete, Exists, Put
from tests.contract.actors import PATIENCE
from tests.contract.watch import eventually
from tests.stores.clients import bind, count_up, put, store_of, values


def test_a_sweep_leaves_what_is_in_use(store, directory, session):
    before = store.apply(directory, [Put("bound", 1, session.id), Put("free", 2)])
    store.sweep()
    snapshot = store.read(directory)
    assert values(snapshot) == {"bound": 1, "free": 2}
    assert {record.created for record in snapshot.records.values()} == {before}
    assert session.id in store.renew([session.id]).alive


@pytest.mark.lengthy
def test_a_sweep_clears_sessions_that_have_ended(store, directory, seconds):
    put(directory, "free", 2)
    session, _ = bind(directory, "bound", seconds)
    eventually(lambda: "bound" not in store.read(directory).records)
    store.sweep()
    assert values(store.read(directory)) == {"free": 2}
    assert session.id in store.renew([session.id]).ended


def test_a_change_of_what_is_not_there_leaves_nothing_to_sweep(store, directory):
    """Who leaves a seat that is gone must not make a directory for it."""
    assert store.apply(directory, [Delete("gone")], [Exists("gone")]) is None
    assert store.sweep().removed == 0


def test_revisions_go_on_growing_after_a_sweep(store, directory):
    for _ in range(3):
        put(directory, "a", 1)
        last = store.apply(directory, [Delete("a")])
        store.sweep()
        assert put(directory, "a", 1) > last
        assert store.get(directory, "a").created > last


def sweep_until(over):
    while not over.is_set():
        store_of().sweep()


def test_a_sweep_is_in_nobodys_way(store, directory, actor, others):
    over = threading.Event()
    sweeping = actor("thread").call(sweep_until, over)
    clients = [actor("thread"), *others(1)]
    counting = [client.call(count_up, directory, "counter", 20) for client in clients]
    for one in counting:
        one.result(PATIENCE)
    over.set()
    sweeping.result(PATIENCE)
    assert store.get(directory, "counter").value == 40


def come_and_go(directory, times):
    """Put and delete the only record again and again; the revisions."""
    store = store_of()
    revisions = []
    for _ in range(times):
        revisions.append(store.apply(directory, [Put("a", 1)]))
        revisions.append(store.apply(directory, [Delete("a")]))
    return revisions


def test_a_directory_that_comes_and_goes_keeps_its_order(store, directory, actor, others):
    over = threading.Event()
    sweeping = actor("thread").call(sweep_until, over)
    (other,) = others(1)
    revisions = other.call(come_and_go, directory, 30).result(PATIENCE)
    over.set()
    sweeping.result(PATIENCE)
    assert revisions == sorted(set(revisions))
