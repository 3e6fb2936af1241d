"""Unique names and numbers, and the addresses that are registered under names.

Each registration is a member's record, ``h/HASH/RANDOM``; HASH is that of its name, so those of one
name are found among thousands. A name has a record of its own, too: ``n/HASH`` is written by each
registration of that name, on the condition that it is as it was when nobody was found that keeps it
from that. Both are bound to the session of the process.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from typing import Any, ClassVar, TypeVar

from django.utils.translation import gettext_lazy as _

from distlock.backends.store import Delete, Exists, Peek, Snapshot
from distlock.concurrency.steps import Steps, or_undo
from distlock.exceptions import LockBusy, LockLost, LockTimeout, ValueNotAgreed
from distlock.locking.base_lock import twins
from distlock.recipes.cells import Cell, Columns, some_of
from distlock.recipes.description import Description, Detail, Ref, Table
from distlock.recipes.membership import Membership
from distlock.recipes.recipe import ALL_RECORDS, Block, Recipe, deadline_of
from distlock.records.recipe_records import Plan
from distlock.records.seats import held_key, owner_of, since_when
from distlock.runtime.hold import OnLost
from distlock.types.lease import Kind, Owner
from distlock.types.values import checked_callback, checked_data, checked_flag, checked_name

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Address:
    """What is registered under a name.

    - ``address``, ``data``: as the owner has given them.
    - ``unique``: whether nobody else can have the name.
    - ``owner``, ``token``: who registered it, and the fencing token.
    - ``since``: when it was registered.

    ``promised`` is the address to which the name is being handed over, see hand_over().
    """

    name: str
    address: str
    unique: bool
    owner: Owner
    token: int
    since: datetime
    data: Mapping[str, Any] = field(hash=False)
    promised: str | None = None


class Names(Recipe):
    """A namespace: ``Names("printers")``. In it a name belongs to one process at a time.

    ::

        printers = Names("printers")
        with printers.register("front desk", "10.0.0.7:631") as registration:
            serve(fence=registration.token)
        printers.resolve("front desk")  # elsewhere: an Address, or None
        printers.unique_number()
    """

    kind = Kind.NAMES

    def _register(
        self,
        name: str,
        address: str,
        *,
        unique: bool = True,
        data: Mapping[str, Any] | None = None,
        timeout: float | None = 0,
        on_lost: OnLost | None = None,
    ) -> Steps[Registration]:
        """Give a name an address, for as long as this process lives and keeps the returned object.

        - ``name``, ``address``: texts, the name as for a Lock.
        - ``unique``: no other process can have the name. With False it is that of a service, and
          each registration adds an address. Use one of the two for a name: the other is refused.
        - ``data``: is returned by resolve(); at most 4 KiB of JSON.
        - ``timeout``: seconds to wait for the name to be free; 0 tries once, None waits forever.
        - ``on_lost(lease)``: is called on another thread if the registration is lost, before
          anybody else can have the name. A unique name that was lost is not taken again: call
          register(), which raises if another process has it by then, and gives a new token. The
          address of a service comes back by itself.

        Raises LockTimeout (LockBusy with a ``timeout`` of 0), which names the owner;
        ValueNotAgreed if it is in use with the other ``unique``; LockUnavailable.
        """
        said = {
            "name": checked_name(name),
            "address": checked_name(address, "address"),
            "unique": checked_flag("unique", unique),
            "data": checked_data(data),
        }
        checked_callback("on_lost", on_lost)
        deadline, registration = deadline_of(timeout), Registration(self, said, on_lost)
        while (joined := (yield from registration._membership.joining(deadline))).lease is None:
            if not (yield from self._until_found(name, registration._is_free, deadline)):
                error = LockBusy if timeout == 0 else LockTimeout
                raise error(f"{self!r}: {_taken(joined.result)}")
        return registration

    register, aregister = twins("register", _register)

    def _resolve(self, name: str) -> Steps[Address | None]:
        """Return the registration of a ``name``, None if it is free; the oldest of a service.

        Raises LockUnavailable if the backend does not answer.
        """
        return self._wait_for(name, 0)

    resolve, aresolve = twins("resolve", _resolve)

    def _resolve_all(self, name: str | None = None) -> Steps[tuple[Address, ...]]:
        """Return all that is registered under a ``name``, or under any (None), the oldest first.

        Raises LockUnavailable if the backend does not answer.
        """
        if name is None:
            seen = yield self._read()
        else:
            seen = yield self._ask(self._looking_for(checked_name(name)))
        return tuple(self._found(seen, name).values())

    resolve_all, aresolve_all = twins("resolve_all", _resolve_all)

    def _wait_for(self, name: str, timeout: float | None = None) -> Steps[Address | None]:
        """Return the registration of a ``name``, once there is one; None after ``timeout`` seconds.

        None waits forever. Raises LockUnavailable if the backend does not answer until then, or for
        the length of a lease.
        """
        wanted, deadline = checked_name(name), deadline_of(timeout)

        def look(snapshot: Snapshot) -> Address | None:
            return next(iter(self._found(snapshot, wanted).values()), None)

        return (yield from self._until_found(wanted, look, deadline))

    wait_for, await_for = twins("wait_for", _wait_for)

    def _unique_number(self) -> Steps[int]:
        """Return a number that this namespace has never given, and will never give again.

        It is the revision of a change, so numbers grow, with gaps of any size. They go on growing
        after a failover and a sweep; not if the backend is set back to an old copy. Raises
        LockUnavailable if the backend does not answer.
        """
        # Deleting what is not there is a change as well, and leaves nothing behind.
        change = partial(self._store.apply, self._directory, [Delete("number")], ())
        return (yield self._ask(change))  # type: ignore[no-any-return]

    unique_number, aunique_number = twins("unique_number", _unique_number)

    # Inside

    def _found(self, snapshot: Snapshot, name: str | None = None) -> dict[str, Address]:
        """Return by key what is registered under a name, or any; the oldest first."""
        found = {}
        for key, record in sorted(snapshot.records.items(), key=lambda one: one[1].created):
            if (said := record.value.get("data")) and name in (None, said["name"]):
                owner, since = owner_of(record), since_when(record, snapshot)
                found[key] = Address(**said, owner=owner, token=record.created, since=since)
        return found

    def _looking_for(self, name: str) -> Callable[[float | None], Snapshot]:
        """Return what reads the records of a name, and no others."""
        peek = Peek({held_key(_of(name)): ALL_RECORDS, _key_of(name): 1})
        return partial(self._store.peek, self._directory, peek)

    def _until_found(
        self, name: str, look: Callable[[Snapshot], T | None], deadline: float | None
    ) -> Steps[T | None]:
        """See Recipe._until(); it looks at a name, whenever that changes.

        An owner that was lost may leave the record of the name behind: its own is watched, too.
        """
        ask = partial(self._ask, self._looking_for(name))
        return self._until(look, deadline, _key_of(name), ask)


class Registration(Block):
    """A name that this process has; see Names.register().

    A ``with`` block unregisters it at the end, and raises LockLost if a unique name was lost.
    """

    def __init__(self, names: Names, said: dict[str, Any], on_lost: OnLost | None) -> None:
        """``said`` is what Names.register() was given, and others read."""
        self.name, self.address = said["name"], said["address"]
        self._names, self._said, self._unique = names, said, said["unique"]
        self._key = _key_of(self.name)
        self._membership = Membership(
            names,
            self._plan,
            rejoins=not self._unique,
            on_lost=on_lost,
            read=names._looking_for(self.name),
            nonce_prefix=_of(self.name),
        )

    @property
    def held(self) -> bool:
        """Whether the name is this process's, as it knows."""
        return self._membership.held

    @property
    def token(self) -> int:
        """The fencing token: greater than that of the owner before.

        Raises LockNotHeld or LockLost.
        """
        return self._membership.check().token

    def check(self) -> None:
        """Raise LockNotHeld or LockLost if the name is not this process's any more."""
        self._membership.check()

    def _unregister(self) -> Steps[bool]:
        """Free the name; False if it was lost before. Nobody else's registration is touched.

        If that cannot be done now it is done later, and LockUnavailable is raised.
        """
        return self._membership.leaving(Plan([Delete(self._key)]) if self._unique else self._end)

    unregister, aunregister = twins("unregister", _unregister, leaves=True)

    def _hand_over(self, address: str, timeout: float | None = None) -> Steps[bool]:
        """Pass the name to the process that registers it with ``address``; wait until one has.

        The name is this process's until then, and never free. False if nobody has come within
        ``timeout`` seconds: this process keeps it. After LockUnavailable, or an interrupt, this
        process has given it up, because somebody may have it by now. If a renewal sees first
        that it was taken, ``on_lost`` is called. Raises LockNotHeld, LockLost, LockUnavailable.
        """
        wanted, deadline = checked_name(address, "address"), deadline_of(timeout)
        membership, key = self._membership, held_key(self._membership.check().nonce)

        def look(snapshot: Snapshot) -> bool | None:
            found = self._names._found(snapshot, self.name)
            return None if key in found else any(one.address == wanted for one in found.values())

        def hand_over() -> Steps[bool | None]:
            yield from membership.updating({**self._said, "promised": wanted}, deadline=deadline)
            until_found = self._names._until_found
            while (taken := (yield from until_found(self.name, look, deadline))) is None:
                if (yield from membership.updating(self._said)) is not None:
                    return None
            yield from membership.leaving()
            return taken

        plan = Plan([Delete(self._key)])
        taken = yield from or_undo(hand_over(), lambda _: membership.leave_soon(plan))
        if taken is False:
            raise LockLost(f"{self._names!r}: the name {self.name!r} was lost")
        return taken is not None

    hand_over, ahand_over = twins("hand_over", _hand_over)

    # Inside

    def _plan(self, snapshot: Snapshot) -> Plan:
        if (other := self._obstacle(snapshot)) is not None:
            return Plan(result=other)
        # A service has the record, too: else both could register at the same moment.
        same = snapshot.unchanged(self._key)
        # Only a promised registration can still be here.
        before = self._names._found(snapshot, self.name) if self._unique else ()
        return Plan(
            [Delete(key) for key in before],
            [same, *(Exists(key, snapshot.records[key].revision) for key in before)],
            members=[self._said],
            member_records={self._key: {}},
        )

    def _end(self, snapshot: Snapshot) -> Plan:
        """Plan what goes with the address of a service: with the last one, the record of the name.

        A process that found nothing under the name must not find nothing again while others have
        come.
        """
        is_last = len(self._names._found(snapshot, self.name)) == 1
        return Plan([Delete(self._key)] * is_last, [snapshot.unchanged(self._key)])

    def _obstacle(self, snapshot: Snapshot) -> Address | None:
        """Return who keeps this from being registered; ValueNotAgreed if ``unique`` differs."""
        for other in self._names._found(snapshot, self.name).values():
            if other.unique != self._unique:
                raise ValueNotAgreed(f"unique={self._unique}: {_taken(other)}")
            if self._unique and other.promised != self.address:
                return other
        return None

    def _is_free(self, snapshot: Snapshot) -> bool | None:
        """Whether nobody keeps this from being registered; None if somebody does."""
        return self._obstacle(snapshot) is None or None

    def _entering(self) -> Steps[None]:
        self.check()
        yield from ()

    def _leaving(self) -> Steps[None]:
        had = self._membership.lease is not None
        if not (yield from self._unregister()) and had and self._unique:
            raise LockLost(f"{self._names!r}: the name {self.name!r} was lost")


def _key_of(name: str) -> str:
    """Return the key of the record of a name."""
    return "n/" + hashlib.sha256(name.encode()).hexdigest()


def _of(name: str) -> str:
    """Return what the nonces of the registrations of a name begin with."""
    return _key_of(name).removeprefix("n/") + "/"


def _taken(other: Address) -> str:
    """Return a sentence that says who has a name."""
    owner = other.owner
    return (
        f"the name {other.name!r} is registered for {other.address!r} by {owner.host}"
        f" (pid {owner.pid}, {owner.thread}; token {other.token}, unique={other.unique})"
    )


def _names_in(addresses: Sequence[Address]) -> list[str]:
    return list(dict.fromkeys(address.name for address in addresses))


class NamesDescription(Description[Sequence[Address]]):
    """The owners of names."""

    empty = _("Namespaces are listed here once a name was registered in them.")
    columns: ClassVar[Columns[Sequence[Address]]] = (
        (_("Names"), lambda report: Cell(len(_names_in(report)), "number")),
        (_("Which"), lambda report: Cell(some_of(_names_in(report)), "mono")),
    )
    addresses: ClassVar[Columns[Address]] = (
        (_("Name"), lambda address: Cell(address.name, "mono")),
        (_("Address"), lambda address: Cell(address.address, "mono")),
        (_("Kind"), lambda address: Cell(_("unique") if address.unique else _("service"))),
        (_("Owner"), lambda address: Cell(address.owner, "owner")),
        (_("For"), lambda address: Cell(address.since, "age")),
        (_("Data"), lambda address: Cell(address.data or None, "data")),
        (_("Token"), lambda address: Cell(address.token, "number")),
    )

    def read(self, ref: Ref) -> Sequence[Address]:
        """Return all that is registered."""
        return ref.recipe(Names).resolve_all()

    def detail(self, ref: Ref, report: Sequence[Address]) -> Detail:
        """Return all that is registered."""
        empty = _("No name is registered.")
        return Detail(
            facts=[(_("Addresses"), Cell(len(report), "number"))],
            tables=[Table("names", _("Names"), self.addresses, report, empty)],
            explanation=[
                _("A unique name belongs to one process at a time, for as long as that lives."),
                _("A service may have several addresses under one name."),
            ],
        )
