"""A group: which processes are there, what each says of itself, and who has come or gone.

For each member its directory has

- ``h/NONCE``: that it is there. It is bound to the session of its process, and vanishes with it.
- ``m/NONCE``: what it says of itself. It is put by the same change, and stays. A leaving member
  puts it once more, with how it went. If a process has died, or was away for longer than its lease,
  a watcher finds ``m/`` without ``h/`` and does that, unless another one has.

So all who watch read of the same departures in the same order, however late they look.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from operator import itemgetter
from typing import Any, ClassVar, Literal, NamedTuple, TypeAlias

from django.utils.translation import gettext_lazy as _
from django.utils.translation import ngettext

from distlock.backends.store import Delete, Exists, Peek, Put, Record, Snapshot
from distlock.concurrency.steps import Steps
from distlock.conf import DEFAULT_ALIAS
from distlock.exceptions import LockLost, LockUnavailable
from distlock.locking.base_lock import twins
from distlock.recipes.cells import Cell, Columns, some_of
from distlock.recipes.description import Description, Detail, Ref, Table
from distlock.recipes.following import Follower, Watch
from distlock.recipes.membership import Membership
from distlock.recipes.recipe import Block, Recipe, deadline_of
from distlock.records.recipe_records import Plan
from distlock.records.seats import held_key, owner_of, since_when, value_of
from distlock.types.lease import Claim, Kind, Owner
from distlock.types.values import checked_count, checked_data, checked_name

_MEMBER = "m/"
#: How many departures are kept for those who have not looked yet, and how many are noted or
#: removed in one change: a server may take no more than 128 parts.
_KEPT = _AT_ONCE = 50

What: TypeAlias = Literal["joined", "updated", "left", "crashed"]


@dataclass(frozen=True, slots=True)
class Member:
    """One who is, or was, in a group.

    ``token`` grows with every join, so it tells two members of one name apart. ``owner`` has the
    host, process id and thread or task that joined; ``since`` is when. ``data`` is what it says of
    itself.
    """

    name: str
    owner: Owner
    token: int
    since: datetime
    data: Mapping[str, Any] = field(hash=False)


class Change(NamedTuple):
    """What has become of a member; see Group.changes().

    ``what`` is "joined", "updated", "left" or "crashed", ``member`` who it is about.
    """

    what: What
    member: Member


class Group(Block, Recipe):
    """The living processes: each joins with a name and some data, and all see all members.

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

        - ``name``: as for a Lock.
        - ``member``: what the member is called; host and process id if it is not given. Several
          may have one name: their tokens differ.
        - ``data``: what it says of itself, at most 4 KiB of JSON.
        - ``using``: the alias of a backend.

        Raises TypeError or ValueError that names the argument and its value.
        """
        super().__init__(name, using)
        self._member = None if member is None else checked_name(member, "member")
        #: what it says of itself as a member
        self._said: dict[str, Any] = {"data": checked_data(data)}
        self._membership = Membership(self, self._plan, rejoins=True, read=self._look)

    # Being a member

    def _entering(self) -> Steps[int]:
        """Become a member, unless this object is one; return the token.

        LockUnavailable if the backend does not answer: then it is no member.
        """
        yield from self._membership.joining()
        # One that is lost again by now joins again by itself.
        return (self._membership.lease or self._membership.check()).token

    join, ajoin = twins("join", _entering)

    def _leaving(self, timeout: float | None = None) -> Steps[bool]:
        """Be no member any more; False if it was none, by then.

        LockUnavailable if the backend does not answer, or not in ``timeout`` seconds; the member
        leaves later, or with the lease's end.
        """
        plan = Plan(member_changes=self._departure)
        return self._membership.leaving(plan, deadline_of(timeout))

    leave, aleave = twins("leave", _leaving, leaves=True)

    def _update(self, data: Mapping[str, Any]) -> Steps[None]:
        """Change the ``data`` of this member, from now on, also when it joins again.

        Raises LockNotHeld if it is no member; LockLost if it was lost and is not back yet: it will
        come back with the new data; LockUnavailable if the backend does not answer.
        """
        said = {**self._said, "data": checked_data(data)}
        if self._membership.lease is not None:
            self._said = said
        nonce = self._membership.check().nonce
        # The condition is for one that is lost just now, and has joined again.
        put, there = Put(_MEMBER + nonce, said), Exists(held_key(nonce))
        if (yield from self._membership.updating({}, Plan([put], [there]))) is None:
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
        """Return the members, in the order in which they have joined.

        Raises LockUnavailable if the backend does not answer.
        """
        roll = Roll((yield self._read()))
        return tuple(map(roll.member, roll.there.values()))

    members, amembers = twins("members", _members)

    def _wait_for(self, count: int, timeout: float | None = None) -> Steps[bool]:
        """Wait until there are at least ``count`` members; False if not within ``timeout`` seconds.

        LockUnavailable if the backend does not answer until then, or for the length of a lease.
        """
        checked_count("count", count)
        come = self._until(lambda now: len(Roll(now).there) >= count or None, deadline_of(timeout))
        return bool((yield from come))

    wait_for, await_for = twins("wait_for", _wait_for)

    def changes(self, timeout: float | None = None) -> Follower[Change]:
        """Yield the members, each as "joined", and then the changes, for ``timeout`` seconds.

        All who watch get the same, each join and each departure once and in order: "left" by its
        own wish, "crashed" if its process died or was away for longer than its lease. Changes of
        one member's data between two looks are one "updated".

        It goes on through outages. A watcher that has missed more departures than are kept, at
        least 50, sees all members that it knew as "crashed". It does not see those that both came
        and went meanwhile.
        """
        return _MembersWatcher(self, deadline_of(timeout))

    achanges = changes

    def watch(self, callback: Callable[[Change], object]) -> Watch:
        """Call ``callback(change)`` for each change; return and raise as Config.watch() does."""
        return Watch(partial(_MembersWatcher, self), callback)

    # Inside

    def _look(self, deadline: float | None) -> Snapshot:
        """Read what joining depends on: no records, unless some are to be removed."""
        there = held_key("")
        seen = self._store.peek(self._directory, Peek(count=[there, _MEMBER]), deadline)
        if seen.counts[_MEMBER] - seen.counts[there] <= _KEPT:
            return seen
        return self._store.read(self._directory, deadline)

    def _plan(self, snapshot: Snapshot) -> Plan:
        old = Roll(snapshot).gone[:-_KEPT][:_AT_ONCE]
        return Plan([Delete(one.key) for one in old], members=[{}], member_changes=self._describe)

    def _describe(self, claim: Claim) -> list[Put]:
        name = self._member or f"{claim.owner.host}:{claim.owner.pid}"
        self._said = {**self._said, **value_of(claim), "member": name}
        return [Put(_MEMBER + claim.nonce, self._said)]

    def _departure(self, claim: Claim) -> list[Put]:
        return [Put(_MEMBER + claim.nonce, {**self._said, "went": "left"})]


class _MembersWatcher(Follower[Change]):
    """One who watches a group."""

    #: the revision of the last look
    _since: int | None = None
    #: by nonce, the value of each member that was reported as joined, and not as gone
    _known: Mapping[str, Record] = {}

    def _looking(self) -> Steps[Snapshot | None]:
        """Note crashed members, unless another one has; the next look reports them."""
        seen: Snapshot | None = yield from super()._looking()
        gone = [] if seen is None else Roll(seen).gone
        if crashed := [one for one in gone if _how(one) is None][:_AT_ONCE]:
            changes = [Put(one.key, {**one.value, "went": "crashed"}) for one in crashed]
            same = [Exists(one.key, one.revision) for one in crashed]
            note = partial(self.recipe._store.apply, self.recipe._directory, changes, same)
            with suppress(LockUnavailable):
                yield self.recipe._ask(note, self._deadline)
        return seen

    def _news(self, snapshot: Snapshot) -> list[Change]:
        """Return what has changed since the last look, in order."""
        roll, since, known = Roll(snapshot), self._since, self._known
        there, told = dict[str, Record](), list[tuple[int, What, Record]]()
        for nonce, said in roll.said.items():
            before, how = known.get(nonce), _how(said)
            if nonce in roll.there if since is None else said.created > since:
                told.append((said.created, "joined", said))
            elif before is None:
                continue  # it was gone when watching began, or its departure was reported
            elif how is None and said.revision > before.revision:
                told.append((said.revision, "updated", said))
            if how is None:
                there[nonce] = said
            else:
                told.append((said.revision, how, said))
        told += [(0, "crashed", said) for nonce, said in known.items() if nonce not in roll.said]
        told.sort(key=itemgetter(0))  # those of one change stay in the order of joining
        self._since, self._known = snapshot.revision, there
        return [Change(what, roll.member(said)) for _, what, said in told]


class Roll:
    """The members of a group, as a snapshot shows them."""

    def __init__(self, snapshot: Snapshot) -> None:
        self.snapshot = snapshot
        records = snapshot.records
        #: by nonce, the values of present and former members; and the present ones
        self.said = {key[2:]: one for key, one in records.items() if key.startswith(_MEMBER)}
        self.there = {key: one for key, one in self.said.items() if held_key(key) in records}
        gone = [one for key, one in self.said.items() if key not in self.there]
        #: those who are gone, as they went; at last those of whom that is not noted yet
        self.gone = sorted(gone, key=lambda said: (_how(said) is None, said.revision))

    def member(self, said: Record) -> Member:
        """Return the member that a record tells of."""
        owner, since = owner_of(said), since_when(said, self.snapshot)
        return Member(said.value["member"], owner, said.created, since, said.value["data"])


def _how(said: Record) -> What | None:
    """Return how a member went; None if it is there, or nobody has noted that."""
    return said.value.get("went")  # type: ignore[no-any-return]


def _last_joined(members: Sequence[Member]) -> datetime | None:
    return members[-1].since if members else None


class GroupDescription(Description[Sequence[Member]]):
    """The members of a group: since when they are there, and their data."""

    list_help = "List the groups, with their numbers of members."
    show_help = "Show the members of a group."
    empty = _("Groups are listed here once a process has joined one.")
    missing = "nobody is in group {}"
    entries = "members"
    columns: ClassVar[Columns[Sequence[Member]]] = (
        (_("Members"), lambda group: Cell(len(group), "number")),
        (_("Who"), lambda group: Cell(some_of([one.name for one in group]), "mono")),
        (_("Last joined"), lambda group: Cell(_last_joined(group), "age")),
    )
    members: ClassVar[Columns[Member]] = (
        (_("Member"), lambda member: Cell(member.name, "mono")),
        (_("Owner"), lambda member: Cell(member.owner, "owner")),
        (_("There for"), lambda member: Cell(member.since, "age")),
        (_("Data"), lambda member: Cell(member.data or None, "data")),
        (_("Token"), lambda member: Cell(member.token, "number")),
    )

    def read(self, ref: Ref) -> Sequence[Member]:
        """Return the members that are there."""
        return ref.recipe(Group).members()

    def detail(self, ref: Ref, report: Sequence[Member]) -> Detail:
        """Return the members with what each says of itself."""
        count = ngettext("%(count)d member", "%(count)d members", len(report))
        hint = count % {"count": len(report)} if report else ""
        empty = _("Nobody is there.")
        number, _who, _age = self.row(report)
        return Detail(
            facts=[number, (_("Last joined"), Cell(_last_joined(report), "moment"))],
            tables=[Table("members", _("Members"), self.members, report, empty, hint)],
            explanation=[
                _(
                    "Each member renews its record. If a process dies, or is cut"
                    " off for longer than its lease, it is gone from here."
                ),
                _(
                    "One that was only away joins again by itself, as a new member with a new"
                    " token."
                ),
            ],
        )
