"""Which engines have native locks to wait for."""

from __future__ import annotations

from concurrent.futures import Future
from contextlib import suppress
from importlib import import_module

from django.db import connections
from django.db.utils import load_backend

from distlock.backends.database.queue.advisory_locks import AdvisoryLocks
from distlock.backends.database.queue.mysql_locks import MySQL
from distlock.backends.database.queue.postgresql_locks import PostgreSQL
from distlock.threads import start

_ENGINES: dict[str, AdvisoryLocks] = {"mysql": MySQL(), "postgresql": PostgreSQL()}


def native_for(vendor: str) -> AdvisoryLocks | None:
    """Return the native locks of an engine by its vendor's name in Django, None if it has none."""
    return _ENGINES.get(vendor)


def vendor_of(database: str) -> str:
    """Return the vendor's name of the engine of a database; nothing is connected to."""
    # Not on the caller's thread: Ctrl-C in the middle of an import leaves half a driver behind.
    vendor: Future[str] = Future()

    def load() -> None:
        try:
            engine = load_backend(connections.settings[database]["ENGINE"])
            if engine.DatabaseWrapper.vendor == "mysql":
                # It is imported with the first connection only, which may be made by two threads.
                with suppress(ImportError):
                    import_module("MySQLdb.connections")
            vendor.set_result(engine.DatabaseWrapper.vendor)
        except BaseException as error:
            vendor.set_exception(error)

    start(load, "distlock-import")
    return vendor.result()
