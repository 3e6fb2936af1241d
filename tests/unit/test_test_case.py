"""Finding the connection of a running test case while other threads connect."""

import sys
import threading

import pytest
from django.db.backends.signals import connection_created

from distlock.backends.open_transactions import connection_of_test_case


class Connection:
    vendor = "sqlite"
    alias = "another"


@pytest.fixture
def many_connect():
    """Another thread makes connections, and lets them go, all the time."""
    over = threading.Event()

    def connect():
        kept = []
        while not over.is_set():
            kept.append(Connection())
            connection_created.send(Connection, connection=kept[-1])
            if len(kept) > 300:
                kept.clear()

    thread = threading.Thread(target=connect)
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    thread.start()
    yield
    over.set()
    thread.join()
    sys.setswitchinterval(interval)


def test_it_is_looked_for_while_others_connect(many_connect):
    for _ in range(5000):
        assert connection_of_test_case("not this one") is None
