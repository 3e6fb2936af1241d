"""What recipes keep: found as a test writes it, and removed when the test ends."""

from __future__ import annotations

import gc
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from itertools import islice

from distlock.backends.seats import held_key
from distlock.backends.store import MOST_KEYS, Delete, Record, RecordStore, observers
from distlock.conf import locks
from distlock.core.manager import manager
from distlock.exceptions import NotSupported
from distlock.recipes.log import forget_values
from distlock.types.owners import current_owner


class WrittenRecords:
    """The directories that this process has changed since this was made."""

    def __init__(self) -> None:
        #: the revision of the first change
        self._first: dict[tuple[RecordStore, str], int] = {}

    @contextmanager
    def noting(self) -> Iterator[None]:
        """Note what is changed inside, by any thread."""
        observers.append(self._note)
        try:
            yield
        finally:
            observers.remove(self._note)

    def _note(self, store: RecordStore, directory: str, revision: int) -> None:
        self._first.setdefault((store, directory), revision)

    def remove(self) -> None:
        """Remove the records that were made since then, but not those of what still runs here."""
        stores = set(_open_stores())
        for (store, directory), revision in tuple(self._first.items()):
            if store in stores:
                with suppress(Exception):  # its backend may be down, or closed to this test
                    _remove(store, directory, revision)
        self._first.clear()
        forget_values()


def _open_stores() -> Iterator[RecordStore]:
    """Yield the stores of backends that were not closed: one that is used again would open anew."""
    for backend in locks.made():
        with suppress(NotSupported):
            yield backend.store


def _remove(store: RecordStore, directory: str, since: int) -> None:
    found = store.read(directory).records.values()
    made = [record for record in found if record.created >= since]
    if _runs_here(made):
        return
    # What was bound to a session of this process would stay for the length of a lease.
    sessions = {None, *(record.session for record in made if _is_of_this_process(record))}
    keys = (record.key for record in made if record.session in sessions)
    while some := [*islice(keys, MOST_KEYS)]:
        store.apply(directory, [Delete(key) for key in some])


def _runs_here(made: Collection[Record]) -> bool:
    """Return whether something goes on that a record stands for, say a group that nobody left."""
    keys = {record.key for record in made}
    for collect in (lambda: None, gc.collect):  # most of it ends when it is garbage
        collect()
        kept = manager.all(renewed=True)
        alive = [hold for hold in kept if any(one.is_alive() for one in hold.entries)]
        if keys.isdisjoint(held_key(hold.lease.nonce) for hold in alive):
            return False
    return True


def _is_of_this_process(record: Record) -> bool:
    me, said = current_owner(), record.value
    return isinstance(said, dict) and (said.get("host"), said.get("pid")) == (me.host, me.pid)
