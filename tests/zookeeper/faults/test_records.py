"""Records when the session ends, the connection breaks, or requests come late."""

import pytest

from distlock import LockUnavailable, locks
from distlock.backends.store import Absent, Delete, Exists, Put, SessionEnded, Unchanged
from distlock.backends.zookeeper.requests import Multi
from distlock.concurrency.clock import clock
from tests.contract.actors import PATIENCE
from tests.contract.watch import eventually, passed
from tests.zookeeper.faults.outages import everywhere
from tests.zookeeper.tree import expire

MARK = "markmarkmarkmarkmark"


@pytest.fixture
def using(configure, network):
    """In a session that outlasts what a test keeps back; it ends when the test ends it."""
    return configure({"default": network.location}, session_timeout=60)


@pytest.fixture
def store(using):
    """The store whose network breaks."""
    return locks[using].store


@pytest.fixture
def other(using):
    """The store of a client whose network does not."""
    return locks["other"].store


@pytest.fixture
def session(store):
    return store.open_session(60)


def shortly():
    return clock() + 0.3


def soon():
    return clock() + PATIENCE


@pytest.fixture
def before_a_change(using, monkeypatch):
    """``before_a_change(act)``: do something just before the next change would be sent."""

    def prepare(act):
        client, waiting = locks[using].client, [act]
        send_all = client.send_all

        def send(requests, only_if=None):
            if waiting and isinstance(requests[0], Multi):
                waiting.pop()()
            return send_all(requests, only_if)

        monkeypatch.setattr(client, "send_all", send)

    return prepare


def end(servers, using):
    """Let the servers end the session of a client; wait until it has the next one."""
    client = locks[using].client
    ended = client.session
    expire(servers[0], client.kazoo.client_id)
    eventually(lambda: client.session is not ended and client.connected)


# The end of the session


def test_with_the_session_of_the_process_all_of_its_sessions_end(
    store, other, session, servers, using, name
):
    second = store.open_session(60)
    store.apply(name, [Put("a", 1, session.id), Put("b", 1, second.id), Put("free", 1)])
    pending = other.watch(name, other.read(name).revision)
    end(servers, using)
    assert pending.wait(soon())
    eventually(lambda: set(other.read(name).records) == {"free"})
    addresses = [(name, key) for key in ("a", "b", "free")]
    renewal = store.renew([session.id, second.id], addresses)
    assert (renewal.alive, renewal.ended) == (set(), {session.id, second.id})
    assert (renewal.present, renewal.missing) == ({addresses[2]}, set(addresses[:2]))
    with pytest.raises(SessionEnded):
        store.apply(name, [Put("a", 2, session.id)])
    third = store.open_session(60)
    assert store.apply(name, [Put("a", 3, third.id)])
    assert third.id in store.renew([third.id]).alive
    store.end_session(session.id)
    assert set(other.read(name).records) == {"a", "free"}


@pytest.mark.parametrize("key", [None, "a"])
def test_a_record_that_vanished_between_a_look_and_its_watch_is_told(
    store, other, servers, name, key
):
    other.apply(name, [Put("a", 1, other.open_session(60).id), Put("b", 1)])
    since = store.read(name).revision
    end(servers, "other")
    eventually(lambda: store.get(name, "a") is None)
    assert store.watch(name, since, key).wait(soon())
    pending = store.watch(name, store.read(name).revision, "b")
    assert store.get(name, "b")  # its reply comes after those to the watch
    assert not pending.over


def test_nothing_is_bound_to_the_session_that_follows(
    store, other, session, servers, using, before_a_change, name
):
    """The session ends after the last look at it."""
    other.apply(name, [Put("free", 1)])
    before_a_change(lambda: end(servers, using))
    with pytest.raises(SessionEnded):
        store.apply(name, [Put("a", 1, session.id)])
    assert set(other.read(name).records) == {"free"}


def test_a_record_that_a_session_takes_along_does_not_count_as_there(
    store, other, using, before_a_change, name
):
    """It is gone before the change that relies on it is made."""
    for gone, change in (("condition", Put("b", 1)), ("changed", Put("changed", 2))):
        theirs = other.open_session(60)
        other.apply(name, [Put(gone, 1, theirs.id)])
        before_a_change(lambda ended=theirs: other.end_session(ended.id))
        assert store.apply(name, [change], [Exists(gone)]) is None
    assert not store.read(name).records


@pytest.mark.slow
def test_a_session_that_is_not_renewed_ends_though_the_process_lives(store, name):
    """And one that is renewed does not."""
    one, other = store.open_session(4), store.open_session(4)
    store.apply(name, [Put("one", 1, one.id), Put("other", 1, other.id)])

    def only_one():
        assert one.id in store.renew([one.id]).alive
        return set(store.read(name).records) == {"one"}

    eventually(only_one)
    assert clock() > other.deadline
    assert other.id in store.renew([other.id]).ended
    with pytest.raises(SessionEnded):
        store.apply(name, [Put("other", 2, other.id)])
    passed(4)
    eventually(lambda: not store.read(name).records)


# Ending one of several sessions


def test_a_put_that_is_overtaken_by_the_end_of_its_session_is_refused(
    store, session, before_a_change, name
):
    store.apply(name, [Put("free", 1)])
    before_a_change(lambda: store.end_session(session.id))
    with pytest.raises(SessionEnded):
        store.apply(name, [Put("a", 1, session.id)])
    assert set(store.read(name).records) == {"free"}


def test_a_put_that_is_on_its_way_is_undone_by_the_end_of_its_session(
    store, session, network, actor, name
):
    store.apply(name, [Put("free", 1)])
    delay = network.delay(MARK.encode())
    putting = actor("thread").call(store.apply, name, [Put("a", MARK, session.id)])
    assert delay.kept_back.wait(PATIENCE)
    ending = actor("thread").call(store.end_session, session.id)
    delay.end()
    assert putting.result(PATIENCE)
    ending.result(PATIENCE)
    assert set(store.read(name).records) == {"free"}


def test_what_was_put_without_an_answer_goes_with_its_session(
    store, other, session, network, before_a_change, name
):
    """Nobody has to try again: it is not left to the end of the process."""
    store.apply(name, [Put("free", 1)])
    before_a_change(network.drop_replies)

    def is_sent():
        with pytest.raises(LockUnavailable) as caught:
            store.apply(name, [Put("a", 1, session.id)], (), shortly())
        return caught.value.maybe_applied

    eventually(is_sent)  # where this stood still, the time was over before
    eventually(lambda: "a" in other.read(name).records)
    with pytest.raises(LockUnavailable):
        store.end_session(session.id, shortly())
    network.heal()
    eventually(lambda: set(other.read(name).records) == {"free"})
    assert session.id in store.renew([session.id]).ended


def test_a_session_that_ends_takes_nothing_along_that_others_have_put(
    store, other, session, before_a_change, name
):
    """Not even what was put while it ended."""
    theirs = other.open_session(60)
    store.apply(name, [Put("early", 1, session.id), Put("late", 1, session.id)])

    def replace(key):
        other.apply(name, [Delete(key)])
        other.apply(name, [Put(key, "theirs", theirs.id)])

    replace("early")
    before_a_change(lambda: replace("late"))
    store.end_session(session.id)
    records = other.read(name).records
    assert {key: record.value for key, record in records.items()} == {
        "early": "theirs",
        "late": "theirs",
    }


# Changes that come late


def while_kept_back(network, actor, change, meanwhile):
    """Return what comes of a change that the server gets only after something else."""
    delay = network.delay(MARK.encode())
    changing = actor("thread").call(change)
    assert delay.kept_back.wait(PATIENCE)
    meanwhile()
    delay.end()
    return changing.result(PATIENCE)


def test_a_directory_that_was_swept_and_made_again_is_another(store, other, network, actor, name):
    """Its version is the same."""
    for number in range(2):
        store.apply(name, [Put("a", number)])
    since = store.read(name).revision

    def sweep_and_make_again():
        other.apply(name, [Delete("a")])
        assert other.sweep().removed == 1
        for number in range(2):
            other.apply(name, [Put("a", number)])

    def change():
        return store.apply(name, [Put("b", MARK)], [Unchanged(since)])

    assert while_kept_back(network, actor, change, sweep_and_make_again) is None
    assert set(other.read(name).records) == {"a"}


def test_a_record_that_was_put_again_meanwhile_is_another(store, other, network, actor, name):
    """Its version is the same."""
    seen = store.apply(name, [Put("seat", 1)])

    def take_over():
        other.apply(name, [Delete("seat")])
        other.apply(name, [Put("seat", 1)])

    def change():
        return store.apply(name, [Delete("seat"), Put("b", MARK)], [Exists("seat", seen)])

    assert while_kept_back(network, actor, change, take_over) is None
    assert set(other.read(name).records) == {"seat"}


@pytest.mark.parametrize("made", [False, True], ids=["new", "there"])
def test_of_two_who_create_a_record_one_is_refused(store, other, network, actor, name, made):
    if made:
        store.apply(name, [Put("free", 1)])

    def change():
        return store.apply(name, [Put("a", MARK)], [Absent("a")])

    assert while_kept_back(network, actor, change, lambda: other.apply(name, [Put("a", 1)])) is None
    assert other.get(name, "a").value == 1


# Lost answers


@everywhere
@pytest.mark.parametrize("made", [False, True], ids=["new", "there"])
def test_a_change_that_was_never_answered_is_found_again(store, other, network, name, made):
    if made:
        store.apply(name, [Put("free", 1)])
    store.read(name)
    lost = network.lose_reply(to=MARK.encode())
    revision = store.apply(name, [Put("a", MARK)], [Absent("a")], soon())
    assert lost.is_set()
    record = other.get(name, "a")
    assert (record.created, record.revision) == (revision, revision)


@pytest.mark.parametrize("made", [False, True], ids=["new", "there"])
def test_a_request_that_was_lost_is_made_again(store, other, network, actor, name, made):
    if made:
        store.apply(name, [Put("free", 1)])
    since = store.read(name).revision
    other.apply(f"{name}:2", [Put("free", 1)])
    delay = network.delay(MARK.encode())
    changing = actor("thread").call(store.apply, name, [Put("a", MARK)], [Unchanged(since)], soon())
    assert delay.kept_back.wait(PATIENCE)
    network.cut()
    delay.end()
    assert changing.result(PATIENCE) == other.get(name, "a").revision


def test_a_lost_answer_is_told_where_a_later_change_hides_what_came_of_it(
    store, other, network, actor, before_a_change, name
):
    store.apply(name, [Put("free", 1)])
    before_a_change(network.drop_replies)
    changing = actor("thread").call(store.apply, name, [Put("a", 1)], [Absent("a")], soon())
    eventually(lambda: "a" in other.read(name).records)
    other.apply(name, [Put("b", 1)])
    network.cut()  # the answer may be under way still
    network.heal()
    with pytest.raises(LockUnavailable) as caught:
        changing.result(PATIENCE)
    assert caught.value.maybe_applied


@pytest.mark.parametrize("key", [None, "a"])
def test_without_a_connection_a_watch_is_answered_at_once(store, network, using, name, key):
    store.read(name)
    network.refuse()
    eventually(lambda: not locks[using].client.connected)
    assert store.watch(name, 0, key).wait(soon())
