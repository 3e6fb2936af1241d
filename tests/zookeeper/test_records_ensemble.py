"""Records on three servers, of which some go away: each change is made once, in one order."""

import itertools
import threading

import pytest

from distlock import LockUnavailable, locks
from distlock.backends.store import Absent, Delete, Put
from distlock.concurrency.clock import clock
from tests.contract.actors import PATIENCE
from tests.contract.watch import eventually, passed
from tests.zookeeper.network import server_of

pytestmark = [
    pytest.mark.slow,
    pytest.mark.parametrize("servers", [pytest.param(3, id="three")], indirect=True),
]

CLIENTS = ("default", "other", "third")


def write(using, directory, over):
    """Put records of its own until ``over``; their revisions by key, None where nobody can tell."""
    store, revisions = locks[using].store, {}
    for number in itertools.count():
        if over.is_set():
            return revisions
        key = f"{using}:{number}"
        while True:
            try:
                revision = store.apply(
                    directory, [Put(key, number)], [Absent(key)], clock() + PATIENCE
                )
            except LockUnavailable as error:
                if not error.maybe_applied:
                    continue
                revision = None
            revisions[key] = revision
            break


@pytest.mark.parametrize("gone", ["leader", "follower", "each in turn"])
def test_no_change_is_lost_or_made_twice(configure, servers, ensemble, actor, name, gone):
    configure(session_timeout=8, timeout=PATIENCE)
    over = threading.Event()
    writing = [actor("thread", using).call(write, using, name, over) for using in CLIENTS]
    leader = ensemble.leader
    followers = [server for server in servers if server is not leader]
    chosen = {"leader": [leader], "follower": followers[:1], "each in turn": servers}[gone]
    for server in chosen:
        passed(0.3)
        server.kill()
        passed(0.5)
        server.start()
        before = locks["third"].store.read(name, clock() + PATIENCE).revision
        eventually(
            lambda seen=before: locks["third"].store.read(name, clock() + PATIENCE).revision > seen,
            limit=2 * PATIENCE,
        )
    over.set()
    made = {}
    for one in writing:
        revisions = one.result(2 * PATIENCE)
        known = [revision for revision in revisions.values() if revision]
        assert known == sorted(set(known))
        made |= revisions
    records = locks["default"].store.read(name).records
    for key, revision in made.items():
        if revision is not None:
            assert records[key].created == records[key].revision == revision
    assert set(records) <= set(made)
    # Each client has one change under way, and may lose more than one connection.
    assert sum(revision is None for revision in made.values()) <= 6 * len(chosen)


def test_a_session_outlives_the_server_that_its_client_was_connected_to(configure, servers, name):
    configure(session_timeout=20, timeout=PATIENCE)
    store = locks["default"].store
    session = store.open_session(600)
    store.apply(name, [Put("a", 1, session.id)])
    pending = locks["other"].store.watch(name, locks["other"].store.read(name).revision, "b")
    _, port = server_of("default")
    next(server for server in servers if server.port == port).kill()
    renewal = eventually(lambda: renewed(store, session, name), limit=2 * PATIENCE)
    assert renewal.alive == {session.id}
    assert renewal.present == {(name, "a")}
    store.apply(name, [Put("b", 1, session.id)], (), clock() + PATIENCE)
    assert pending.wait(clock() + PATIENCE)


def renewed(store, session, name):
    try:
        return store.renew([session.id], [(name, "a")], clock() + PATIENCE)
    except LockUnavailable:
        return None


def test_who_reads_sees_what_others_have_put_on_another_server(configure, servers, ensemble, name):
    """The reader's server is a follower. The leader shows what it has committed a moment later."""
    leader = ensemble.leader
    follower, *others = sorted(servers, key=lambda server: server is leader)
    configure({"default": follower.url, "other": others[0].url, "third": others[1].url})
    reader = locks["default"].store
    for number, using in zip(range(100), itertools.cycle(("other", "third")), strict=False):
        writer = locks[using].store
        revision = writer.apply(name, [Put("a", number)])
        snapshot = reader.read(name)
        assert (snapshot.revision, snapshot.records["a"].value) == (revision, number)
        assert writer.apply(name, [Put("b", number)], [Absent("b")])
        assert reader.apply(name, [Put("b", number)], [Absent("b")]) is None
        writer.apply(name, [Delete("b")])
        assert reader.apply(name, [Put("b", number)], [Absent("b")])
        writer.apply(name, [Delete("b")])
        assert reader.get(name, "b") is None
