"""Names and numbers that nobody else has, and the addresses that are registered under names.

Each registration is a member's record, ``h/NONCE``. A unique name has a record of its own, too:
``n/HASH`` is written by each registration of that name, on the condition that it is as it was when
nobody was found to have the name. Both are bound to the session of the process.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from types import TracebackType
from typing import Any, Self

from distlock.backends.recipe_records import Plan
from distlock.backends.seats import held_key, owner_of, since_when
from distlock.backends.store import Absent, Delete, Exists, Put, Record, Snapshot
from distlock.concurrency.clock import clock
from distlock.concurrency.steps import Steps, arun, run
from distlock.core.section import add_leave_error, refuse_in_event_loop
from distlock.exceptions import LockTimeout, ValueNotAgreed
from distlock.recipes.membership import Membership
from distlock.recipes.recipe import Recipe, deadline_of
from distlock.types.arguments import checked_callback, checked_description, checked_name
from distlock.types.lease import Kind, Lease, Owner


@dataclass(frozen=True, slots=True)
class Address:
    """What is registered under a name, by whom and since when; ``data`` is what was given."""

    name: str
    address: str
    unique: bool
    owner: Owner
    token: int
    since: datetime
    data: Any = None


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

    @refuse_in_event_loop
    def register(
        self,
        name: str,
        address: str,
        *,
        unique: bool = True,
        data: Any = None,
        timeout: float | None = 0,
        on_lost: Callable[[Lease], object] | None = None,
    ) -> Registration:
        """Give a name an address, for as long as this process lives and keeps what is returned.

        - ``unique``: nobody else can have the name. With False it is that of a service, and each
          registration adds an address. Use one of the two for a name: the other is refused.
        - ``data``: is returned by resolve(): anything that JSON can say.
        - ``timeout``: seconds to wait for the name to be free; 0 tries once, None waits for ever.
        - ``on_lost(lease)``: is called on another thread if the registration is lost, before
          anybody else can have the name. A unique name that was lost is not taken again: call
          register(), which is refused if somebody has it by then, and gives a new token. The
          address of a service comes back by itself.

        Raises LockTimeout, which says who has the name; ValueNotAgreed if it is in use with the
        other ``unique``; LockUnavailable.
        """
        return run(self._registering(name, address, unique, data, timeout, on_lost))

    async def aregister(
        self,
        name: str,
        address: str,
        *,
        unique: bool = True,
        data: Any = None,
        timeout: float | None = 0,
        on_lost: Callable[[Lease], object] | None = None,
    ) -> Registration:
        """See register()."""
        return await arun(self._registering(name, address, unique, data, timeout, on_lost))

    @refuse_in_event_loop
    def resolve(self, name: str) -> Address | None:
        """Return what has the name, None if nothing has; of a service the oldest address."""
        return next(iter(run(self._resolving(name))), None)

    async def aresolve(self, name: str) -> Address | None:
        """See resolve()."""
        return next(iter(await arun(self._resolving(name))), None)

    @refuse_in_event_loop
    def resolve_all(self, name: str | None = None) -> tuple[Address, ...]:
        """Return all that is registered under a name, or under any name; the oldest first."""
        return run(self._resolving(name))

    async def aresolve_all(self, name: str | None = None) -> tuple[Address, ...]:
        """See resolve_all()."""
        return await arun(self._resolving(name))

    @refuse_in_event_loop
    def wait_for(self, name: str, timeout: float | None = None) -> Address | None:
        """Return what has the name, once something has; None after ``timeout`` seconds."""
        return run(self._waiting_for(checked_name(name), deadline_of(timeout)))

    async def await_for(self, name: str, timeout: float | None = None) -> Address | None:
        """See wait_for()."""
        return await arun(self._waiting_for(checked_name(name), deadline_of(timeout)))

    @refuse_in_event_loop
    def unique_number(self) -> int:
        """Return a number that this namespace has never given, and will never give again.

        It is the revision of a change, so numbers grow, with gaps of any size. They go on growing
        after a failover and a sweep; not if the backend is set back to an old copy.
        """
        return run(self._numbering())

    async def aunique_number(self) -> int:
        """See unique_number()."""
        return await arun(self._numbering())

    @refuse_in_event_loop
    def remove(self, token: int) -> bool:
        """Take a name from whoever registered it with this token; False if that is gone already.

        For operators: who had the name goes on until its next renewal tells of the loss.
        """
        return self._backend.force_release(self._directory, token) is not None

    # Inside

    def _found(self, snapshot: Snapshot, name: str | None = None) -> list[tuple[Record, Address]]:
        """Return the registrations of a name, or all: first those of unique names, by age."""
        found = []
        for key, record in snapshot.records.items():
            if key.startswith(held_key("")):
                said, since = record.value["data"], since_when(record, snapshot)
                terms = said["name"], said["address"], said["unique"]
                one = Address(*terms, owner_of(record), record.created, since, said["data"])
                if name is None or one.name == name:
                    found.append((record, one))
        return sorted(found, key=lambda each: not each[1].unique)

    def _resolving(self, name: str | None) -> Steps[tuple[Address, ...]]:
        wanted = None if name is None else checked_name(name)
        snapshot = yield self._read()
        return tuple(one for _, one in self._found(snapshot, wanted))

    def _waiting_for(self, name: str, deadline: float | None) -> Steps[Address | None]:
        def look(snapshot: Snapshot) -> Address | None:
            return next((one for _, one in self._found(snapshot, name)), None)

        return self._until(look, deadline)

    def _numbering(self) -> Steps[int]:
        # Deleting what is not there is a change as well, and leaves nothing behind.
        change = partial(self._store.apply, self._directory, [Delete("number")], ())
        return (yield self._ask(change))  # type: ignore[no-any-return]

    def _registering(
        self,
        name: str,
        address: str,
        unique: bool,
        data: Any,
        timeout: float | None,
        on_lost: Callable[[Lease], object] | None,
    ) -> Steps[Registration]:
        deadline = deadline_of(timeout)
        registration = Registration(self, name, address, unique, data, on_lost)
        while True:
            joined = yield from registration._membership.joining(deadline)
            if joined.lease is not None:
                return registration
            if deadline is not None and clock() >= deadline:
                raise LockTimeout(f"{self!r}: {_taken(joined.result)}")
            yield from self._until(partial(self._is_free, name, address), deadline)

    def _is_free(self, name: str, address: str, snapshot: Snapshot) -> bool | None:
        found = self._found(snapshot, name)
        return all(_promised(record) == address for record, _ in found) or None


class Registration:
    """A name that this process has; see Names.register(). Leave it with ``with``."""

    def __init__(
        self,
        names: Names,
        name: str,
        address: str,
        unique: bool,
        data: Any,
        on_lost: Callable[[Lease], object] | None,
    ) -> None:
        """See Names.register()."""
        checked_callback("on_lost", on_lost)
        if not isinstance(address, str) or not address:
            raise TypeError(f"address must be a str that is not empty, not {address!r}")
        self.name, self.address = checked_name(name), checked_description(address)
        self._names, self._unique, self._on_lost = names, bool(unique), on_lost
        self._said = {"name": name, "address": address, "unique": self._unique, "data": data}
        Put("data", self._said)  # raises TypeError or ValueError for what cannot be kept
        self._key = "n/" + hashlib.sha256(name.encode()).hexdigest()
        self._handing_over = False
        self._membership = Membership(
            names, self._decide, rejoins=not unique, on_lost=self._tell_loss
        )

    def __repr__(self) -> str:
        return f"<Registration of {self.name!r} in {self._names!r}>"

    @property
    def held(self) -> bool:
        """Whether the name is this process's, by what it knows."""
        return self._membership.held

    @property
    def token(self) -> int:
        """The fencing token: greater than that of whoever had the name before.

        Raises LockNotHeld or LockLost.
        """
        return self._membership.check().token

    def check(self) -> None:
        """Raise LockNotHeld or LockLost if the name is not this process's any more."""
        self._membership.check()

    @refuse_in_event_loop
    def unregister(self) -> bool:
        """Free the name; False if it was lost before. Nobody else's registration is touched.

        If that cannot be done now it is done later, and LockUnavailable is raised.
        """
        return run(self._leaving())

    async def aunregister(self) -> bool:
        """See unregister()."""
        return await arun(self._leaving())

    @refuse_in_event_loop
    def hand_over(self, address: str, timeout: float | None = None) -> bool:
        """Let whoever registers the name with ``address`` have it; wait until somebody has.

        The name is this process's until then, and never free. False if nobody has come within
        ``timeout`` seconds: this process keeps it. Raises LockNotHeld, LockLost, LockUnavailable.
        """
        return run(self._handing(address, deadline_of(timeout)))

    async def ahand_over(self, address: str, timeout: float | None = None) -> bool:
        """See hand_over()."""
        return await arun(self._handing(address, deadline_of(timeout)))

    def __enter__(self) -> Self:
        self.check()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            self.unregister()
        except Exception as failed:
            if error is None:
                raise
            add_leave_error(error, failed)

    async def __aenter__(self) -> Self:
        self.check()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            await self.aunregister()
        except Exception as failed:
            if error is None:
                raise
            add_leave_error(error, failed)

    # Inside

    def _decide(self, snapshot: Snapshot) -> Plan:
        found = self._names._found(snapshot, self.name)
        if not self._unique:
            if found and found[0][1].unique:
                raise self._not_agreed(found[0][1])
            return Plan(data=self._said)
        for record, other in found:
            if not other.unique:
                raise self._not_agreed(other)
            if _promised(record) != self.address:
                return Plan(result=other)
        name = snapshot.records.get(self._key)
        return Plan(
            [Delete(record.key) for record, _ in found],
            [
                Absent(self._key) if name is None else Exists(self._key, name.revision),
                *(Exists(record.key, record.revision) for record, _ in found),
            ],
            data=self._said,
            bound={self._key: {}},
        )

    def _not_agreed(self, other: Address) -> ValueNotAgreed:
        return ValueNotAgreed(f"unique={self._unique}: {_taken(other)}, unique={other.unique}")

    def _leaving(self) -> Steps[bool]:
        # While its record is there, that of the name is its own, too.
        changes = [Delete(self._key)] if self._unique else []
        return self._membership.leaving(changes)

    def _handing(self, address: str, deadline: float | None) -> Steps[bool]:
        checked_description(address)
        membership, key = self._membership, held_key(self._membership.check().nonce)

        def look(snapshot: Snapshot) -> bool | None:
            if key in snapshot.records:
                return None
            found = self._names._found(snapshot, self.name)
            return any(other.address == address for _, other in found)

        self._handing_over = True
        try:
            promise = {**self._said, "promised": address}
            yield from membership.updating(promise, deadline=deadline)
            taken = yield from self._names._until(look, deadline, watched=lambda _: key)
            if taken is None:
                kept = yield from membership.updating(self._said)
                taken = kept is None  # at the last moment
        finally:
            self._handing_over = False
        if taken:
            yield from membership.leaving()
        else:
            membership.check()
        return taken

    def _tell_loss(self, lease: Lease) -> None:
        if self._on_lost is not None and not self._handing_over:
            self._on_lost(lease)


def _promised(record: Record) -> Any:
    return record.value["data"].get("promised")


def _taken(other: Address) -> str:
    owner = other.owner
    return (
        f"the name {other.name!r} is registered for {other.address!r} by {owner.host}"
        f" (pid {owner.pid}, {owner.thread}; token {other.token})"
    )
