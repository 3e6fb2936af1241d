"""Watches on keys: one stream for all that a process waits for in one cluster."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import count
from queue import Empty, SimpleQueue
from typing import Any

from distlock.backends.etcd.connections import Stream, Unanswered
from distlock.backends.etcd.kv import Json, after, to_bytes
from distlock.concurrency import fork
from distlock.concurrency.backoff import backoff
from distlock.concurrency.threads import start

logger = logging.getLogger("distlock")

#: Seconds that the thread stays without a watch.
_LINGER = 1.0
#: Seconds without an event after which the stream is opened anew: its server may be cut off.
_LONGEST_SILENCE = 30.0
#: Seconds between two attempts to open the stream.
_FIRST_PAUSE, _LONGEST_PAUSE = 0.05, 2.0


@dataclass(eq=False, slots=True)
class Watch:
    """A watch on a key, or on all keys that begin with it, which calls back once."""

    key: str
    #: the revision after which a change counts; it may be set to a later one
    since: int
    callback: Callable[[], object]
    prefix: bool
    deletes_only: bool
    number: int
    _cancel: Callable[[int], bool] = field(repr=False)

    def cancel(self) -> bool:
        """Do not call back; False if it was called, or is about to be."""
        return self._cancel(self.number)

    def request(self) -> Json:
        """Return the request for it."""
        request: dict[str, Any] = {
            "key": to_bytes(self.key),
            "start_revision": self.since + 1,
            "watch_id": self.number,
        }
        if self.prefix:
            request["range_end"] = to_bytes(after(self.key))
        if self.deletes_only:
            request["filters"] = ["NOPUT"]
        return request


class Watches:
    """All watches of a process in one cluster, and the thread that reads their stream.

    The stream is closed for a further watch, and opened anew with all of them, each from its
    revision on: nothing is missed.

    Events are hints. A member that is cut off sends none and says nothing; who waits for one has to
    look now and then.
    """

    def __init__(self, open_stream: Callable[[Sequence[Json]], Stream]) -> None:
        """``open_stream`` opens the stream for some requests; Unanswered if it cannot."""
        self._open_stream = open_stream
        self._numbers = count(1)
        self._stream: Stream | None = None
        self.after_fork_in_child()
        fork.reset_in_child(self)

    def after_fork_in_child(self) -> None:
        """Watch nothing: the stream, and those who wait for its events, are the parent's."""
        if self._stream is not None:
            self._stream.close_in_child()
        self._stream = None
        #: Who pops a watch from here is the one who calls back, or cancels it.
        self._watches: dict[int, Watch] = {}
        #: Wakes the thread; None while there is none.
        self._wakeups: SimpleQueue[None] | None = None

    def add(
        self,
        key: str,
        since: int,
        callback: Callable[[], object],
        *,
        prefix: bool = False,
        deletes_only: bool = False,
    ) -> Watch:
        """Call back once when a key changes, or may have changed, after the revision ``since``.

        The callback runs on the thread of the watches and must not block. With ``prefix`` it is for
        all keys that begin with ``key``; ``deletes_only``: for no other changes. RuntimeError if
        the thread is needed, and no more threads can be had.
        """
        number = next(self._numbers)
        watch = Watch(key, since, callback, prefix, deletes_only, number, self._cancel)
        try:
            self._watches[number] = watch
            self._wake()
        except BaseException:  # also Ctrl-C: nobody would have the watch to cancel it
            watch.cancel()
            raise
        return watch

    def _cancel(self, number: int) -> bool:
        was_there = self._watches.pop(number, None) is not None
        if was_there and not self._watches:
            self._interrupt()
        return was_there

    def close(self) -> None:
        """Watch nothing any more; the thread ends soon."""
        self._watches.clear()
        self._interrupt()

    def _interrupt(self) -> None:
        """Let the thread see what is wanted now."""
        if (stream := self._stream) is not None:
            stream.interrupt()

    def _wake(self) -> None:
        wakeups = self._wakeups
        if wakeups is None:
            # Two may do this at once: the thread whose queue is replaced here ends.
            wakeups = self._wakeups = SimpleQueue()
            try:
                start(self._run, "distlock-etcd-watch", wakeups)
            except BaseException:  # no more threads, or an interrupt: the next one has to try again
                if self._wakeups is wakeups:
                    self._wakeups = None
                raise
        wakeups.put(None)
        self._interrupt()

    # On the thread

    def _run(self, wakeups: SimpleQueue[None]) -> None:
        pauses = backoff(_FIRST_PAUSE, _LONGEST_PAUSE)
        while self._wakeups is wakeups:
            _drain(wakeups)
            wanted = self._watches.copy()
            if not wanted:
                if not _woken(wakeups, _LINGER) and not self._goes_on(wakeups):
                    return
                continue
            try:
                if self._follow(wanted, wakeups) or not wakeups.empty():
                    pauses = backoff(_FIRST_PAUSE, _LONGEST_PAUSE)
                    continue
            except Unanswered as error:
                logger.debug("the stream of watches broke: %s", error)
            except Exception:  # waiters look by themselves, and the stream is opened again
                logger.exception("the stream of watches failed")
            _woken(wakeups, next(pauses))

    def _goes_on(self, wakeups: SimpleQueue[None]) -> bool:
        """Let the thread end, unless a watch was added just before; who adds one later starts it.

        add() puts a watch, then reads ``_wakeups``. This writes ``_wakeups``, then looks for one.
        """
        if self._wakeups is wakeups:
            self._wakeups = None
        if not self._watches or self._wakeups is not None:
            return False
        self._wakeups = wakeups
        return True

    def _follow(self, wanted: Mapping[int, Watch], wakeups: SimpleQueue[None]) -> bool:
        """Call back for events until the stream ends; False if it has ended by itself."""
        stream = self._open_stream([watch.request() for watch in wanted.values()])
        try:
            self._stream = stream
            while wakeups.empty():
                line = stream.line(_LONGEST_SILENCE)
                if line is None:
                    return True
                if not line:
                    return False
                if line.strip():
                    self._on_message(json.loads(line))
                if self._watches.keys().isdisjoint(wanted):
                    break
            return True
        finally:
            if self._stream is stream:
                self._stream = None
            stream.close()

    def _on_message(self, message: Json) -> None:
        result = message.get("result")
        if result is None:
            raise Unanswered(OSError(str(message.get("error"))), sent=True)
        number = int(result.get("watch_id", 0))
        if result.get("canceled"):
            watch = self._watches.pop(number, None)
            if watch is not None and int(result.get("compact_revision", 0)):
                self._call(watch)  # what happened after that revision is not known any more
        elif result.get("events"):
            watch = self._watches.pop(number, None)
            if watch is not None:
                self._call(watch)

    def _call(self, watch: Watch) -> None:
        try:
            watch.callback()
        except Exception:
            logger.exception("a callback for a change of %r failed", watch.key)


def _drain(wakeups: SimpleQueue[None]) -> None:
    with suppress(Empty):
        while True:
            wakeups.get_nowait()


def _woken(wakeups: SimpleQueue[None], seconds: float) -> bool:
    """Wait to be woken; the wake-up stays for the one who looks for it."""
    with suppress(Empty):
        wakeups.get(timeout=seconds)
        wakeups.put(None)
        return True
    return False
