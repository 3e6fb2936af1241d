"""A group: which processes are there, what each says of itself, and who has come or gone.

For each member its directory has

- ``h/NONCE``: that it is there. It is bound to the session of its process, and vanishes with it.
- ``m/NONCE``: what it says of itself. It is put by the same change, and stays.
- ``g/NONCE``: how it went. Who leaves puts it by the same change. If a process has died, or was
  away for longer than its lease, whoever watches finds ``m/`` without ``h/`` and puts it, on the
  condition that nobody has.

So all who watch read of the same departures in the same order, however late they look.
"""

from __future__ import annotations

import logging
import math
import os
import socket
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from typing import Any, Literal, NamedTuple, TypeAlias

from distlock.backends.recipe_records import Plan
from distlock.backends.seats import held_key, owner_of, since_when, value_of
from distlock.backends.store import Absent, Delete, Exists, Put, Record, Snapshot
from distlock.concurrency.backoff import backoff
from distlock.concurrency.clock import clock
from distlock.concurrency.steps import Sleep, Steps, arun, run
from distlock.conf import DEFAULT_ALIAS
from distlock.core.section import refuse_in_event_loop
from distlock.exceptions import LockLost, LockNotHeld, LockUnavailable
from distlock.recipes.membership import Membership
from distlock.recipes.recipe import Entered, deadline_of
from distlock.recipes.semaphore import checked_count
from distlock.types.arguments import checked_data, checked_name, checked_token
from distlock.types.lease import Claim, Kind, Lease, Owner

logger = logging.getLogger("distlock")

_MEMBER, _GONE = "m/", "g/"
#: How many departures are kept for those who have not looked yet, and with how many some go.
_KEPT, _MOST = 50, 75
#: Seconds between two attempts to note who is gone, while the backend does not let us.
_FIRST_PAUSE, _LONGEST_PAUSE = 0.05, 1.0

Changes: TypeAlias = list[Put | Delete]
What: TypeAlias = Literal["joined", "updated", "left", "crashed", "removed", "gone"]


@dataclass(frozen=True, slots=True)
class Member:
    """One who is, or was, in a group.

    ``token`` grows with every join, so it tells two members of one name apart. ``owner`` has the
    host, process id and thread or task that joined; ``since`` is when.
    """

    name: str
    owner: Owner
    token: int
    since: datetime
    data: Mapping[str, Any] = field(hash=False)


class Change(NamedTuple):
    """What has become of a member; see Group.changes()."""

    what: What
    member: Member


class Group(Entered):
    """Which processes are there: each joins with a name and some data, and all see who is there.

    A member that has left is gone at once, one whose process died within a lease. One that was
    away for longer than its lease (stopped, or cut off) counts as crashed, and joins again by
    itself, as a new member with a new token, as soon as the backend answers. It leaves with
    ``leave()``, at the end of the ``with`` block, or when this object is garbage. After a fork the
    child is no member.
    """

    kind = Kind.GROUP

    def __init__(
        self,
        name: str,
        member: str | None = None,
        *,
        data: Mapping[str, Any] | None = None,
        using: str = DEFAULT_ALIAS,
    ) -> None:
        """Describe a group, and who joins it here; nothing is asked yet.

        - ``name``: as of a Lock.
        - ``member``: what the member is called; host and process id if it is not given. Several
          may have one name: their tokens differ.
        - ``data``: what it says of itself, at most 4 KiB of JSON.
        - ``using``: the alias of a backend.

        Raises TypeError or ValueError that names the argument and its value.
        """
        super().__init__(name, using)
        self._member = None if member is None else checked_name(member, "member")
        self._data = checked_data("data", data)
        self._lost: Lease | None = None
        self._membership = Membership(self, self._plan, rejoins=True, on_lost=self._note_loss)

    # Being a member

    @refuse_in_event_loop
    def join(self) -> int:
        """Become a member, unless this object is one; return the token.

        LockUnavailable if the backend cannot be asked: then it is no member.
        """
        return run(self._entering())

    async def ajoin(self) -> int:
        """See join()."""
        return await arun(self._entering())

    @refuse_in_event_loop
    def leave(self) -> bool:
        """Be no member any more; False if it was none, by then.

        LockUnavailable if the backend cannot be told; that is done later, or with the lease's end.
        """
        return run(self._leaving())

    async def aleave(self) -> bool:
        """See leave()."""
        return await arun(self._leaving())

    @refuse_in_event_loop
    def update(self, data: Mapping[str, Any]) -> None:
        """Say something else of this member, from now on, also when it joins again.

        Raises LockNotHeld if it is no member; LockLost if it was lost and is not back yet: it will
        come back with the new data; LockUnavailable if the backend cannot be asked.
        """
        run(self._updating(data))

    async def aupdate(self, data: Mapping[str, Any]) -> None:
        """See update()."""
        await arun(self._updating(data))

    @property
    def joined(self) -> bool:
        """Whether this is a member now, by what this process knows. Asks nobody."""
        return self._membership.held

    @property
    def token(self) -> int:
        """The token of this member; LockNotHeld or LockLost if it is none now. Asks nobody."""
        return self._membership.check().token

    # Looking

    @refuse_in_event_loop
    def members(self) -> tuple[Member, ...]:
        """Return who is there, in the order in which they have joined."""
        return _living(run(self._reading()))

    async def amembers(self) -> tuple[Member, ...]:
        """See members()."""
        return _living(await arun(self._reading()))

    @refuse_in_event_loop
    def wait_for(self, count: int, timeout: float | None = None) -> bool:
        """Wait until there are at least ``count`` members; False if not within so many seconds.

        LockUnavailable if the backend does not answer until then, or for the length of a lease.
        """
        return bool(run(self._waiting_for(count, timeout)))

    async def await_for(self, count: int, timeout: float | None = None) -> bool:
        """See wait_for()."""
        return bool(await arun(self._waiting_for(count, timeout)))

    @refuse_in_event_loop
    def changes(self, timeout: float | None = None) -> Iterator[Change]:
        """Yield who is there, each as "joined", and then what changes, for ``timeout`` seconds.

        All who watch get the same, each join and each departure once and in order: "left" by its
        own wish, "crashed" if its process died or was away for longer than its lease, "removed" by
        an operator. Changes of one member's data between two looks are one "updated".

        It goes on through outages. A watcher that has missed more departures than are kept, which
        are 50 at least, is told of members it knew as "gone", and not of those that both came and
        went meanwhile.
        """
        return self._changes(deadline_of(timeout))

    def _changes(self, deadline: float | None) -> Iterator[Change]:
        watcher = _Watcher(self, deadline)
        while (found := run(watcher.next())) is not None:
            yield from found

    async def achanges(self, timeout: float | None = None) -> AsyncIterator[Change]:
        """See changes()."""
        watcher = _Watcher(self, deadline_of(timeout))
        while (found := await arun(watcher.next())) is not None:
            for change in found:
                yield change

    @refuse_in_event_loop
    def remove(self, token: int) -> bool:
        """Remove the member that has this token, as an operator; False if it is not there.

        It learns of it with its next renewal, and does not join again by itself.
        """
        return run(self._removing(token))

    async def aremove(self, token: int) -> bool:
        """See remove()."""
        return await arun(self._removing(token))

    # Inside

    def _entering(self) -> Steps[int]:
        self._lost = None  # who was removed may join again, if asked to
        yield from self._membership.joining()
        return self._membership.check().token

    def _leaving(self, deadline: float | None = None) -> Steps[bool]:
        return self._membership.leaving(
            deadline=deadline, beside=lambda claim: [_gone(claim.nonce, "left")]
        )

    def _plan(self, snapshot: Snapshot) -> Plan:
        """Plan to join; not after having been removed."""
        if self._lost is not None:
            gone = snapshot.records.get(_GONE + self._lost.nonce)
            if gone is not None and gone.value["what"] == "removed":
                logger.warning("%r: this member was removed, and does not join again", self)
                return Plan()
        surplus = tuple(map(Delete, _surplus(snapshot)))
        return Plan(surplus, data={}, beside=self._describe)

    def _describe(self, claim: Claim) -> list[Put]:
        name = self._member or f"{socket.gethostname()}:{os.getpid()}"
        value = {**value_of(claim), "member": name, "data": self._data}
        return [Put(_MEMBER + claim.nonce, value)]

    def _note_loss(self, lease: Lease) -> None:
        self._lost = lease

    def _updating(self, data: Mapping[str, Any]) -> Steps[None]:
        checked = checked_data("data", data)
        try:
            nonce = self._membership.check().nonce
        except LockNotHeld:
            raise
        except LockLost:
            self._data = checked
            raise
        self._data = checked

        def plan(snapshot: Snapshot) -> Plan:
            here = snapshot.records.get(held_key(nonce))
            said = snapshot.records.get(_MEMBER + nonce)
            if here is None or said is None:
                return Plan(result=False)
            put = Put(said.key, {**said.value, "data": checked})
            # The revision keeps an earlier update, whose answer was lost, from undoing this one.
            conditions = Exists(here.key), Exists(said.key, said.revision)
            return Plan([put], conditions, True)

        if not (yield self._change(plan)).result:
            raise LockLost(f"{self!r}: this member is gone")

    def _reading(self) -> Steps[Snapshot]:
        return (yield self._read())  # type: ignore[no-any-return]

    def _waiting_for(self, count: int, timeout: float | None) -> Steps[bool | None]:
        checked_count("count", count)

        def look(snapshot: Snapshot) -> bool | None:
            return len(_living(snapshot)) >= count or None

        return (yield from self._until(look, deadline_of(timeout)))

    def _removing(self, token: int) -> Steps[bool]:
        checked_token(token)

        def plan(snapshot: Snapshot) -> Plan:
            for record in _records(snapshot, _MEMBER):
                held = held_key(_nonce(record))
                if record.created == token and held in snapshot.records:
                    changes: Changes = [Delete(held), _gone(_nonce(record), "removed")]
                    return Plan(changes, [Exists(held)], record.value["member"])
            return Plan()

        removed = (yield self._change(plan)).result
        if removed is not None:
            logger.warning("%r: removed the member %r, token %d", self, removed, token)
        return removed is not None


class _Watcher:
    """What one who watches a group has been told of."""

    def __init__(self, group: Group, deadline: float | None) -> None:
        self._group = group
        self._deadline = deadline
        self._seen: Snapshot | None = None
        #: by nonce, the record of each member that is there
        self._known: dict[str, Record] = {}

    def next(self) -> Steps[list[Change] | None]:
        """Return what has changed since the last call; None at the deadline."""
        group, deadline = self._group, self._deadline
        while True:
            if self._seen is None:
                found = yield from group._read_patiently(deadline, patience=math.inf)
            elif deadline is not None and clock() >= deadline:
                return None
            else:
                found = yield from group._read_later(self._seen, deadline, patience=math.inf)
            found = yield from self._settled(found)
            changes = self._compare(found)
            self._seen = found
            if changes:
                return changes

    def _settled(self, snapshot: Snapshot) -> Steps[Snapshot]:
        """Note who has crashed; return a snapshot that has this of everybody."""
        group, deadline = self._group, self._deadline
        pauses = backoff(_FIRST_PAUSE, _LONGEST_PAUSE)
        while crashed := _unnoted(snapshot):
            too_old = set(_surplus(snapshot))
            noted = [nonce for nonce in crashed if _MEMBER + nonce not in too_old]
            changes: Changes = [_gone(nonce, "crashed") for nonce in noted]
            changes.extend(map(Delete, too_old))
            conditions = [
                condition
                for nonce in noted
                for condition in (Exists(_MEMBER + nonce), Absent(_GONE + nonce))
            ]
            note = partial(group._store.apply, group._directory, changes, conditions)
            try:
                yield group._ask(note, deadline)
            except LockUnavailable:
                if deadline is not None and clock() >= deadline:
                    raise
                yield Sleep(next(pauses))
            snapshot = yield from group._read_patiently(deadline, patience=math.inf)
        return snapshot

    def _compare(self, snapshot: Snapshot) -> list[Change]:
        since = snapshot.revision if self._seen is None else self._seen.revision
        before, self._known = self._known, {}
        found: list[tuple[int, str, What, Record]] = []
        for record in _records(snapshot, _MEMBER):
            nonce, known = _nonce(record), before.pop(_nonce(record), None)
            gone = snapshot.records.get(_GONE + nonce)
            if gone is not None and known is None and gone.created <= since:
                continue
            if known is None:
                found.append((record.created, nonce, "joined", record))
            elif record.revision > known.revision and gone is None:
                found.append((record.revision, nonce, "updated", record))
            if gone is None:
                self._known[nonce] = record
            else:
                found.append((gone.created, nonce, gone.value["what"], record))
        found.extend((0, nonce, "gone", record) for nonce, record in before.items())
        found.sort(key=lambda one: one[:2])
        return [Change(what, _member(record, snapshot)) for _, _, what, record in found]


def _records(snapshot: Snapshot, kind: str) -> list[Record]:
    return [record for key, record in snapshot.records.items() if key.startswith(kind)]


def _nonce(record: Record) -> str:
    return record.key.partition("/")[2]


def _living(snapshot: Snapshot) -> tuple[Member, ...]:
    return tuple(
        _member(record, snapshot)
        for record in _records(snapshot, _MEMBER)
        if held_key(_nonce(record)) in snapshot.records
    )


def _member(record: Record, snapshot: Snapshot) -> Member:
    value = record.value
    owner, since = owner_of(record), since_when(record, snapshot)
    return Member(value["member"], owner, record.created, since, value["data"])


def _unnoted(snapshot: Snapshot) -> list[str]:
    """Return the nonces of those who are gone without a note of how."""
    nonces = map(_nonce, _records(snapshot, _MEMBER))
    return [
        nonce
        for nonce in nonces
        if held_key(nonce) not in snapshot.records and _GONE + nonce not in snapshot.records
    ]


def _surplus(snapshot: Snapshot) -> list[str]:
    """Return the keys of those who are gone for longest, if there are too many."""
    gone = [*map(_nonce, _records(snapshot, _GONE)), *_unnoted(snapshot)]
    if len(gone) <= _MOST:
        return []
    return [kind + nonce for nonce in gone[:-_KEPT] for kind in (_MEMBER, _GONE)]


def _gone(nonce: str, what: What) -> Put:
    return Put(_GONE + nonce, {"what": what, "since": time.time_ns() // 1000})
