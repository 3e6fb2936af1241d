"""Records vanish with their session, and only then."""

import os
import signal
import threading
import time

import pytest

from distlock.backends.store import Absent, Delete, Put, SessionEnded, Unchanged
from distlock.concurrency.clock import clock
from tests.contract.actors import PATIENCE
from tests.contract.forks import forked
from tests.contract.watch import eventually, passed, steadily
from tests.servers.process import await_rest
from tests.stores.clients import (
    bind,
    keep_session,
    keep_session_until_stopped,
    put,
    store_of,
    values,
)

#: seconds after the end of a session in which the server may still notice it
LATE = {"etcd": 1.2}


def gone(store, directory, key):
    """Wait until a record has vanished; when it was seen to be missing."""
    eventually(lambda: store.get(directory, key) is None)
    return clock()


def test_a_session_is_relied_on_for_less_than_its_length(store):
    before = clock()
    session = store.open_session(60)
    assert session.deadline <= before + 60 or session.deadline <= clock() + session.seconds
    assert session.deadline < clock() + 60
    store.end_session(session.id)


def test_records_vanish_when_their_session_is_ended(store, directory):
    one, other = store.open_session(60), store.open_session(60)
    changes = [Put("one", 1, one.id), Put("too", 1, one.id), Put("other", 2, other.id)]
    store.apply(directory, [*changes, Put("free", 3)])
    put(f"{directory}:2", "one", 1, one.id)
    store.end_session(one.id)
    assert values(store.read(directory)) == {"other": 2, "free": 3}
    assert not store.read(f"{directory}:2").records
    assert store.apply(directory, [Put("one", 2)], [Absent("one")])
    store.end_session(one.id)
    store.end_session(other.id)
    assert values(store.read(directory)) == {"one": 2, "free": 3}


def test_a_record_says_what_it_is_bound_to(store, directory, session):
    store.apply(directory, [Put("bound", 1, session.id), Put("free", 1)])
    records = store.read(directory).records
    assert records["bound"].session == session.id
    remaining = records["bound"].remaining
    assert remaining is None or 0 < remaining <= session.seconds + 1
    assert (records["free"].session, records["free"].remaining) == (None, None)


def test_a_record_outlives_the_session_that_it_was_freed_from(store, directory):
    session = store.open_session(60)
    put(directory, "freed", 1, session.id)
    put(directory, "freed", 2)
    store.end_session(session.id)
    assert values(store.read(directory)) == {"freed": 2}


def test_a_record_vanishes_with_the_session_that_it_was_bound_to_last(store, directory, session):
    passing = store.open_session(60)
    store.apply(directory, [Put("a", 1), Put("b", 1, session.id), Put("c", 1, passing.id)])
    store.apply(directory, [Put("a", 2, passing.id), Put("b", 2, passing.id)])
    store.apply(directory, [Put("c", 2, session.id)])
    store.end_session(passing.id)
    assert values(store.read(directory)) == {"c": 2}


def test_nothing_is_bound_to_a_session_that_was_ended(store, directory):
    session = store.open_session(60)
    put(directory, "a", 1)
    before = store.read(directory).revision
    store.end_session(session.id)
    changes = [Delete("a"), Put("b", 1), Put("c", 1, session.id)]
    with pytest.raises(SessionEnded):
        store.apply(directory, changes)
    snapshot = store.read(directory)
    assert values(snapshot) == {"a": 1}
    assert store.apply(directory, [], [Unchanged(before)])
    assert store.apply(directory, [Put("b", 1)])


def test_renewing_tells_what_is_there(store, directory):
    ended, alive = store.open_session(60), store.open_session(60)
    put(directory, "ended", 1, ended.id)
    put(directory, "alive", 1, alive.id)
    put(f"{directory}:2", "free", 1)
    store.end_session(ended.id)
    names = [(directory, "ended"), (directory, "alive"), (f"{directory}:2", "free")]
    names += [(f"{directory}:2", "alive"), (f"{directory}:never", "free")]
    renewal = store.renew([ended.id, alive.id], names)
    assert (renewal.alive, renewal.ended) == ({alive.id}, {ended.id})
    assert renewal.present == {names[1], names[2]}
    assert renewal.missing == {names[0], names[3], names[4]}
    store.end_session(alive.id)


def test_renewing_nothing_is_no_matter(store):
    assert store.renew([]) == (set(), set(), set(), set())


def test_looking_at_records_needs_no_session(store, directory):
    put(directory, "a", 1)
    renewal = store.renew([], [(directory, "a"), (directory, "b")])
    assert (renewal.present, renewal.missing) == ({(directory, "a")}, {(directory, "b")})


def test_many_sessions_and_records_are_renewed_at_once(store, directory):
    sessions = [store.open_session(60) for _ in range(5)]
    for number, session in enumerate(sessions):
        for part in range(2):
            changes = [Put(f"{number}:{part}:{n}", n, session.id) for n in range(20)]
            store.apply(directory, changes)
    there = [(directory, key) for key in store.read(directory).records]
    renewal = store.renew([session.id for session in sessions], [*there, (directory, "none")])
    assert renewal.alive == {session.id for session in sessions}
    assert (renewal.present, renewal.missing) == (set(there), {(directory, "none")})
    for session in sessions[1:]:
        store.end_session(session.id)
    assert {key[0] for key in store.read(directory).records} == {"0"}
    store.end_session(sessions[0].id)


# Time


@pytest.mark.every_day_on("local", "postgresql")
def test_a_session_that_nobody_renews_ends(store, directory, seconds):
    """Not before its deadline by the local clock; it stays ended; and who watches is woken."""
    long = store.open_session(60)
    store.apply(directory, [Put("long", 1, long.id), Put("free", 1)])
    short, since = bind(directory, "short", seconds)
    watches = [store.watch(directory, since, key) for key in (None, "short")]
    assert gone(store, directory, "short") > short.deadline
    assert all(watch.wait(clock() + PATIENCE) for watch in watches)
    assert values(store.read(directory)) == {"long": 1, "free": 1}
    with pytest.raises(SessionEnded):
        store.apply(directory, [Put("late", 1, short.id)])
    records = [(directory, "short"), (directory, "long")]
    renewal = store.renew([short.id, long.id], records)
    assert (renewal.alive, renewal.ended) == ({long.id}, {short.id})
    assert (renewal.present, renewal.missing) == ({records[1]}, {records[0]})
    assert values(store.read(directory)) == {"long": 1, "free": 1}
    store.end_session(short.id)
    store.end_session(long.id)


@pytest.mark.lengthy
def test_a_session_goes_on_for_as_long_as_it_is_renewed(store, directory, seconds):
    address = (directory, "a")

    def keep(length):
        session, created = bind(*address, length)
        deadline = session.deadline
        for _ in range(12):
            passed(length / 3)
            sent_at = clock()
            renewal = store.renew([session.id], [address])
            if clock() > deadline:
                raise SessionEnded("the machine has stood still")
            assert (renewal.alive, renewal.present) == ({session.id}, {address})
            deadline = session.renewed(sent_at).deadline
        found = store.get(*address)
        if clock() > deadline:
            raise SessionEnded("the machine has stood still")
        assert found.created == created
        store.end_session(session.id)

    steadily(keep, seconds, 4 * seconds, 4 * seconds + 4)


@pytest.mark.shared
@pytest.mark.lengthy
@pytest.mark.brief
def test_the_records_of_a_process_that_was_killed_vanish(store, directory, child, seconds):
    holder = child(keep_session, directory, "a", seconds)
    assert holder.line()
    put(directory, "free", 1)
    watched = store.watch(directory, store.read(directory).revision, "a")
    holder.kill()
    gone(store, directory, "a")
    assert watched.wait(clock() + PATIENCE)
    assert values(store.read(directory)) == {"free": 1}


@pytest.mark.shared
@pytest.mark.brief
@pytest.mark.every_day_on("postgresql", "zookeeper")
def test_a_process_that_was_stopped_for_too_long_has_lost_its_records(
    store, directory, child, seconds
):
    """It is told so when it comes back, and neither its renewals nor its changes revive them."""
    holder = child(keep_session_until_stopped, directory, "a", seconds)
    assert holder.line()
    await_rest([holder.pid])
    # Nobody looks before: the condition alone finds that the record has gone.
    eventually(lambda: store.apply(directory, [Put("a", "another's")], [Absent("a")]))
    put(directory, "b", "another's")
    holder.signal(signal.SIGCONT)
    assert holder.line() == "ended"
    assert holder.line() == "refused"
    assert values(store.read(directory)) == {"a": "another's", "b": "another's"}


@pytest.mark.lengthy
@pytest.mark.parametrize("rounds", [1, pytest.param(4, marks=pytest.mark.slow)])
def test_a_renewal_never_revives_what_was_seen_missing(
    store, directory, actor, kind, seconds, rounds
):
    """Many short sessions, each renewed once, at about the moment in which it ends."""
    for number in range(rounds):
        _renew_around_the_end(store, f"{directory}:{number}", seconds, actor, LATE.get(kind, 0.3))


def _renew_around_the_end(store, directory, seconds, actor, late_by, clients=4, each=4):
    """Renew the sessions from 0.1 s before they end until ``late_by`` seconds after that."""
    promised, late = {}, []
    step = (late_by + 0.1) / (clients * each)
    for number in range(clients * each):
        session, _ = bind(directory, f"{number}", seconds)
        late.append((session.deadline - 0.1 + step * number, session, f"{number}"))
    ready = threading.Barrier(clients + 1, timeout=PATIENCE)

    def renew(part):
        ready.wait()
        for due, session, key in part:
            time.sleep(max(due - clock(), 0))
            sent_at = clock()
            renewal = store.renew([session.id], [(directory, key)])
            if session.id in renewal.alive and (directory, key) in renewal.present:
                promised[key] = session.renewed(sent_at).deadline
            if session.id in renewal.ended:
                gone(store, directory, key)  # in ZooKeeper the process has yet to remove it

    renewing = [actor("thread").call(renew, late[start::clients]) for start in range(clients)]
    ready.wait()
    missing = {}
    keys = {key for _, _, key in late}
    while len(missing) < len(keys):
        there = set(store.read(directory).records)
        now = clock()
        assert not there & set(missing), "a record came back"
        for key in keys - there - set(missing):
            missing[key] = now
    for one in renewing:
        one.result(PATIENCE)
    too_early = {key for key, until in promised.items() if missing[key] < until}
    assert not too_early, "a record was gone for which its holder had a promise"
    assert not store.read(directory).records


# Fork


def use_after_fork(directory):
    """As a process: fork; the child works on its own, and the parent goes on."""
    store = store_of()
    session = store.open_session(60)
    put(directory, "parent", os.getpid(), session.id)
    put(directory, "parent", 0, session.id)
    assert store.watch(directory, 0).wait(clock() + PATIENCE)
    watched = store.watch(directory, store.read(directory).revision)
    passed(0.2)  # so that who watches for all is just waiting for the server

    def child():
        store = store_of()
        mine = store.open_session(60)
        put(directory, "child", os.getpid(), mine.id)
        renewed = store.renew([mine.id], [(directory, "child")])
        seen = set(store.read(directory).records)
        awaited = store.watch(directory, 0).wait(clock() + PATIENCE)
        store.end_session(mine.id)
        return seen, awaited, mine.id in renewed.alive

    seen = forked(child)
    answered = watched.wait(clock() + PATIENCE)
    renewal = store.renew([session.id], [(directory, "parent")])
    after = set(store.read(directory).records)
    put(directory, "again", 1)
    store.end_session(session.id)
    return seen, answered, renewal.present, after, set(store.read(directory).records)


@pytest.mark.shared
def test_after_a_fork_both_processes_go_on(directory, actor):
    seen, answered, present, after, last = (
        actor("process").call(use_after_fork, directory).result(2 * PATIENCE)
    )
    assert seen == ({"parent", "child"}, True, True)
    assert answered
    assert present == {(directory, "parent")}
    assert after == {"parent"}
    assert last == {"again"}


def look_after_fork(directory):
    store = store_of()
    session = store.open_session(60)
    put(directory, "parent", 1, session.id)

    def child():
        store = store_of()
        renewal = store.renew([session.id], [(directory, "parent")])
        return set(store.read(directory).records), renewal.ended, renewal.missing

    return forked(child), session.id


def test_a_child_has_nothing_of_a_store_in_memory(directory, kind, actor):
    if kind != "local":
        return
    seen, session = actor("new process").call(look_after_fork, directory).result(PATIENCE)
    assert seen == (set(), {session}, {(directory, "parent")})
