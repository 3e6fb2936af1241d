"""Watches on keys: one stream for all that a process waits for in one cluster."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from queue import Empty
from typing import TypeAlias

from distlock.backends.etcd.connections import Stream, Unanswered
from distlock.backends.etcd.messages import Json, key_range
from distlock.concurrency.clock import backoff
from distlock.concurrency.threads import WaitQueue, start, thread_logger

#: A key, whether all keys that begin with it are meant, and whether only deletions count.
Target: TypeAlias = tuple[str, bool, bool]

#: Seconds that the stream stays without a watch, and then the thread: often the next watch comes
#: soon, and for the same key.
_LINGER = 1.0
#: So many events of one key, one after the other, that nobody waits for any more are put up with.
_MOST_UNWANTED = 16
#: Seconds without an event after which the stream is opened again: its server may be cut off.
_LONGEST_SILENCE = 30.0
#: Seconds between two attempts to open the stream.
_FIRST_PAUSE, _LONGEST_PAUSE = 0.05, 2.0


@dataclass(slots=True)
class _Followed:
    """What the stream follows; only the thread writes it.

    ``began`` is the revision after which it does, ``last`` that of the last change it has told, and
    ``unwanted`` says how many it has told since somebody waited for one.
    """

    target: Target
    began: float
    last: int = 0
    unwanted: int = 0


@dataclass(eq=False, slots=True)
class KeyWatch:
    """A watch on a key, or on all keys that begin with it, which calls back once."""

    key: str
    #: the revision after which a change counts
    since: int
    callback: Callable[[], object]
    prefix: bool
    deletes_only: bool
    #: by which Watches knows it
    token: object
    _cancel: Callable[[object], bool] = field(repr=False)

    @property
    def target(self) -> Target:
        """What is watched."""
        return self.key, self.prefix, self.deletes_only

    def cancel(self) -> bool:
        """Do not call back; False if it was called, or is about to be."""
        return self._cancel(self.token)


def _request(number: int, target: Target, since: int) -> Json:
    """Return the request to follow something; its events have ``number``."""
    key, prefix, deletes_only = target
    how: Json = {"filters": ["NOPUT"]} if deletes_only else {}
    return {**key_range(key, prefix), "start_revision": since + 1, "watch_id": number, **how}


class Watches:
    """All watches of a process in one cluster, and the thread that reads their stream.

    For a watch of a new key the stream is closed, and opened again with all watched keys, from
    their revisions on: nothing is missed. It goes on following a key for a while after its watch:
    so waiting for one change after the other opens no stream for each. etcd may report a change
    that came before the stream 100 ms late.

    Events are hints. A member that is cut off sends none and says nothing; who waits for one has to
    look now and then.
    """

    def __init__(self, open_stream: Callable[[Sequence[Json]], Stream]) -> None:
        """``open_stream`` opens the stream for some requests; Unanswered if it cannot."""
        self._open_stream = open_stream
        self._stream: Stream | None = None
        #: The thread that pops a watch from here calls back, or cancels it.
        self._watches: dict[object, KeyWatch] = {}
        self._followed: dict[Target, _Followed] = {}
        #: Wakes the thread; None while there is none.
        self._wakeups: WaitQueue[None] | None = None

    def add(
        self,
        key: str,
        since: int,
        callback: Callable[[], object],
        *,
        prefix: bool = False,
        deletes_only: bool = False,
    ) -> KeyWatch:
        """Call back once when a key changes, or may have changed, after the revision ``since``.

        The callback runs on the thread of the watches, or before this returns, and must not block.
        With ``prefix`` it is for all keys that begin with ``key``; ``deletes_only``: for no other
        changes. RuntimeError if the thread is needed, and no more threads can be started.
        """
        token = object()
        watch = KeyWatch(key, since, callback, prefix, deletes_only, token, self._cancel)
        is_set = False
        try:
            # The thread notes what it follows and has told, and then looks for watches: so what
            # one of the two does not see yet, the other one does.
            self._watches[token] = watch
            followed = self._followed.get(watch.target)
            if followed is None or since < followed.began:
                self._wake()
            elif since < followed.last:
                self._answer(watch)
            is_set = True
        finally:
            if not is_set:  # nobody would have the watch to cancel it
                watch.cancel()
        return watch

    def _cancel(self, token: object) -> bool:
        was_there = self._watches.pop(token, None) is not None
        if was_there and not self._watches:
            if (wakeups := self._wakeups) is not None:
                # The next watch may find what it wants still followed: then it wakes nobody.
                wakeups.put(None)
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
            wakeups, thread = WaitQueue(), None
            self._wakeups = wakeups
            try:
                thread = start(self._run, "distlock-etcd-watch", wakeups)
            finally:
                # No more threads, or an interrupt: the next one has to try again.
                if thread is None and self._wakeups is wakeups:
                    self._wakeups = None
        wakeups.put(None)
        self._interrupt()

    # On the thread

    def _run(self, wakeups: WaitQueue[None]) -> None:
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
                thread_logger.debug("the stream of watches broke: %s", error)
            except Exception:  # waiters look by themselves, and the stream is opened again
                thread_logger.exception("the stream of watches failed")
            _woken(wakeups, next(pauses))

    def _goes_on(self, wakeups: WaitQueue[None]) -> bool:
        """Let the thread end, unless a watch was added just before; who adds one later starts it.

        add() puts a watch, then reads ``_wakeups``. This writes ``_wakeups``, then looks for one;
        copy() takes the lock of the dictionary, so one of the two sees the other.
        """
        if self._wakeups is wakeups:
            self._wakeups = None
        if not self._watches.copy() or self._wakeups is not None:
            return False
        self._wakeups = wakeups
        return True

    def _follow(self, wanted: Mapping[object, KeyWatch], wakeups: WaitQueue[None]) -> bool:
        """Call back for events until the stream ends; False if it has ended by itself."""
        since: dict[Target, int] = {}
        for watch in wanted.values():
            since[watch.target] = min(watch.since, since.get(watch.target, watch.since))
        numbers = {number: _Followed(*one) for number, one in enumerate(since.items(), 1)}
        stream = self._open_stream(
            [_request(number, one.target, since[one.target]) for number, one in numbers.items()]
        )
        followed = {one.target: one for one in numbers.values()}
        try:
            self._stream, self._followed = stream, followed
            while wakeups.empty() and all(
                one.unwanted < _MOST_UNWANTED for one in followed.values()
            ):
                line = stream.line(_LONGEST_SILENCE if self._watches else _LINGER)
                if line is None:
                    return True
                if not line:
                    return False
                if line.strip():
                    self._on_message(json.loads(line), numbers)
            return True
        finally:
            if self._followed is followed:
                self._followed = {}
            if self._stream is stream:
                self._stream = None
            stream.close()

    def _on_message(self, message: Json, numbers: Mapping[int, _Followed]) -> None:
        result = message.get("result")
        if result is None:
            raise Unanswered(OSError(str(message.get("error"))), sent=True)
        followed = numbers.get(int(result.get("watch_id", 0)))
        if followed is None:
            return
        if result.get("canceled"):
            followed.began = math.inf
            for watch in self._watching(followed.target):
                if int(result.get("compact_revision", 0)):
                    self._answer(watch)  # what happened before that is not known any more
                else:
                    self._watches.pop(watch.token, None)
        elif events := result.get("events"):
            followed.last = max(int(event["kv"]["mod_revision"]) for event in events)
            watching = self._watching(followed.target)
            woken = [watch for watch in watching if watch.since < followed.last]
            followed.unwanted = 0 if woken else followed.unwanted + 1
            for watch in woken:
                self._answer(watch)

    def _watching(self, target: Target) -> list[KeyWatch]:
        return [watch for watch in self._watches.copy().values() if watch.target == target]

    def _answer(self, watch: KeyWatch) -> None:
        """Call back, unless another thread does, or the watch was cancelled."""
        if self._watches.pop(watch.token, None) is None:
            return
        try:
            watch.callback()
        except Exception:
            thread_logger.exception("a callback for a change of %r failed", watch.key)


def _drain(wakeups: WaitQueue[None]) -> None:
    with suppress(Empty):
        while True:
            wakeups.get(timeout=0.0)


def _woken(wakeups: WaitQueue[None], seconds: float) -> bool:
    """Wait to be woken; the wake-up stays for the one who looks for it."""
    with suppress(Empty):
        wakeups.get(timeout=seconds)
        wakeups.put(None)
        return True
    return False
