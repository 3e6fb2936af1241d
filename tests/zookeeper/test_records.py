"""Records as nodes: what they look like, what they cost, and that they are in no lock's way."""

import threading

import pytest

from distlock import Lock, LockUnavailable, NotPermitted, locks
from distlock.backends.store import Absent, Delete, Exists, Put, Unchanged
from distlock.backends.zookeeper.client import ZooKeeperClient
from distlock.backends.zookeeper.requests import Multi
from distlock.concurrency.clock import clock
from tests.contract.actors import PATIENCE
from tests.contract.watch import eventually, passed, steadily
from tests.zookeeper.tree import session_of, watches


@pytest.fixture
def using(configure):
    """In sessions that need no proof between two requests, and no ping."""
    return configure(session_timeout=60)


@pytest.fixture
def node(tree, name):
    """``node(key)``: the data and the stat of a record's node, or of the directory's."""

    def read(*key):
        return tree.kazoo.get("/".join([tree.root, "%records", name, *key]))

    return read


def soon():
    return clock() + PATIENCE


# What the nodes say


def test_revisions_are_the_numbers_of_transactions(store, node, name):
    first = store.apply(name, [Put("a", 1), Put("b", 1)])
    assert {node(key)[1].czxid for key in ("a", "b")} == {first}
    second = store.apply(name, [Put("b", 2), Delete("c")])
    assert (node("b")[1].czxid, node("b")[1].mzxid) == (first, second)
    assert node()[1].mzxid == second
    third = store.apply(name, [Delete("a")])
    assert node()[1].mzxid == node()[1].pzxid == third == store.read(name).revision


def test_what_is_bound_to_a_session_is_ephemeral(store, other, backend, node, name):
    session = store.open_session(60)
    store.apply(name, [Put("bound", 1, session.id), Put("free", 1)])
    assert node("bound")[1].ephemeralOwner == backend.client.session.id
    assert node("free")[1].ephemeralOwner == 0
    theirs = other.open_session(60)
    other.apply(name, [Put("bound", 2, theirs.id)])
    store.apply(name, [Put("free", 2, session.id)])
    locks["other"].close()
    eventually(lambda: set(store.read(name).records) == {"free"})
    store.apply(name, [Put("free", 3)])
    backend.close()
    eventually(lambda: set(store.read(name).records) == {"free"})


def test_a_record_that_is_bound_or_freed_stays_the_same_record(store, name):
    """Though it takes another node."""
    session = store.open_session(60)
    created = store.apply(name, [Put("a", 1)])
    for bound_to in (session.id, None, None, session.id, session.id):
        revision = store.apply(name, [Put("a", 1, bound_to)])
        record = store.get(name, "a")
        assert (record.created, record.revision) == (created, revision)
        assert record.session == bound_to
    again = store.apply(name, [Delete("a"), Put("a", 1, session.id)])
    assert store.get(name, "a").created == again


def test_what_was_written_by_hand_is_read(store, tree, name):
    store.apply(name, [Put("a", 1), Put("b", 1)])
    tree.kazoo.set(f"{tree.root}/%records/{name}/a", b'{"value": 2}')
    records = store.read(name, soon()).records
    assert {key: record.value for key, record in records.items()} == {"a": 2, "b": 1}
    assert store.apply(name, [Put("a", 3)])


@pytest.mark.parametrize("path", ["", "/a"], ids=["directory", "record"])
def test_a_node_that_says_nothing_of_ours_is_named(store, other, tree, name, path):
    store.apply(name, [Put("a", 1)])
    path = f"{tree.root}/%records/{name}{path}"
    tree.kazoo.set(path, b"somebody else's")
    with pytest.raises(LockUnavailable, match=path) as caught:
        other.apply(name, [Put("a", 2)], (), soon())
    assert not caught.value.maybe_applied


def test_more_than_a_request_can_hold_is_refused(store, name):
    """The servers would close the connection."""
    watch = store.watch("nothing", store.read("nothing").revision)
    changes = [Put(f"{number}", "x" * 60_000) for number in range(20)]
    with pytest.raises(ValueError, match="bytes; ZooKeeper takes at most"):
        store.apply(name, changes)
    assert not store.read(name).records
    assert store.apply(name, changes[:16])
    assert not watch.over


# Beside the locks


def test_locks_and_records_do_not_see_each_other(store, backend, using, name):
    store.apply(name, [Put("a", 1)])
    with Lock(name, using=using):
        assert [info.name for info in backend.list()] == [name]
        assert store.directories() == [name]
    backend.sweep()
    store.sweep()
    assert store.get(name, "a").value == 1


def test_a_lock_may_have_any_name_of_theirs(store, using, name):
    store.apply(name, [Put("a", 1)])
    for lock in ("%records", f"%records/{name}"):
        with Lock(lock, using=using):
            assert [info.name for info in locks[using].list()] == [lock]
    assert store.directories() == [name]


def test_nodes_have_the_access_rules_of_the_locks(configure, settings, name):
    using = configure(auth=[("digest", "shop:secret")], acl="creator")
    stranger = settings.DISTLOCK["other"]
    stranger["OPTIONS"] = {**stranger["OPTIONS"], "auth": []}
    store = locks[using].store
    session = store.open_session(60)
    store.apply(name, [Put("a", 1), Put("b", 1, session.id)])
    for ask in (
        lambda: locks["other"].store.read(name),
        lambda: locks["other"].store.apply(name, [Put("c", 1)]),
    ):
        with pytest.raises(NotPermitted, match="NoAuth"):
            ask()
    assert set(store.read(name).records) == {"a", "b"}


# What they cost


def test_many_records_take_few_round_trips(store, sent, name):
    keys = [f"key-{number}" for number in range(150)]
    store.apply(name, [Put(key, 1) for key in keys])
    session = store.open_session(60)
    sent.clear()
    assert len(store.read(name).records) == len(keys)
    assert len(sent) == 2
    sent.clear()
    assert store.apply(name, [Put(key, 2, session.id) for key in keys])
    assert len(sent) == 2
    sent.clear()
    renewal = store.renew([session.id], [(name, key) for key in keys])
    assert len(renewal.present) == len(keys)
    assert len(sent) == 2


def test_what_was_seen_last_need_not_be_read_again(store, sent, name):
    """To take a seat and leave it: a look, a change, and a change."""
    session = store.open_session(60)
    for number in range(3):
        sent.clear()
        snapshot = store.read(name)
        changes = [Put("seats", 4), Put(f"{number}", 1, session.id)]
        assert store.apply(name, changes, [Absent("other"), Unchanged(snapshot.revision)])
        assert store.apply(name, [Delete(f"{number}")], [Exists(f"{number}")])
        assert number == 0 or len(sent) == 3
    assert set(store.read(name).records) == {"seats"}


def test_what_was_seen_last_is_not_relied_on(store, other, name):
    """Other clients have changed it since."""
    seen = store.apply(name, [Put("a", 1), Put("b", 1)])
    assert other.apply(name, [Delete("a"), Put("b", 2), Put("c", 2)])
    assert store.apply(name, [Put("d", 3)], [Exists("a")]) is None
    assert store.apply(name, [Put("d", 3)], [Exists("b", seen)]) is None
    assert store.apply(name, [Put("d", 3)], [Absent("c")]) is None
    assert store.apply(name, [Put("d", 3)], [Unchanged(seen)]) is None
    assert store.apply(name, [Put("a", 3), Put("b", 3), Put("c", 3)], [Absent("a"), Exists("c")])
    assert other.apply(name, [Delete(key) for key in "abc"])
    assert other.sweep().removed == 1
    assert store.apply(name, [Delete("a"), Delete("b")], [Exists("c")]) is None
    assert store.apply(name, [Put("a", 4)], [Absent("c")])
    assert set(other.read(name).records) == set(store.read(name).records) == {"a"}


def test_what_others_changed_before_a_change_of_ours_is_not_taken_for_known(store, other, name):
    """Joining does not read what it does not depend on; what it has not read it does not know."""
    seen = store.apply(name, [Put("a", 1)])
    other.apply(name, [Put("a", 2)])
    assert store.apply(name, [Put("b", 1)], [Absent("b")])
    assert store.apply(name, [Put("a", 3)], [Exists("a", seen)]) is None
    assert store.get(name, "a").value == 2


def test_who_joins_or_leaves_does_not_wait_for_those_who_are_faster(
    store, backend, other, monkeypatch, name
):
    """Somebody else changes the directory just before each change is sent."""
    other.apply(name, [Put("busy", 0)])
    tries = []
    send_all = backend.client.send_all

    def send(requests, only_if=None):
        if isinstance(requests[0], Multi):
            tries.append(other.apply(name, [Put("busy", len(tries))]))
        return send_all(requests, only_if)

    monkeypatch.setattr(backend.client, "send_all", send)
    assert store.apply(name, [Put("a", 1)], [Absent("a"), Absent("b"), Exists("busy")], soon())
    assert store.apply(name, [Delete("a")], [Exists("a")], soon())
    assert len(tries) == 2


def test_what_must_be_absent_is_absent_in_the_moment_of_the_change(
    store, backend, other, monkeypatch, name
):
    """Somebody else puts it just before."""
    other.apply(name, [Put("busy", 0)])
    send_all = backend.client.send_all

    def send(requests, only_if=None):
        if isinstance(requests[0], Multi):
            other.apply(name, [Put("first", 1)])
        return send_all(requests, only_if)

    monkeypatch.setattr(backend.client, "send_all", send)
    assert store.apply(name, [Put("a", 1)], [Absent("first")], soon()) is None
    assert set(other.read(name).records) == {"busy", "first"}


# Watches


@pytest.mark.parametrize("key", [None, "a", "missing"])
def test_an_abandoned_watch_leaves_nothing_in_the_server(store, backend, zookeeper, name, key):
    since = store.apply(name, [Put("a", 1)])
    for _ in range(3):
        pending = store.watch(name, since, key)
        eventually(lambda: watches(zookeeper, session_of(backend)))
        pending.abandon()
        eventually(lambda: not watches(zookeeper, session_of(backend)))
    assert not pending.answered


def test_a_watch_may_be_abandoned_where_nothing_may_be_waited_for(store, backend, zookeeper, name):
    """By the garbage collector, in a thread that is just sending something."""
    pending = store.watch(name, store.apply(name, [Put("a", 1)]))
    client = backend.client

    def abandon():
        with client.connection._mutex, client.watches._mutex:
            pending.abandon()

    thread = threading.Thread(target=abandon, daemon=True)
    thread.start()
    thread.join(PATIENCE)
    assert not thread.is_alive()
    eventually(lambda: not watches(zookeeper, session_of(backend)))


def test_a_watch_on_a_directory_that_is_not_there_waits_for_it(store, other, backend, name):
    pending = store.watch(name, store.read(name).revision)
    assert store.get(name, "a") is None  # its reply comes after those to the watch
    assert not pending.over
    other.apply(name, [Put("a", 1)])
    assert pending.wait(soon())


@pytest.mark.parametrize("key", [None, "a"])
def test_a_directory_that_was_swept_is_told(store, other, name, key):
    since = store.apply(name, [Put("a", 1)])
    other.apply(name, [Delete("a")])
    other.sweep()
    assert store.watch(name, since, key).wait(soon())


def test_the_end_of_the_client_answers_all(store, backend, name):
    since = store.apply(name, [Put("a", 1)])
    pending = [store.watch(name, since, key) for key in (None, "a", "missing")]
    backend.close()
    assert all(each.wait(soon()) for each in pending)
    assert store.get(name, "a").value == 1


def test_the_late_answer_to_an_earlier_renewal_does_not_shorten_a_session(store, name, monkeypatch):
    prove_alive = ZooKeeperClient.prove_alive

    def attempt(seconds):
        came, go_on = threading.Event(), threading.Event()
        directory = f"{name}:{seconds}"

        def prove_late(client, deadline):
            prove_alive(client, deadline)
            if threading.current_thread() is early:
                came.set()
                go_on.wait(PATIENCE)

        session = store.open_session(seconds)
        store.apply(directory, [Put("mine", 1, session.id)])
        early = threading.Thread(target=store.renew, args=([session.id],))
        with monkeypatch.context() as patch:
            patch.setattr(ZooKeeperClient, "prove_alive", prove_late)
            early.start()
            assert came.wait(PATIENCE)
            passed(seconds / 2)
            store.renew([session.id])
            go_on.set()
            early.join()
        passed(0.7 * seconds)
        assert "mine" in store.read(directory).records
        store.end_session(session.id)

    steadily(attempt, 2, 10)
