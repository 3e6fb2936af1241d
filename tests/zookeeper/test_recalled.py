"""What a process has seen last, and takes seats by without asking."""

from collections import namedtuple
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from threading import BrokenBarrierError

import pytest

from distlock import ValueNotAgreed, locks
from distlock.backends.store import Delete, Put
from distlock.backends.zookeeper.records import (
    DirectoryNode,
    DirectoryView,
    RecordNode,
    SeenLast,
)
from distlock.backends.zookeeper.requests import Multi
from distlock.concurrency.clock import clock
from distlock.recipes import Barrier, Semaphore
from distlock.records.shared_backend import SharedBackend
from tests.contract.actors import PATIENCE
from tests.contract.watch import eventually

Stat = namedtuple("Stat", "version mzxid pzxid")


@pytest.fixture
def using(configure):
    """In sessions that need no proof between two requests, and no ping."""
    return configure(session_timeout=60)


def test_the_own_change_is_recalled_until_others_have_made_one(store, other, name):
    assert store.recall(name) is None
    store.apply(name, [Put("a", 1)])
    store.apply(name, [Put("b", [2])])
    assert store.recall(name) == store.read(name)
    other.apply(name, [Put("c", 1)])
    store.apply(name, [Put("d", 1)])  # whose answer does not say what they have put
    assert store.recall(name) is None
    store.apply(name, [Delete("d")])
    assert store.recall(name) is None
    found = store.read(name)
    assert store.recall(name) == found


def test_what_has_vanished_before_the_own_change_is_not_recalled(store, other, name):
    """Whoever waits for a change of it from then on would wait for nothing."""
    other.apply(name, [Put("theirs", 1, other.open_session(60).id)])
    assert "theirs" in store.read(name).records
    locks["other"].close()
    eventually(lambda: store.get(name, "theirs") is None)
    store.apply(name, [Put("own", 1)])
    assert store.recall(name) is None
    found = store.read(name)
    assert [*found.records] == ["own"]
    assert store.recall(name) == found


def test_large_records_and_many_are_not_recalled(store, name):
    store.apply(name, [Put("a", "x" * 1000)])
    assert store.recall(name) is None
    store.apply(name, [Put("a", 1), *(Put(f"{number}", 1) for number in range(30))])
    assert store.recall(name) is None


def test_a_seat_that_nobody_has_changed_takes_one_request(using, sent, name):
    semaphore = Semaphore(name, 2, using=using)
    with semaphore:
        pass
    sent.clear()
    with semaphore:
        assert [len(requests) for requests in sent] == [1]
    assert [type(requests[0]) for requests in sent] == [Multi, Multi]


def test_a_seat_that_others_have_changed_is_looked_at_again(using, name):
    with Semaphore(name, 2, using=using):
        pass
    with Semaphore(name, 2, using="other"), Semaphore(name, 2, using="other"):
        assert not Semaphore(name, 2, using=using).acquire(blocking=False)
    assert Semaphore(name, 2, using="other").resize(1) == 2
    with pytest.raises(ValueNotAgreed), Semaphore(name, 1, using="other"):
        Semaphore(name, 2, using=using).acquire()


def test_who_comes_to_a_barrier_again_relies_on_what_was_agreed_on(using, sent, name):
    assert Barrier(name, 1, using=using).wait() == 0
    sent.clear()
    assert Barrier(name, 1, using=using).wait() == 0
    assert [type(request) for request in sent[0]] == [Multi]


def test_who_comes_to_a_barrier_that_others_have_begun_anew_looks_again(using, name):
    assert Barrier(name, 1, using=using).wait() == 0
    Barrier(name, using="other").reset()
    assert Barrier(name, 1, using=using).wait() == 0
    abandoned = Barrier(name, 2, using="other")
    abandoned.abort()
    with pytest.raises(BrokenBarrierError):
        Barrier(name, 1, using=using).wait()
    abandoned.reset()
    assert Barrier(name, 1, using=using).wait() == 0


def test_many_who_come_to_a_barrier_at_once_do_not_refuse_each_other(using, sent, name):
    """Each record of a party is sent once, however many come at the same time."""
    parties = 8
    with ThreadPoolExecutor(parties) as pool:
        for _ in range(2):
            sent.clear()
            one = partial(Barrier(name, parties, using=using).wait, PATIENCE)
            there = [pool.submit(one) for _ in range(parties)]
            assert sorted(each.result(PATIENCE) for each in there) == [*range(parties)]
    came = [
        request
        for requests in sent
        for request in requests
        if isinstance(request, Multi) and b'"seats"' in request.serialize()
    ]
    assert len(came) == parties


def test_who_lines_up_behind_one_who_has_just_gone_is_woken(using, other, monkeypatch, name):
    """Its session ends after the look, and before the change with which the next one lines up."""
    Semaphore(name, 1, using="other").acquire()
    directory, store = f"semaphore:{name}", locks[using].store
    held = [key for key in other.read(directory).records if key.startswith("h/")]
    monkeypatch.setattr(SharedBackend, "pause_behind", lambda *processes: 10 * PATIENCE)
    apply = store.apply

    def apply_late(where, changes, *more):
        if any(change.key.startswith("w/") for change in changes if isinstance(change, Put)):
            locks["other"].close()
            eventually(lambda: store.missing(directory, held))
        return apply(where, changes, *more)

    monkeypatch.setattr(store, "apply", apply_late)
    waiting, began = Semaphore(name, 1, using=using), clock()
    assert waiting.acquire(timeout=PATIENCE)
    assert clock() - began < PATIENCE / 2
    waiting.release()


def test_an_answer_that_comes_late_makes_no_earlier_state_look_like_the_present_one():
    """Of two threads one hears last of the earlier change, and others have changed that record."""
    seen, path = SeenLast(), "/directory"

    def view(version, revision, **said):
        node = DirectoryNode(path, "made", "change", Stat(version, revision, revision))
        record = RecordNode(f"{path}/a", 1, None, 1, 1, revision, 0, 0, 1)
        return DirectoryView(node, {"a": record}, **said)

    latest = view(3, 30, keys=["a"])
    seen.keep(latest)
    seen.keep(view(2, 20), ["a"])
    assert seen[path] is latest
    seen.keep(view(5, 50), ["a"])
    assert (seen[path].records["a"].revision, seen[path].directory.stat.version) == (50, 3)
    assert not seen[path].exact
    seen.keep(DirectoryView(DirectoryNode(path), {}))
    assert not seen
