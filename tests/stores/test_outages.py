"""The server restarts, cannot be reached, or does not answer: told in time, and nothing is lost."""

import pytest

from distlock import LockUnavailable, locks
from distlock.backends.store import Absent, Exists, Put
from distlock.concurrency.clock import clock
from tests.contract.actors import PATIENCE
from tests.contract.watch import eventually, passed
from tests.stores.clients import put, values

pytestmark = pytest.mark.served

#: seconds that one call may take; of one that has to fail, less
LIMIT, BRIEF = 5.0, 0.5
#: what the request of a change has in it that no other request has; else the value itself
APPLIES = {"etcd": b"/v3/kv/txn"}
MARK = "markmarkmarkmarkmark"


def soon():
    return clock() + LIMIT


def very_soon():
    return clock() + BRIEF


@pytest.fixture
def using(kind, backend_settings, settings):
    """The alias of the backend under test; no later test uses what this one has broken."""
    settings.DISTLOCK = backend_settings(kind)
    yield "default"
    locks.close_all()


@pytest.fixture
def proxy(kind, using, proxied, settings):
    """The network between the clients and the server."""
    proxy = proxied(kind)
    if kind == "zookeeper":
        (entry,) = settings.DISTLOCK.values()
        settings.DISTLOCK = {using: {**entry, "LOCATION": f"{proxy.host}:{proxy.port}"}}
    yield proxy
    proxy.heal()


@pytest.fixture
def distant(proxy):
    """The store, through that network."""
    return locks["default"].store


def answer(call):
    """Return the first answer after an outage."""

    def try_again():
        try:
            return call() or True
        except LockUnavailable:
            return False

    return eventually(try_again)


@pytest.mark.lengthy
def test_records_survive_a_crash_of_the_server(store, directory, server, kind):
    last = [put(directory, key, key) for key in "abc"][-1]
    pending = store.watch(directory, last)
    server(kind).kill()
    server(kind).start()
    snapshot = answer(lambda: store.read(directory, soon()))
    assert values(snapshot) == {"a": "a", "b": "b", "c": "c"}
    assert snapshot.revision >= last
    assert answer(lambda: store.apply(directory, [Put("d", 1)], (), soon())) > last
    assert pending.wait(clock() + PATIENCE)


@pytest.mark.lengthy
def test_a_server_that_is_down_is_told(store, directory, server, kind):
    session = store.open_session(60)
    put(directory, "a", 1)
    server(kind).stop()
    for call in everything(store, directory, session):
        with pytest.raises(LockUnavailable):
            call()
    server(kind).start()
    assert values(answer(lambda: store.read(directory, soon()))) == {"a": 1}


def everything(store, directory, session):
    """All that asks the server; the watch asks nobody and is not among them."""
    return [
        lambda: store.read(directory, very_soon()),
        lambda: store.get(directory, "a", very_soon()),
        lambda: store.apply(directory, [Put("b", 1)], [Exists("b")], very_soon()),
        lambda: list(store.directories(directory, very_soon())),
        lambda: store.open_session(60, very_soon()),
        lambda: store.renew([session.id], [(directory, "a")], very_soon()),
        lambda: store.end_session(session.id, very_soon()),
        lambda: store.sweep(very_soon()),
    ]


@pytest.mark.lengthy
def test_a_network_that_swallows_everything_is_told_in_time(distant, directory, proxy, actor):
    session = distant.open_session(60)
    put(directory, "a", 1)
    for number in range(len(everything(distant, directory, session))):
        call = everything(distant, directory, session)[number]
        proxy.silence()
        with pytest.raises(LockUnavailable):
            actor("thread").call(call).result(PATIENCE)
        proxy.heal()
        assert answer(lambda: distant.read(directory, soon())).records["a"].value == 1


def test_a_network_that_refuses_is_told(distant, directory, proxy):
    put(directory, "a", 1)
    proxy.refuse()
    with pytest.raises(LockUnavailable):
        distant.apply(directory, [Put("a", 2)], (), very_soon())
    with pytest.raises(LockUnavailable):
        distant.read(directory, very_soon())
    with pytest.raises(LockUnavailable) as told:
        distant.apply(directory, [Put("a", 3)], (), very_soon())
    assert not told.value.maybe_applied  # there is no connection any more that it could use
    proxy.heal()
    assert answer(lambda: distant.read(directory, soon())).records["a"].value == 1


@pytest.mark.parametrize("conditional", [True, False])
def test_a_change_whose_answer_is_lost_is_made_once(distant, directory, proxy, kind, conditional):
    """And never told to have been refused."""
    put(directory, "a", 0)
    lost = proxy.lose_reply(to=APPLIES.get(kind, MARK.encode()))
    conditions = [Absent("new")] if conditional else []
    revision = None
    try:
        revision = distant.apply(directory, [Put("new", MARK)], conditions, soon())
        assert revision is not None
    except LockUnavailable as error:
        assert error.maybe_applied
    eventually(lost.is_set)

    def record_there():
        record = answer(lambda: distant.get(directory, "new", soon()))
        return record is not True and record

    # The server may begin its reply before it commits.
    record = record_there() if revision else eventually(record_there)
    assert record, revision
    assert record.value == MARK
    assert record.created == record.revision
    assert revision in (None, record.revision)


def test_a_change_that_comes_late_finds_its_condition_false(
    distant, directory, proxy, kind, others
):
    """It was given up before the server got it; meanwhile somebody else has put the record."""
    (other,) = others(1)
    other.call(put, directory, "a", 0).result(PATIENCE)
    distant.read(directory)
    late = proxy.delay(APPLIES.get(kind, MARK.encode()))

    def is_late():  # if it has not been sent in time, it is tried again
        with pytest.raises(LockUnavailable) as told:
            distant.apply(directory, [Put("new", MARK)], [Absent("new")], very_soon())
        return told.value.maybe_applied

    eventually(is_late)
    assert late.kept_back.wait(PATIENCE)
    other.call(put, directory, "new", "other").result(PATIENCE)
    late.end()
    passed(0.5)  # it arrives
    assert answer(lambda: distant.get(directory, "new", soon())).value == "other"


def test_a_watch_goes_on_after_the_connection_was_cut(distant, directory, proxy, others):
    (other,) = others(1)
    put(directory, "a", 0)
    for number in range(3):
        pending = distant.watch(directory, answer(lambda: distant.read(directory, soon())).revision)
        proxy.cut()
        answer(lambda at=number: other.call(put, directory, "a", at).result(PATIENCE))
        assert pending.wait(clock() + PATIENCE)


def test_a_change_during_an_outage_wakes_who_watches_after_it(
    distant, directory, proxy, kind, server, backend_settings, child
):
    put(directory, "a", 0)
    pending = distant.watch(directory, distant.read(directory).revision)
    eventually(lambda: proxy.connections)
    proxy.refuse()
    proxy.heal()
    answer(lambda: distant.apply(directory, [Put("a", 1)], (), soon()))
    assert pending.wait(clock() + PATIENCE)


def test_a_session_outlives_an_outage_that_is_shorter(distant, directory, proxy):
    session = distant.open_session(60)
    put(directory, "a", 1, session.id)
    proxy.cut()
    renewal = answer(lambda: distant.renew([session.id], [(directory, "a")], soon()))
    assert (renewal.alive, renewal.present) == ({session.id}, {(directory, "a")})
