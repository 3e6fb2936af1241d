"""Finds the transaction that Django wraps around a test case, from any thread."""

from __future__ import annotations

import weakref
from typing import Any

from django.core import mail
from django.db.backends.signals import connection_created

#: by their ids; a WeakSet cannot be looked through while another thread adds to it
_connections: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()


def watch() -> None:
    """Note SQLite connections as they are made: later, another thread could not find them."""
    connection_created.connect(_note, dispatch_uid="distlock.backends.testcase")


def in_test_environment() -> bool:
    """Return whether Django's test environment is set up, by the sign that its docs name."""
    return "outbox" in vars(mail)


def connection_of_test_case(database: str) -> Any:
    """Return the SQLite connection of a running test case, None if there is none.

    What asyncio code asks for is done on threads of ours, and the renewer has one of its own. They
    would wait for a transaction that ends no sooner than the test.
    """
    if not in_test_environment():
        return None
    for known in _connections.valuerefs():
        connection = known()
        if connection is None or connection.alias != database:
            continue
        if connection.in_atomic_block and blocks_of_test_case(connection):
            return connection
    return None


def blocks_of_test_case(connection: Any) -> int:
    """Return how many open atomic blocks of a connection Django has wrapped around a test case."""
    return sum(block._from_testcase for block in connection.atomic_blocks)


def _note(connection: Any, **kwargs: Any) -> None:
    if connection.vendor == "sqlite":
        _connections[id(connection)] = connection
