"""Watches on keys: one stream for all that a process waits for in one cluster."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from queue import Empty
from typing import TypeAlias

from distlock.backends.etcd.connections import Stream, Unanswered
from distlock.backends.etcd.messages import Json, key_range
from distlock.concurrency.clock import backoff, clock
from distlock.concurrency.threads import ThreadOnDemand, WaitQueue, thread_logger

#: A key, whether all keys that begin with it are meant, and whether only deletions count.
Target: TypeAlias = tuple[str, bool, bool]

#: Seconds that the stream stays without a watch, and then the thread: often the next watch comes
#: soon, and for the same key.
_LINGER = 1.0
#: So many keys that nobody watches any more are followed on, and so many events of such a key, one
#: after the other, are put up with.
_MOST_UNWANTED = 16
#: Seconds without a message after which the stream is opened again: its server may be cut off. It
#: has less time if it was asked something.
_LONGEST_SILENCE, _LONGEST_ANSWER = 30.0, 5.0
#: Seconds between two attempts to open the stream.
_FIRST_PAUSE, _LONGEST_PAUSE = 0.05, 2.0


@dataclass(slots=True)
class _Followed:
    """What the stream follows; only the thread writes it."""

    target: Target
    #: by which the stream calls it
    number: int
    #: the revision of the last change that the stream has told of, or at first the one after which
    #: it follows; 0 until that is known
    last: int = 0
    #: how many changes it has told since somebody waited for one
    unwanted: int = 0


@dataclass(eq=False, slots=True)
class KeyWatch:
    """A watch on a key, or on all keys that begin with it, for one callback."""

    target: Target
    #: the revision after which a change counts
    since: int
    _cancel: Callable[[KeyWatch], bool] = field(repr=False)

    def cancel(self) -> bool:
        """Do not call back; False if it was called, or is about to be."""
        return self._cancel(self)


class Watches(ThreadOnDemand[None]):
    """All watches of a process in one cluster, and the thread that reads their stream.

    Each key is followed from now on, and never from an earlier revision: etcd would report what
    comes up to 100 ms late then (``syncWatchersLoop`` in its ``mvcc/watchable_store.go``). When it
    is followed, etcd says after which revision: who has not seen that one is called back, once, and
    has to look. So nothing is missed between a look and its watch, nor while there was no stream.

    The stream stays open when a new key is to be followed. It goes on following a key for a while
    after its watch: so waiting for one change after the other asks nothing of etcd.

    Events are hints. A member that is cut off sends none and says nothing; who waits for one has to
    look now and then.
    """

    def __init__(self, open_stream: Callable[[Sequence[Json]], Stream]) -> None:
        """``open_stream`` opens the stream for some requests; Unanswered if it cannot."""
        super().__init__("distlock-etcd-watch")
        self._open_stream = open_stream
        self._stream: Stream | None = None
        #: Their callbacks. The thread that pops one from here calls or cancels it.
        self._watches: dict[KeyWatch, Callable[[], object]] = {}
        self._followed: dict[Target, _Followed] = {}
        self._last_number = 0  # none is used twice on a stream: a late message is of no other key
        #: the pauses before the stream is opened; they start short after each stream that works
        self._pauses = backoff(_FIRST_PAUSE, _LONGEST_PAUSE)

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
        Its errors in the latter case are raised here. With ``prefix`` it is for all keys that begin
        with ``key``; ``deletes_only``: for no other changes. RuntimeError if the thread is needed,
        and no more threads can be started.
        """
        watch, is_set = KeyWatch((key, prefix, deletes_only), since, self._cancel), False
        try:
            # The thread notes what it follows and has told, and then looks for watches: so what
            # one of the two does not see yet, the other one does.
            self._watches[watch] = callback
            followed = self._followed.get(watch.target)
            if followed is None:
                self._have_thread().put(None)
                if (stream := self._stream) is not None:
                    stream.wake()
            elif since < followed.last and self._watches.pop(watch, None) is not None:
                callback()  # what is raised here is the caller's own: it may be an interrupt
            is_set = True
        finally:
            if not is_set:  # nobody would have the watch to cancel it
                watch.cancel()
        return watch

    def _cancel(self, watch: KeyWatch) -> bool:
        was_there = self._watches.pop(watch, None) is not None
        if was_there and not self._watches and (stream := self._stream) is not None:
            stream.wake()  # it lingers from now on
        return was_there

    def close(self) -> None:
        """Watch nothing any more; the thread ends soon."""
        self._watches.clear()
        if (stream := self._stream) is not None:
            stream.interrupt()

    # On the thread

    def _run(self, wakeups: WaitQueue[None]) -> None:
        while self._wakeups is wakeups:
            _drained(wakeups)
            if not self._watches:
                if not _woken(wakeups, _LINGER) and self._may_end(wakeups, self._watches.copy):
                    return
                continue
            try:
                if self._follow(wakeups):
                    continue
            except Unanswered as error:
                thread_logger.debug("the stream of watches broke: %s", error)
            except Exception:  # waiters look by themselves, and the stream is opened again
                thread_logger.exception("the stream of watches failed")
            _woken(wakeups, next(self._pauses))

    def _follow(self, wakeups: WaitQueue[None]) -> bool:
        """Call back for events until the stream ends; False if it has ended by itself."""
        self._followed = followed = dict[Target, _Followed]()
        stream: Stream | None = None
        try:
            if not (requests := self._requests(followed)):
                return True  # what was watched a moment ago is watched no more
            stream = self._stream = self._open_stream(requests)
            ends = clock() + _LONGEST_SILENCE
            while self._wakeups is wakeups:
                if _drained(wakeups) and (requests := self._requests(followed)):
                    stream.send(requests)
                    ends = min(ends, clock() + _LONGEST_ANSWER)
                until = ends if self._watches else min(ends, clock() + _LINGER)
                line = stream.line(until)
                if line:
                    ends = clock() + _LONGEST_SILENCE
                    if line.strip() and self._on_message(json.loads(line), followed):
                        wakeups.put(None)
                    self._pauses = backoff(_FIRST_PAUSE, _LONGEST_PAUSE)
                elif line is not None:
                    return False
                elif clock() >= until:
                    return True
            return True
        finally:
            if self._followed is followed:
                self._followed = {}
            if self._stream is stream:
                self._stream = None
            if stream is not None:
                stream.close()

    def _requests(self, followed: dict[Target, _Followed]) -> list[Json]:
        """Note what is followed from here on, and what no more; return the requests for that."""
        requests: list[Json] = []
        wanted = self._wanted()
        many = len(followed) > len(wanted) + _MOST_UNWANTED
        for target, one in [*followed.items()]:
            if target not in wanted and (many or one.unwanted >= _MOST_UNWANTED):
                del followed[target]
                requests.append({"cancel_request": {"watch_id": one.number}})
        # A second look: add() may have found a key that is now left out, and have woken nobody.
        for target in self._wanted() - followed.keys():
            self._last_number += 1
            followed[target] = _Followed(target, self._last_number)
            key, prefix, deletes_only = target
            how = key_range(key, prefix) | ({"filters": ["NOPUT"]} if deletes_only else {})
            requests.append({"create_request": {"watch_id": self._last_number, **how}})
        return requests

    def _wanted(self) -> set[Target]:
        return {watch.target for watch in self._watches.copy()}

    def _on_message(self, message: Json, followed: dict[Target, _Followed]) -> bool:
        """Call back who waits for what it tells; return whether that is followed in vain."""
        result = message.get("result")
        if result is None:
            raise Unanswered(OSError(str(message.get("error"))), sent=True)
        is_over = bool(result.get("canceled"))
        if is_over and result.get("created"):  # the stream's token may be too old
            raise Unanswered(OSError(str(result.get("cancel_reason"))), sent=True)
        number, events = int(result.get("watch_id", 0)), result.get("events", ())
        one = next((one for one in followed.values() if one.number == number), None)
        if one is None:
            return False  # it was cancelled
        if is_over:
            del followed[one.target]  # what has happened was compacted
        elif events:
            one.last = max(one.last, *(int(event["kv"]["mod_revision"]) for event in events))
        elif result.get("created"):
            # It follows from the next revision on: who has not seen this one has to look.
            one.last = int(result["header"]["revision"])
        watching = [watch for watch in self._watches.copy() if watch.target == one.target]
        woken = [watch for watch in watching if is_over or watch.since < one.last]
        one.unwanted = one.unwanted + 1 if events and not woken else 0
        for watch in woken:
            self._answer(watch)
        return one.unwanted == _MOST_UNWANTED

    def _answer(self, watch: KeyWatch) -> None:
        """Call back, unless another thread does, or the watch was cancelled."""
        callback = self._watches.pop(watch, None)
        if callback is None:
            return
        try:
            callback()
        except Exception:
            thread_logger.exception("a callback for a change of %r failed", watch.target[0])


def _drained(wakeups: WaitQueue[None]) -> bool:
    """Take all wake-ups; return whether there was one."""
    was_woken = False
    with suppress(Empty):
        while True:
            wakeups.get(timeout=0.0)
            was_woken = True
    return was_woken


def _woken(wakeups: WaitQueue[None], seconds: float) -> bool:
    """Wait to be woken; the wake-up stays for the one who looks for it."""
    with suppress(Empty):
        wakeups.get(timeout=seconds)
        wakeups.put(None)
        return True
    return False
