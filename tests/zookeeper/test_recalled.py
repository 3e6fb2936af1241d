"""What a process has seen last, and takes seats by without asking."""

import threading
from collections import namedtuple
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from threading import BrokenBarrierError

import pytest
from kazoo.protocol.serialization import GetChildren2, GetData

from distlock import LockBusy, LockUnavailable, ValueNotAgreed, locks
from distlock.backends.store import Absent, Delete, Exists, Put, Unchanged
from distlock.backends.zookeeper.records import (
    DirectoryNode,
    DirectoryView,
    RecordNode,
    SeenLast,
)
from distlock.backends.zookeeper.requests import Multi
from distlock.concurrency.clock import clock
from distlock.recipes import Barrier, Election, Queue, Semaphore
from distlock.records import seats
from distlock.records.shared_backend import SharedBackend, shared_locks
from distlock.runtime.manager import manager
from tests.contract.actors import PATIENCE
from tests.contract.watch import eventually, passed
from tests.recipes.wrapping import in_thread

NodeStat = namedtuple("NodeStat", "version mzxid pzxid")


@pytest.fixture
def using(configure):
    """In sessions that need no proof between two requests, and no ping."""
    return configure(session_timeout=60)


def test_the_own_change_is_recalled_until_others_have_made_one(store, other, name):
    assert store.recall(name) is None
    store.apply(name, [Put("a", 1)])
    store.apply(name, [Put("b", [2])])
    assert store.recall(name).records == store.read(name).records
    other.apply(name, [Put("c", 1)])
    store.apply(name, [Put("d", 1)])  # whose answer does not say what they have put
    assert store.recall(name) is None
    store.apply(name, [Delete("d")])
    assert store.recall(name) is None
    found = store.read(name)
    assert store.recall(name).records == found.records


def test_what_has_vanished_before_the_own_change_is_not_recalled(store, other, name):
    """Whoever waits for a change of it from then on would wait for nothing."""
    other.apply(name, [Put("theirs", 1, other.open_session(60).id)])
    assert "theirs" in store.read(name).records
    locks["other"].close()
    eventually(lambda: store.get(name, "theirs") is None)
    store.apply(name, [Put("own", 1)])
    assert store.recall(name) is None
    store.read(name)
    assert [*store.recall(name).records] == ["own"]


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


def test_who_lines_up_behind_a_waiter_that_has_just_gone_is_woken(using, other, monkeypatch, name):
    """It waits for the place that it has seen, and looks no more before it waits."""
    held = Semaphore(name, 1, using=using)
    held.acquire()
    directory, store = f"semaphore:{name}", locks[using].store
    before = in_thread(Semaphore(name, 1, using="other").acquire, timeout=1.0)
    waits = eventually(lambda: line_in(other, directory))
    monkeypatch.setattr(SharedBackend, "pause_behind", lambda *processes: 10 * PATIENCE)
    apply = store.apply

    def apply_late(where, changes, *more):
        if any(change.key.startswith("w/") for change in changes if isinstance(change, Put)):
            assert before() is False
            eventually(lambda: store.missing(directory, waits))
        return apply(where, changes, *more)

    monkeypatch.setattr(store, "apply", apply_late)
    waiting, began = in_thread(visit, Semaphore(name, 1, using=using)), clock()
    eventually(lambda: line_in(store, directory).keys() - waits.keys())
    held.release()
    assert waiting() is True
    assert clock() - began < PATIENCE / 2


def test_who_comes_back_to_its_place_waits_for_nobody_behind_it(using, other, monkeypatch, name):
    """Its session has ended; the one behind it waits for it again."""
    held = Semaphore(name, 1, using=using)
    held.acquire()
    directory, store, served = f"semaphore:{name}", locks[using].store, []
    monkeypatch.setattr(SharedBackend, "pause_behind", lambda *processes: 10 * PATIENCE)
    first = in_thread(visit, Semaphore(name, 1, using="other"), lambda: served.append("first"))
    eventually(lambda: line_in(other, directory))
    second = in_thread(visit, Semaphore(name, 1, using=using), lambda: served.append("second"))
    both = eventually(lambda: len(line := line_in(store, directory)) == 2 and line)
    began = clock()
    locks["other"].close()
    eventually(lambda: (now := line_in(store, directory)) != both and now.keys() == both.keys())
    held.release()
    assert first() is True
    assert second() is True
    assert (served, clock() - began < PATIENCE / 2) == (["first", "second"], True)


def line_in(store, directory):
    """Return the keys of those who wait, and when their records were made."""
    found = store.read(directory).records
    return {key: one.created for key, one in found.items() if key.startswith("w/")}


def test_a_seat_that_was_taken_away_since_the_look_is_not_granted(using, other, monkeypatch, name):
    """Of all that others may change in between, it depends on the record of the limit alone."""
    held = [Semaphore(name, 2, using="other") for _ in range(2)]
    for one in held:
        one.acquire()
    directory, store, answers = f"semaphore:{name}", locks[using].store, []
    apply = store.apply

    def apply_late(where, changes, *more):
        if not any(change.key.startswith("h/") for change in changes if isinstance(change, Put)):
            return apply(where, changes, *more)
        if not answers:
            assert in_thread(shared_locks(locks["other"]).resize, directory, 1)() == 2
        answers.append(apply(where, changes, *more))
        return answers[-1]

    monkeypatch.setattr(store, "apply", apply_late)
    waiting = in_thread(visit, Semaphore(name, using=using))
    eventually(lambda: line_in(other, directory))
    held[0].release()
    eventually(lambda: answers)
    assert answers == [None]
    held[1].release()
    assert waiting() is True


@pytest.mark.parametrize("crowd", [1, 12])
def test_who_waits_reads_names_alone_however_many_wait(using, sent, name, crowd):
    assert visit(Semaphore(f"{name}-before", 1, using=using))  # opens the session
    held = Semaphore(name, 2, using="other")
    held.acquire(n=2)
    waiting = []
    for number in range(1, crowd + 1):
        waiting.append(in_thread(visit, Semaphore(name, 2, using="other")))
        eventually(lambda: len(held.info().waiters) == number)  # noqa: B023 - called at once
    sent.clear()
    last = in_thread(visit, Semaphore(name, 2, using=using))
    eventually(lambda: len(held.info().waiters) == crowd + 1)
    kinds = [[type(request) for request in requests] for requests in sent]
    assert kinds == [[GetChildren2, GetData], [Multi]]
    held.release()
    assert all(each() for each in (*waiting, last))
    requests = [type(request) for requests in sent for request in requests]
    assert requests.count(Multi) == 3
    assert requests.count(GetData) <= requests.count(GetChildren2) <= 4


def visit(semaphore, inside=lambda: None):
    """Take a seat, and leave it; return whether that was all in time."""
    if taken := semaphore.acquire(timeout=PATIENCE):
        inside()
        semaphore.release()
    return taken


def test_more_holders_of_several_seats_than_are_named_are_counted_all_the_same(
    using, other, monkeypatch, name
):
    monkeypatch.setattr(seats, "_MOST_NAMED", 1)
    held = [Semaphore(name, 5, n=2, using="other") for _ in range(2)]
    for one in held:
        one.acquire()
    directory = f"semaphore:{name}"
    assert other.get(directory, "limit").value["several"] is None
    waiting = in_thread(visit, Semaphore(name, 5, n=2, using=using))
    eventually(lambda: line_in(other, directory))
    held[0].release()
    assert waiting() is True
    held[1].release()


def test_a_caller_with_hardly_any_time_is_told_who_has_it(using, name):
    def refusal():
        try:
            Semaphore(name, 1, using=using, timeout=0.001, on_busy="raise").__enter__()
        except LockBusy as error:
            return error
        except LockUnavailable:  # there was no answer in time
            return None

    with Semaphore(name, 1, using="other") as held:
        assert eventually(refusal).holder.token == held.token


def test_a_candidate_that_stands_again_does_so_once_while_its_lost_record_is_there(
    using, other, monkeypatch, name
):
    leader, follower = Election(name, using="other"), Election(name, using=using)
    assert leader.campaign(timeout=PATIENCE)
    monkeypatch.setattr(SharedBackend, "pause", 0.3)
    came, store = [], locks[using].store
    apply, release, may_leave = store.apply, SharedBackend.release, threading.Event()

    def counted(where, changes, *more):
        came.extend(change for change in changes if change.key.startswith("h/"))
        return apply(where, changes, *more)

    def refused(backend, lease, deadline=None):
        if backend.alias == using and not may_leave.is_set():
            raise LockUnavailable("not now")
        return release(backend, lease, deadline)

    monkeypatch.setattr(store, "apply", counted)
    monkeypatch.setattr(SharedBackend, "release", refused)
    campaign = in_thread(follower.campaign, timeout=PATIENCE)
    first = eventually(lambda: follower._candidacy._membership._hold)
    manager().renewer.lose(first, "for a test")
    eventually(lambda: follower._candidacy._membership._hold is not first)
    found = other.read(f"election:{name}").records
    assert sum(key.startswith("h/") for key in found) == 3  # the lost one is there, too
    before = len(came)
    passed(1.0)
    assert len(came) == before == 2
    may_leave.set()
    leader.resign()
    assert campaign() is True
    follower.resign()


def test_a_change_that_relies_on_a_lasting_record_is_not_refused_for_others(
    store, other, sent, name
):
    before = store.apply(name, [Put("a", 1)])
    other.apply(name, [Put("b", 1)])
    sent.clear()
    now = store.apply(name, [Put("a", 2)], [Exists("a", before, lasting=True)])
    assert [[type(request) for request in requests] for requests in sent] == [[Multi]]
    other.apply(name, [Put("a", 3)])
    assert store.apply(name, [Put("a", 4)], [Exists("a", now, lasting=True)]) is None
    assert store.get(name, "a").value == 3


def test_what_was_not_read_is_removed_and_replaced_as_it_is_by_now(store, other, name):
    """A read of names alone is all that this process knows."""
    other.apply(name, [Put("a", 1), Put("b", 1, other.open_session(60).id)])
    assert store.read_some(name, [], lambda found: []).keys == ["a", "b"]
    assert store.apply(name, [Delete("b")], [Exists("b")])
    assert store.apply(name, [Delete("b")], [Exists("b")]) is None
    revision = store.read_some(name, [], lambda found: []).revision
    other.apply(name, [Put("a", 2)])
    assert store.apply(name, [Put("a", 3)], [Unchanged(revision)]) is None
    assert store.apply(name, [Put("a", 4)], [Absent("a")]) is None
    assert store.apply(name, [Put("a", 5), Delete("c")])
    assert {key: one.value for key, one in other.read(name).records.items()} == {"a": 5}


def test_an_answer_that_comes_late_makes_no_earlier_state_look_like_the_present_one():
    """Of two threads one hears last of the earlier change, and others have changed that record."""
    seen, path = SeenLast(), "/directory"

    def view(version, revision, **said):
        node = DirectoryNode(path, "made", "change", NodeStat(version, revision, revision))
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


def test_a_list_of_names_keeps_what_was_read_if_nothing_was_changed_since():
    seen, path = SeenLast(), "/directory"

    def view(version, keys, *read):
        node = DirectoryNode(path, "made", stat=NodeStat(version, version, version))
        records = {key: RecordNode(f"{path}/{key}", 1, None, 1, 1, 1, 0, 0, 1) for key in read}
        return DirectoryView(node, records, keys)

    seen.keep(view(1, ["a", "b", "c"], "a", "b"))
    seen.keep(view(1, ["a", "c"], "c"))  # a session has taken "b" along
    assert seen[path].records.keys() == {"a", "c"}
    seen.keep(view(2, ["a", "c"]))
    assert not seen[path].records


def test_an_item_of_a_queue_takes_three_changes_and_one_read(using, sent, name):
    letters = Queue(name, using=using)
    for _ in range(2):
        sent.clear()
        letters.put(1)
        letters.get().ack()
    kinds = [[type(request) for request in requests] for requests in sent]
    assert kinds.count([Multi]) == 3
    assert [len(each) for each in kinds if each != [Multi]] == [2, 1]
