"""Records that are changed through different nodes at once."""

import os
import time
from concurrent.futures import ThreadPoolExecutor

from distlock import LockUnavailable, locks
from distlock.backends.store import Absent, Exists, Put, SessionEnded, Unchanged
from tests.children import write_line
from tests.contract.actors import PATIENCE
from tests.galera.conftest import NODES

TIMES = 40
#: how long, in seconds, processes change one directory, and how many of them do at each node
RACE, CROWD = 40, 2

ORPHANS = (
    "SELECT COUNT(*) FROM database_lock_record r LEFT JOIN database_lock_session s"
    " ON s.id = r.session WHERE r.session IS NOT NULL AND s.id IS NULL"
)


def at_each_node(function):
    with ThreadPoolExecutor(len(NODES)) as threads:
        return list(threads.map(lambda alias: function(locks[alias].store), NODES))


def until_answered(call):
    while True:
        try:
            return call()
        except LockUnavailable as error:
            assert not error.maybe_applied, error


def test_no_increment_is_lost(nodes, name):
    def count(store):
        revisions = []
        for _ in range(TIMES):
            while True:
                found = store.get(name, "n")
                value, condition = (
                    (found.value, Exists("n", found.revision)) if found else (0, Absent("n"))
                )
                revision = until_answered(
                    lambda value=value, condition=condition: store.apply(
                        name, [Put("n", value + 1)], [condition]
                    )
                )
                if revision is not None:
                    revisions.append(revision)
                    break
        return revisions

    revisions = sum(at_each_node(count), [])
    assert locks[NODES[0]].store.get(name, "n").value == TIMES * len(NODES)
    assert len(set(revisions)) == len(revisions)


def test_no_record_outlives_a_session_that_is_ended_at_another_node(nodes, name):
    first, second, third = (locks[alias].store for alias in NODES)

    def bind(session):
        try:
            return until_answered(lambda: first.apply(name, [Put(session, 1, session)]))
        except SessionEnded:
            return None

    bound = 0
    with ThreadPoolExecutor(2) as threads:
        for _ in range(TIMES):
            session = first.open_session(600).id
            binding = threads.submit(bind, session)
            ending = threads.submit(until_answered, lambda s=session: second.end_session(s))
            bound += binding.result() is not None
            ending.result()
            assert nodes[2].execute(ORPHANS) == [(0,)]
    assert third.read(name).records == {}
    assert bound


def change(node, directory, path):
    """As a child: put one record after the other; note for each what was said of it."""
    store, until, number = locks[node].store, time.monotonic() + RACE, 0
    with open(f"{path}/{os.getpid()}", "w") as notes:
        while time.monotonic() < until:
            number += 1
            key = f"{os.getpid()}-{number}"
            try:
                seen = Unchanged(store.look(directory, [key]).revision)
                done = store.apply(directory, [Put(key, number)], [seen]) is not None
            except LockUnavailable as error:
                done = None if error.maybe_applied else False
            notes.write(f"{key} {done}\n")
    write_line("done")


def test_what_was_refused_because_another_node_was_first_has_left_nothing(
    nodes, child, name, tmp_path
):
    """The server ends a transaction between two of its statements, and must not go on with it."""
    people = [child(change, node, name, str(tmp_path)) for node in NODES for _ in range(CROWD)]
    for one in people:
        assert one.line(RACE + PATIENCE) == "done"
        one.finish()
    notes = "".join(file.read_text() for file in tmp_path.iterdir())
    said = dict(line.split() for line in notes.splitlines())
    there = locks[NODES[0]].store.read(name).records.keys()
    assert {key for key, done in said.items() if done == "True"} <= there
    assert [key for key in there if said[key] == "False"] == []
