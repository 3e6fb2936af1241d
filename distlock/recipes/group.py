"""A group: which processes are there, what each says of itself, and who has come or gone."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from functools import partial
from typing import Any

from distlock.backends.recipe_records import Plan
from distlock.backends.seats import held_key, value_of
from distlock.backends.store import Delete, Exists, Put, Snapshot
from distlock.concurrency.steps import Steps
from distlock.conf import DEFAULT_ALIAS
from distlock.core.section import refuse_in_event_loop
from distlock.exceptions import LockLost
from distlock.recipes.following import Watch, aeach, each
from distlock.recipes.group_records import (
    Change,
    GroupFollower,
    Member,
    Roll,
    departed,
    forgotten,
    said_key,
)
from distlock.recipes.membership import Membership
from distlock.recipes.recipe import Entered, deadline_of
from distlock.recipes.semaphore import checked_count
from distlock.recipes.twins import twins
from distlock.types.arguments import checked_callback, checked_data, checked_name, checked_token
from distlock.types.lease import Claim, Kind, Lease

logger = logging.getLogger("distlock")


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

    def _entering(self) -> Steps[int]:
        """Become a member, unless this object is one; return the token.

        LockUnavailable if the backend cannot be asked: then it is no member.
        """
        self._lost = None  # who was removed may join again, if asked to
        yield from self._membership.joining()
        return self._membership.check().token

    join, ajoin = twins("join", _entering)

    def _leaving(self) -> Steps[bool]:
        """Be no member any more; False if it was none, by then.

        LockUnavailable if the backend cannot be told; that is done later, or with the lease's end.
        """
        return self._leaving_by(None)

    leave, aleave = twins("leave", _leaving)

    def _leaving_by(self, deadline: float | None) -> Steps[bool]:
        return self._membership.leaving(
            deadline=deadline, beside=lambda claim: [departed(claim.nonce, "left")]
        )

    def _update(self, data: Mapping[str, Any]) -> Steps[None]:
        """Say something else of this member, from now on, also when it joins again.

        Raises LockNotHeld if it is no member; LockLost if it was lost and is not back yet: it will
        come back with the new data; LockUnavailable if the backend cannot be asked.
        """
        checked = checked_data("data", data)
        try:
            nonce = self._membership.check().nonce
        except LockLost:
            self._data = checked
            raise
        self._data = checked

        def plan(snapshot: Snapshot) -> Plan:
            here = snapshot.records.get(held_key(nonce))
            said = snapshot.records.get(said_key(nonce))
            if here is None or said is None:
                return Plan(result=False)
            put = Put(said.key, {**said.value, "data": checked})
            # The revision keeps an earlier update, whose answer was lost, from undoing this one.
            conditions = Exists(here.key), Exists(said.key, said.revision)
            return Plan([put], conditions, True)

        if not (yield self._change(plan)).result:
            raise LockLost(f"{self!r}: this member is gone")

    update, aupdate = twins("update", _update)

    @property
    def joined(self) -> bool:
        """Whether this is a member now, by what this process knows. Asks nobody."""
        return self._membership.held

    @property
    def token(self) -> int:
        """The token of this member; LockNotHeld or LockLost if it is none now. Asks nobody."""
        return self._membership.check().token

    # Looking

    def _members(self) -> Steps[tuple[Member, ...]]:
        """Return who is there, in the order in which they have joined."""
        return Roll((yield self._read())).living

    members, amembers = twins("members", _members)

    def _wait_for(self, count: int, timeout: float | None = None) -> Steps[bool]:
        """Wait until there are at least ``count`` members; False if not within so many seconds.

        LockUnavailable if the backend does not answer until then, or for the length of a lease.
        """
        checked_count("count", count)

        def look(snapshot: Snapshot) -> bool | None:
            return len(Roll(snapshot).living) >= count or None

        return bool((yield from self._until(look, deadline_of(timeout))))

    wait_for, await_for = twins("wait_for", _wait_for)

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
        return each(GroupFollower(self, deadline_of(timeout)))

    def achanges(self, timeout: float | None = None) -> AsyncIterator[Change]:
        """See changes()."""
        return aeach(GroupFollower(self, deadline_of(timeout)))

    def watch(self, callback: Callable[[Change], object]) -> Watch:
        """Call ``callback(change)`` for each change, as Config.watch() does for values."""
        if callback is None:
            raise TypeError("callback must be callable, not None")
        checked_callback("callback", callback)
        return Watch(partial(GroupFollower, self), callback)

    def _remove(self, token: int) -> Steps[bool]:
        """Remove the member that has this token, as an operator; False if it is not there.

        It learns of it with its next renewal, and does not join again by itself.
        """
        checked_token(token)

        def plan(snapshot: Snapshot) -> Plan:
            for nonce, said in Roll(snapshot).said.items():
                if said.created == token and (held := held_key(nonce)) in snapshot.records:
                    changes = (Delete(held), departed(nonce, "removed"))
                    return Plan(changes, [Exists(held)], said.value["member"])
            return Plan()

        removed = (yield self._change(plan)).result
        if removed is not None:
            logger.warning("%r: removed the member %r, token %d", self, removed, token)
        return removed is not None

    remove, aremove = twins("remove", _remove)

    # Inside

    def _plan(self, snapshot: Snapshot) -> Plan:
        """Plan to join; not after having been removed."""
        if self._lost is not None:
            gone = Roll(snapshot).departure(self._lost.nonce)
            if gone is not None and gone.value["what"] == "removed":
                logger.warning("%r: this member was removed, and does not join again", self)
                return Plan()
        return Plan(forgotten(Roll(snapshot).surplus), data={}, beside=self._describe)

    def _describe(self, claim: Claim) -> list[Put]:
        name = self._member or f"{claim.owner.host}:{claim.owner.pid}"
        value = {**value_of(claim), "member": name, "data": self._data}
        return [Put(said_key(claim.nonce), value)]

    def _note_loss(self, lease: Lease) -> None:
        self._lost = lease
