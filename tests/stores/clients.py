"""What the clients of a store do, in a thread or a process of their own."""

import itertools
import os
import signal
import time
from contextlib import suppress

from distlock import LockUnavailable, locks
from distlock.backends.store import (
    Absent,
    Delete,
    Exists,
    MoveFirst,
    Put,
    SessionEnded,
    Unchanged,
)
from distlock.concurrency.clock import clock
from tests.children import write_line
from tests.contract.actors import PATIENCE


def store_of(using="default"):
    return locks[using].store


def put(directory, key, value, session=None):
    """Put a record; its revision."""
    return store_of().apply(directory, [Put(key, value, session)])


def delete(directory, key):
    """Delete a record; the revision of that."""
    return store_of().apply(directory, [Delete(key)])


def bind(directory, key, seconds):
    """Put a record in a session of its own; return that, and the revision of the record.

    Once more, if the machine has stood still for longer than the session.
    """
    while True:
        session = store_of().open_session(seconds)
        with suppress(SessionEnded):
            return session, put(directory, key, "mine", session.id)


def values(snapshot):
    return {key: record.value for key, record in snapshot.records.items()}


def move_all(directory, times):
    """Move the first record of "from/" so often; what the numbers of those were."""
    moves = [MoveFirst("to/MARK", "from/", "MARK", '{"n":0,', '{"n":1,') for _ in range(times)]
    for move in moves:
        assert store_of().apply(directory, [move]), "somebody was in its way"
    return [move.moved.key.removeprefix("from/") for move in moves]


def count_up(directory, key, times):
    """Add 1 so often, each time on the condition that the record is as it was read.

    Returns the number that each revision has put.
    """
    store = store_of()
    return dict(_counted(store, directory, key, _by_record) for _ in range(times))


def count_up_alone(directory, key, times):
    """See count_up(); on the condition that the whole directory is as it was read."""
    store = store_of()
    return dict(_counted(store, directory, key, _by_directory) for _ in range(times))


def _counted(store, directory, key, look):
    while True:
        found, condition = look(store, directory, key)
        number = found.value + 1 if found else 1
        revision = store.apply(directory, [Put(key, number)], [condition])
        if revision is not None:
            return revision, number


def _by_record(store, directory, key):
    found = store.get(directory, key)
    return found, Exists(key, found.revision) if found else Absent(key)


def _by_directory(store, directory, key):
    snapshot = store.read(directory)
    return snapshot.records.get(key), Unchanged(snapshot.revision)


def write_pairs(directory, who, times):
    """Put two records at once, again and again, always with the same value; the revisions."""
    store = store_of()
    return [
        store.apply(directory, [Put("left", [who, number]), Put("right", [who, number])])
        for number in range(times)
    ]


def write_pairs_for_ever(directory):
    """See write_pairs(). As a child: says when it has begun; ends with the test."""
    store = store_of()
    for number in itertools.count():
        store.apply(directory, [Put("left", number), Put("right", number)])
        if not number:
            write_line("writing")


def keep_session(directory, key, seconds):
    """As a child: keep a record in a session that is renewed in time, until it is killed."""
    session, _ = bind(directory, key, seconds)
    write_line(session.id)
    while True:
        time.sleep(seconds / 5)
        store_of().renew([session.id])


def keep_session_until_stopped(directory, key, seconds):
    """As a child: keep a record in a session; stop; and try to go on once that is continued."""
    store = store_of()
    session, _ = bind(directory, key, seconds)
    store.renew([session.id])
    write_line(session.id)
    os.kill(os.getpid(), signal.SIGSTOP)  # between two requests: it keeps no file from the others
    write_line("ended" if _has_ended(session.id) else "alive")
    try:
        store.apply(directory, [Put(f"{key}:late", "mine", session.id)])
    except SessionEnded:
        write_line("refused")
    else:
        write_line("applied")


def _has_ended(session):
    while True:
        try:
            renewal = store_of().renew([session], (), clock() + PATIENCE)
        except LockUnavailable:
            continue
        if session in renewal.alive or session in renewal.ended:
            return session in renewal.ended
