"""What the directory of a group says: who is there, and who has come or gone, in order.

For each member it has

- ``h/NONCE``: that it is there. It is bound to the session of its process, and vanishes with it.
- ``m/NONCE``: what it says of itself. It is put by the same change, and stays.
- ``g/NONCE``: how it went. Who leaves puts it by the same change. If a process has died, or was
  away for longer than its lease, whoever watches finds ``m/`` without ``h/`` and puts it, on the
  condition that nobody has.

So all who watch read of the same departures in the same order, however late they look.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from typing import Any, Literal, NamedTuple, TypeAlias

from distlock.backends.seats import held_key, owner_of, since_when
from distlock.backends.store import Absent, Delete, Exists, Put, Record, Snapshot
from distlock.concurrency.backoff import backoff
from distlock.concurrency.clock import clock
from distlock.concurrency.steps import Steps, Wait
from distlock.exceptions import LockUnavailable
from distlock.recipes.following import Follower
from distlock.recipes.recipe import Recipe
from distlock.types.lease import Owner

_MEMBER, _GONE = "m/", "g/"
#: How many departures are kept for those who have not looked yet, and with how many some go.
_KEPT, _MOST = 50, 75
#: Seconds between two attempts to note who is gone, while the backend does not let us.
_FIRST_PAUSE, _LONGEST_PAUSE = 0.05, 1.0

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


class Roll:
    """The members of a group, as a snapshot shows them."""

    def __init__(self, snapshot: Snapshot) -> None:
        self._records = snapshot.records
        self.snapshot = snapshot
        #: by nonce, what each says of itself who is there or was
        self.said = {_nonce(key): one for key, one in self._records.items() if key[:2] == _MEMBER}

    def is_there(self, nonce: str) -> bool:
        """Return whether a member is there."""
        return held_key(nonce) in self._records

    def departure(self, nonce: str) -> Record | None:
        """Return the record that says how a member went, None if there is none."""
        return self._records.get(_GONE + nonce)

    @property
    def living(self) -> tuple[Member, ...]:
        """Who is there, in the order of joining."""
        return tuple(self.member(one) for nonce, one in self.said.items() if self.is_there(nonce))

    @property
    def unnoted(self) -> list[str]:
        """The nonces of those who are gone without a word of how."""
        return [one for one in self.said if not self.is_there(one) and not self.departure(one)]

    @property
    def surplus(self) -> list[str]:
        """The nonces of those who are gone for longest, if there are too many."""
        gone = [*(_nonce(key) for key in self._records if key[:2] == _GONE), *self.unnoted]
        return gone[:-_KEPT] if len(gone) > _MOST else []

    def member(self, said: Record) -> Member:
        """Return the member that a record tells of."""
        owner, since = owner_of(said), since_when(said, self.snapshot)
        return Member(said.value["member"], owner, said.created, since, said.value["data"])


def said_key(nonce: str) -> str:
    """Return the key of what a member says of itself."""
    return _MEMBER + nonce


def departed(nonce: str, what: What) -> Put:
    """Return the change that says how a member went."""
    return Put(_GONE + nonce, {"what": what, "since": time.time_ns() // 1000})


def forgotten(nonces: list[str]) -> list[Delete]:
    """Return the changes that remove what is known of members that are gone."""
    return [Delete(kind + nonce) for nonce in nonces for kind in (_MEMBER, _GONE)]


def _nonce(key: str) -> str:
    return key[2:]


class GroupFollower(Follower[Recipe, Change]):
    """One who watches a group."""

    #: the revision of the last look
    _since: int | None = None

    def __init__(self, recipe: Recipe, deadline: float | None = None) -> None:
        super().__init__(recipe, deadline)
        #: by nonce, what each said who was there at the last look
        self._known: dict[str, Record] = {}

    def _looking(self) -> Steps[Snapshot | None]:
        """Note who has crashed; return what has this of everybody."""
        recipe, pauses = self.recipe, backoff(_FIRST_PAUSE, _LONGEST_PAUSE)
        seen = yield from super()._looking()
        while seen is not None and (roll := Roll(seen)).unnoted:
            old = roll.surplus
            crashed = [nonce for nonce in roll.unnoted if nonce not in old]
            changes: list[Put | Delete] = [departed(nonce, "crashed") for nonce in crashed]
            changes.extend(forgotten(old))
            conditions = [
                condition
                for nonce in crashed
                for condition in (Exists(said_key(nonce)), Absent(_GONE + nonce))
            ]
            note = partial(recipe._store.apply, recipe._directory, changes, conditions)
            try:
                yield recipe._ask(note, self._deadline)
            except LockUnavailable:
                yield Wait(self.stopped, clock() + next(pauses))
            seen = yield from self._looked(None)
        return seen

    def _news(self, snapshot: Snapshot) -> list[Change]:
        """Return what has changed since the last look, in order."""
        roll = Roll(snapshot)
        since = snapshot.revision if self._since is None else self._since
        before, there = self._known.copy(), {}
        found: list[tuple[int, str, What, Record]] = []
        for nonce, said in roll.said.items():
            known, gone = before.pop(nonce, None), roll.departure(nonce)
            if gone is not None and known is None and gone.created <= since:
                continue
            if known is None:
                found.append((said.created, nonce, "joined", said))
            elif gone is None and said.revision > known.revision:
                found.append((said.revision, nonce, "updated", said))
            if gone is None:
                there[nonce] = said
            else:
                found.append((gone.created, nonce, gone.value["what"], said))
        found.extend((0, nonce, "gone", said) for nonce, said in before.items())
        found.sort(key=lambda one: one[:2])
        self._since, self._known = snapshot.revision, there
        return [Change(what, roll.member(said)) for _, _, what, said in found]
