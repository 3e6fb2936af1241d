"""Breaking a lock of the local backend while its holder commits a transaction under it."""

import threading

import pytest
from django.db import connections, transaction

from distlock import Lock, LockUnavailable
from distlock.concurrency.clock import clock
from tests.contract.actors import PATIENCE


def test_breaking_waits_for_a_commit_no_longer_than_its_time_limit(sqlite, backend):
    committing, end, tokens = threading.Event(), threading.Event(), []

    def commit():
        with Lock("stock").atomic() as lock:
            tokens.append(lock.token)
            transaction.on_commit(committing.set)
            transaction.on_commit(lambda: end.wait(PATIENCE))
        connections.close_all()

    thread = threading.Thread(target=commit, daemon=True)
    thread.start()
    assert committing.wait(PATIENCE)
    began = clock()
    with pytest.raises(LockUnavailable, match="committing"):
        backend.force_release("stock", tokens[0], began + 0.05)
    assert clock() >= began + 0.05
    end.set()
    thread.join(PATIENCE)
    assert backend.force_release("stock", tokens[0], clock() + PATIENCE) is None
