"""Sessions in which a process has waited: kept with their native lock, or ready for the next."""

from __future__ import annotations

import threading
from contextlib import suppress

from django.db import connections

from distlock.backends.database.pool import Pool
from distlock.backends.database.queue.wait_session import WaitSession
from distlock.backends.database.queue.wait_threads import WaitThreads
from distlock.clock import clock
from distlock.watchdog import watchdog

#: Seconds that a session stays ready.
_READY = 2.0


class WaitSessionPool:
    """Who waited for a lock keeps the native one until it is released, which wakes the next."""

    def __init__(self, pool: Pool, threads: WaitThreads) -> None:
        self._pool = pool
        self._crew = threads
        self._mutex = threading.Lock()
        self._kept: dict[str, WaitSession] = {}  # by nonce of the lease, longest kept first
        self._ready: list[tuple[WaitSession, float]] = []
        self._reaping = False

    @property
    def kept(self) -> int:
        """How many sessions have a native lock."""
        return len(self._kept)

    @property
    def total(self) -> int:
        return len(self._kept) + len(self._ready)

    def keep(self, nonce: str, place: WaitSession) -> None:
        """Keep a session for as long as a lease is held."""
        with self._mutex:
            self._kept[nonce] = place

    def pop(self, nonce: str) -> WaitSession | None:
        """Return what was kept for a lease, and keep it no longer."""
        with self._mutex:
            return self._kept.pop(nonce, None)

    def give_up_one(self) -> bool:
        """Drop the native lock that was kept longest. The row holds its lock all the same."""
        with self._mutex:
            place = self._kept.pop(next(iter(self._kept)), None) if self._kept else None
        if place is not None:
            self.drop(place)
        return place is not None

    def had(self, name: str) -> bool:
        """Return whether a session is ready that waited for the lock ``name`` a moment ago."""
        return any(place.last_name == name for place, _ in self._ready)

    def ready(self) -> WaitSession | None:
        """Return a session that is ready, if any."""
        settings = connections[self._pool.database].settings_dict
        while True:
            with self._mutex:
                if not self._ready:
                    return None
                place, _ = self._ready.pop()
            if place.usable and place.session.settings == settings:
                return place
            self.drop(place)

    def put_away(self, place: WaitSession, *, room: bool) -> None:
        """Have a session ready for the next one who waits, if there is ``room`` for it."""
        seconds = min(self._pool.idle, _READY)
        with self._mutex:
            wanted = room and seconds > 0 and place.session.usable and place.free
            if wanted:
                self._ready.append((place, clock()))
                if not self._reaping:
                    self._reaping = True
                    watchdog.add(seconds, self._reap)
        if not wanted:
            place.close()

    def close(self) -> None:
        """Close them all. Locks that are held stay held, by their rows."""
        with self._mutex:
            places = [*self._kept.values(), *(place for place, _ in self._ready)]
            self._kept, self._ready = {}, []
        for place in places:
            self.drop(place)

    def drop(self, place: WaitSession) -> None:
        """End a session without a word that could block; the server frees its native lock."""
        place.hang_up()
        # Django would refuse to close it where an event loop runs.
        with suppress(RuntimeError):  # no more threads; the server knows all the same
            self._crew.run(place.close)

    def _reap(self) -> None:
        seconds = min(self._pool.idle, _READY)
        now = clock()
        with self._mutex:
            old = [place for place, since in self._ready if now - since >= seconds]
            self._ready = [(place, since) for place, since in self._ready if now - since < seconds]
            self._reaping = bool(self._ready)
            if self._ready:
                watchdog.add(self._ready[0][1] + seconds - now, self._reap)
        for place in old:
            place.close()
