"""A change is made as a whole, and only on its conditions, whoever else changes and reads."""

import random
import signal
import sys
from bisect import bisect_right
from itertools import pairwise

import pytest

from distlock.backends.store import Absent, Delete, Exists, Put, Unchanged
from distlock.concurrency.clock import clock
from tests.contract.actors import PATIENCE
from tests.contract.watch import eventually
from tests.kinds import ONE_PROCESS
from tests.stores.clients import (
    count_up,
    count_up_alone,
    put,
    values,
    write_pairs,
    write_pairs_for_ever,
)

#: how often each client counts, where a server takes part, and where threads have to meet
TIMES, TIMES_IN_MEMORY = 10, 500


@pytest.fixture
def times(kind):
    """How often each client is to change something while others do; they meet at any moment."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield TIMES_IN_MEMORY if kind in ONE_PROCESS else TIMES
    sys.setswitchinterval(before)


@pytest.fixture
def there(store, directory):
    """Two records, one of which was changed; the revisions by name."""
    revisions = {"created": put(directory, "there", 0)}
    revisions |= {"now": put(directory, "there", 1), "other": put(directory, "other", 1)}
    return revisions


@pytest.mark.parametrize(
    ("condition", "holds"),
    [
        (lambda there: Absent("new"), True),
        (lambda there: Absent("there"), False),
        (lambda there: Exists("there"), True),
        (lambda there: Exists("new"), False),
        (lambda there: Exists("there", there["now"]), True),
        (lambda there: Exists("there", there["created"]), False),
        (lambda there: Exists("there", there["other"]), False),
        (lambda there: Exists("there", there["now"], lasting=True), True),
        (lambda there: Exists("there", there["created"], lasting=True), False),
        (lambda there: Exists("new", there["now"]), False),
        (lambda there: Exists("new", 0), False),
        (lambda there: Unchanged(there["other"]), True),
        (lambda there: Unchanged(there["now"]), False),
        (lambda there: Unchanged(0), False),
    ],
)
def test_a_change_is_made_if_its_condition_holds(store, directory, there, condition, holds):
    before = store.read(directory)
    changes = [Put("new", 1), Put("there", 2), Delete("other")]
    revision = store.apply(directory, changes, [condition(there)])
    after = store.read(directory)
    if holds:
        assert after.revision >= revision > before.revision
        assert values(after) == {"new": 1, "there": 2}
    else:
        assert revision is None
        assert store.apply(directory, [], [Unchanged(before.revision)])
        assert {key: record.revision for key, record in after.records.items()} == {
            "there": there["now"],
            "other": there["other"],
        }


def test_in_a_new_directory_all_is_absent_and_nothing_has_changed(store, directory):
    assert store.apply(directory, [Put("a", 1)], [Exists("a")]) is None
    assert not store.read(directory).records
    seen = Unchanged(store.read(directory).revision)
    assert store.apply(directory, [Put("a", 1)], [Absent("a"), seen])
    assert store.apply(directory, [Put("a", 1)], [seen]) is None


def test_one_of_several_conditions_is_enough_to_refuse(store, directory, there):
    good = [Absent("new"), Exists("there"), Exists("other", there["other"])]
    bad = [Absent("other"), Exists("nobody"), Exists("there", there["created"]), Unchanged(1)]
    before = store.read(directory)
    for one in bad:
        for conditions in ([one, *good], [*good, one]):
            assert store.apply(directory, [Delete("there"), Put("new", 1)], conditions) is None
    assert store.read(directory).records == before.records
    assert store.apply(directory, [Put("new", 1)], [*good, Unchanged(there["other"])])


def test_a_condition_may_be_said_twice(store, directory, there):
    twice = [Exists("there"), Exists("other"), Exists("there"), Absent("new"), Absent("new")]
    assert store.apply(directory, [Put("there", 2)], twice)
    assert store.apply(directory, [Put("there", 3)], [*twice, Exists("nobody")]) is None
    assert values(store.read(directory)) == {"there": 2, "other": 1}


def test_keys_are_only_text(store, directory):
    """Whatever they look like, and however many of them there are in one question."""
    keys = [
        "%",
        "%s",
        "%(key0)s",
        "{0}",
        "{}",
        "}{",
        "'",
        '"',
        "''; --",
        "\\",
        "$1",
        "a b",
        "é",
        "%%",
    ]
    for some in (keys[:1], keys[:2], keys):
        assert store.apply(
            directory, [Put(key, key) for key in some], [Absent(key) for key in some]
        )
        assert values(store.look(directory, [*some, some[0], "nobody"])) == {
            key: key for key in some
        }
        there = [Exists(key) for key in some]
        assert store.apply(directory, [Delete(key) for key in some], there)
        assert not store.look(directory, some).records
        assert store.apply(directory, [Delete(key) for key in some], there) is None
    assert not store.look(f"{directory}{{0}}%s", keys).records
    assert not store.look(directory, []).records


def test_a_condition_is_of_the_moment_before_the_change(store, directory):
    assert store.apply(directory, [Put("a", 1)], [Absent("a")])
    assert store.apply(directory, [Delete("a"), Put("b", 1)], [Exists("a"), Absent("b")])
    assert values(store.read(directory)) == {"b": 1}


def test_a_record_that_was_put_again_is_another(store, directory):
    """With the same value: whoever has seen the first one is told that it has gone."""
    first = put(directory, "a", "same")
    store.apply(directory, [Delete("a")])
    put(directory, "a", "same")
    assert store.apply(directory, [Delete("a")], [Exists("a", first)]) is None


def test_conditions_without_a_change_may_be_asked(store, directory, there):
    assert store.apply(directory, [], [Exists("there", there["now"])]) is not None
    assert store.apply(directory, [], [Exists("there", there["created"])]) is None
    assert values(store.read(directory)) == {"there": 1, "other": 1}


def test_only_one_of_two_who_have_read_the_same_may_change_it(store, directory):
    put(directory, "counter", 1)
    seen = store.get(directory, "counter"), store.get(directory, "counter")
    changed = [
        store.apply(directory, [Put("counter", one.value + 1)], [Exists("counter", one.revision)])
        for one in seen
    ]
    assert changed[0] and changed[1] is None
    assert store.get(directory, "counter").value == 2


def test_without_a_condition_one_of_the_two_is_lost(store, directory):
    """This shows what the conditions are for, and that the test above could fail."""
    put(directory, "counter", 1)
    seen = store.get(directory, "counter"), store.get(directory, "counter")
    assert all(store.apply(directory, [Put("counter", one.value + 1)]) for one in seen)
    assert store.get(directory, "counter").value == 2  # and not 3


def looks_while(store, directory, working):
    """Read the directory until all of them are done; the snapshots."""
    looks = []
    while not all(one.done() for one in working):
        looks.append(store.read(directory))
    return looks


def assert_in_order(looks, key, made):
    """What was seen is what had been put by then, of which ``made`` has the values by revision."""
    order = sorted(made)
    before = 0
    for snapshot in looks:
        assert before <= snapshot.revision
        before = snapshot.revision
        latest = bisect_right(order, snapshot.revision)
        if record := snapshot.records.get(key):
            assert (record.revision, record.value) == (order[latest - 1], made[order[latest - 1]])
        else:
            assert not latest


@pytest.mark.parametrize("count", [count_up, count_up_alone], ids=["record", "directory"])
@pytest.mark.every_day_on("local", "mariadb", "postgresql")
def test_no_increment_is_lost(store, directory, actor, others, times, count):
    """Of four threads, and three processes where they share the store."""
    clients = [*(actor("thread") for _ in range(4)), *others(3)]
    counting = [client.call(count, directory, "counter", times) for client in clients]
    looks = looks_while(store, directory, counting)
    made = {}
    for one in counting:
        made |= one.result(PATIENCE)
    assert store.get(directory, "counter").value == len(clients) * times
    # The order of the revisions is the order of the changes, also as a reader has seen it.
    assert [made[revision] for revision in sorted(made)] == [*range(1, len(made) + 1)]
    assert_in_order(looks, "counter", made)


def test_no_reader_sees_half_a_change(store, directory, actor, others, times):
    writers = [actor("thread"), *others(2)]
    writing = [
        writer.call(write_pairs, directory, who, 3 * times) for who, writer in enumerate(writers)
    ]
    looks = looks_while(store, directory, writing)
    made = {}
    for who, one in enumerate(writing):
        revisions = one.result(PATIENCE)
        assert all(earlier < later for earlier, later in pairwise(revisions))
        made |= {revision: [who, number] for number, revision in enumerate(revisions)}
    assert len(made) == len(writers) * 3 * times
    for key in ("left", "right"):
        assert_in_order(looks, key, made)


# Whoever changes may stand still, or die, at any moment


@pytest.mark.shared
@pytest.mark.parametrize("rounds", [3, pytest.param(30, marks=pytest.mark.slow)])
def test_one_who_dies_in_the_middle_leaves_no_half_change(store, directory, child, rounds, name):
    dice = random.Random(name)
    for _ in range(rounds):
        writer = child(write_pairs_for_ever, directory)
        assert writer.line() == "writing"
        stop_at = clock() + dice.uniform(0, 0.03)
        eventually(lambda at=stop_at: clock() > at)
        writer.kill()
        assert_usable(store, directory)


@pytest.mark.served
@pytest.mark.parametrize("rounds", [3, pytest.param(60, marks=pytest.mark.slow)])
def test_one_who_is_stopped_in_the_middle_does_not_keep_the_others_waiting(
    store, directory, child, rounds, name
):
    """Where there is a server: a file stays with one who is stopped while he writes to it."""
    dice = random.Random(name)
    writer = child(write_pairs_for_ever, directory)
    assert writer.line() == "writing"
    for _ in range(rounds):
        before = store.read(directory).revision
        eventually(lambda seen=before: store.read(directory).revision > seen)
        stop_at = clock() + dice.uniform(0, 0.03)
        eventually(lambda at=stop_at: clock() > at)
        writer.signal(signal.SIGSTOP)
        assert_usable(store, directory)
        writer.signal(signal.SIGCONT)


def assert_usable(store, directory):
    """Everybody else reads whole pairs, and makes changes, within a few seconds."""
    for _ in range(3):
        snapshot = store.read(directory, clock() + 5)
        assert snapshot.records["left"].value == snapshot.records["right"].value
        assert store.apply(directory, [Put("mine", 1)], [Exists("left")], clock() + 5)
