"""A lock as the admin shows it: in a row, on its own page, and after a hold of it was broken."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Self

from django.core import signing
from django.utils import timezone
from django.utils.functional import Promise
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from distlock.backends.base import BaseBackend
from distlock.backends.local import LocalBackend
from distlock.backends.settings import RENEWALS_PER_LEASE
from distlock.commands import output
from distlock.conf import locks
from distlock.fan_out import call_backends
from distlock.records.shared_backend import part_of
from distlock.runtime.local_queue import Crowds
from distlock.runtime.manager import manager
from distlock.types.lease import LOCK_KINDS, Kind, LockInfo, LockKey, Owner, State
from distlock.types.owners import NAMED, current_owner, is_named, is_reserved
from distlock.types.query import DisplayStatus, LockQuery, status_of
from distlock.types.values import MAX_NAME

#: The signer of the broken hold in an address.
_SALT = "distlock.admin.broken"

#: The maximum of holders of one lock with a row in the list; its own page shows all.
_MOST_HOLDERS = 20

#: The names of the kinds of locks, without the usual one.
KINDS: dict[Kind, str | Promise] = {
    Kind.LOCK: "",
    Kind.SEMAPHORE: gettext_lazy("Semaphore"),
    Kind.RWLOCK: gettext_lazy("Read/write lock"),
}

#: What LockRow.style is called.
LABELS: dict[str, str | Promise] = {
    DisplayStatus.HELD: gettext_lazy("Held"),
    DisplayStatus.EXPIRING: gettext_lazy("Ends soon"),
    DisplayStatus.EXPIRED: gettext_lazy("Expired"),
    DisplayStatus.SUSPENDED: gettext_lazy("Suspended"),
    "reserved": gettext_lazy("Released, still reserved"),
    "free": gettext_lazy("Free"),
}


@dataclass(frozen=True, slots=True)
class HoldRef:
    """One hold of a lock, which its token names, as a form field."""

    key: LockKey
    token: int

    @classmethod
    def of(cls, info: LockInfo) -> HoldRef:
        """Return the reference to the hold of a lock in use."""
        return cls(LockKey(info.using, info.kind, info.name), info.token or 0)

    @classmethod
    def parse(cls, text: str) -> HoldRef:
        """Return the reference that str() wrote; ValueError or RecursionError for other texts."""
        match json.loads(text):
            case [str(alias), int(token), str(name), str(kind)] if 0 < len(name) <= MAX_NAME:
                name.encode()  # no database can store half of a surrogate pair: a ValueError
                if "\0" not in name and kind in LOCK_KINDS:  # others need other rights
                    return cls(LockKey(alias, Kind(kind), name), int(token))
        raise ValueError(f"{text!r} names no hold")

    @classmethod
    def parse_all(cls, texts: Iterable[str]) -> list[HoldRef]:
        """Return the references of a form.

        Raises ValueError, with a message for users, if there are none or wrong ones.
        """
        try:
            refs = list(dict.fromkeys(map(cls.parse, texts)))
        except (ValueError, RecursionError) as error:
            raise ValueError(_("The form was not understood. Please select again.")) from error
        if not refs:
            raise ValueError(_("No lock was selected."))
        return refs

    def __str__(self) -> str:
        alias, kind, name = self.key
        return json.dumps([alias, self.token, name, kind])


@dataclass(frozen=True, slots=True)
class LockRow:
    """A lock with its status, or one of those who hold a semaphore or a read/write lock.

    ``suspended``: its backend does not answer, and ``info`` is of local_holds(). ``whole`` is what
    is known of all who hold it; None where ``info`` is that.
    """

    info: LockInfo
    suspended: bool = False
    whole: LockInfo | None = None

    @property
    def kind(self) -> str | Promise:
        """The kind in words; empty for a lock."""
        return KINDS[self.info.kind]

    @property
    def share(self) -> str:
        """This holder's part of a semaphore or a read/write lock; empty for a lock."""
        if self.info.kind is Kind.LOCK or not self.info.holders:
            return ""
        return output.share(self.info, self.info.holders[0])

    @property
    def taken(self) -> int:
        """How many seats of a semaphore are taken in all."""
        return (self.whole or self.info).taken

    @property
    def holders(self) -> list[LockRow]:
        """A row for each of those who hold it."""
        info = self.whole or self.info
        return [LockRow(info.of(holder), self.suspended, info) for holder in info.holders]

    @property
    def waiters(self) -> tuple[Owner, ...] | None:
        """Who waits, in order; None if that is not known."""
        return (self.whole or self.info).waiters

    @property
    def waiting(self) -> str:
        """How many wait, where that is known, and in how many processes if these are fewer."""
        return output.waiting(self.whole or self.info)

    @property
    def status(self) -> DisplayStatus | None:
        """The status; None if nobody holds the lock."""
        if self.suspended:
            return DisplayStatus.SUSPENDED
        return None if self.info.state is State.FREE else status_of(self.info)

    @property
    def is_reserved(self) -> bool:
        """Whether the holder has released it with ``at_least``, and nobody can take it yet."""
        return self.info.owner is not None and is_reserved(self.info.owner)

    @property
    def style(self) -> str:
        """The last part of its CSS classes."""
        if self.is_reserved and self.status is DisplayStatus.HELD:
            return "reserved"
        return self.status or "free"

    @property
    def label(self) -> str | Promise:
        """The status in words."""
        return LABELS[self.style]

    @property
    def ref(self) -> HoldRef:
        """The reference to this hold."""
        return HoldRef.of(self.info)

    @property
    def percent_left(self) -> int | None:
        """How much of the lease is left, in percent; None if its end is not known."""
        if self.info.remaining is None or not self.info.lease:
            return None
        return round(100 * min(self.info.remaining / self.info.lease, 1.0))

    @property
    def renewed_ago(self) -> float:
        """Seconds since the lease was taken or renewed."""
        return max((self.info.lease or 0.0) - (self.info.remaining or 0.0), 0.0)

    @property
    def ended_ago(self) -> float | None:
        """Seconds since the lease ended, where that is known."""
        since, until, held_for = self.info.since, self.info.until, self.info.held_for
        if since is None or until is None or held_for is None:
            return None
        return held_for - (until - since) / timedelta(seconds=1)

    @property
    def notified_within(self) -> float | None:
        """Seconds until a holder learns that its hold was broken; None if it does not renew."""
        if self.is_local:
            return 0.0
        if self.info.renews and self.info.lease is not None:
            return self.info.lease / RENEWALS_PER_LEASE
        return None

    @property
    def is_local(self) -> bool:
        """Whether other processes do not see the lock."""
        return isinstance(locks[self.info.using], LocalBackend)

    @property
    def is_held_here(self) -> bool:
        """Whether this very process holds the lock."""
        owner, here = self.info.owner, current_owner()
        return owner is not None and (owner.host, owner.pid) == (here.host, here.pid)

    @property
    def owner_name(self) -> str:
        """The name given as ``Lock(owner=…)``; empty for a thread or task."""
        owner = self.info.owner
        return owner.key.removeprefix(NAMED) if owner and is_named(owner) else ""


def read_row(backend: BaseBackend, key: LockKey, deadline: float) -> LockRow:
    """Ask a backend for a lock."""
    info = part_of(backend, key.kind).inspect(key.backend_name, deadline)
    return LockRow(Crowds.read(backend, manager().queue, deadline).added_to(info))


def rows_of(info: LockInfo, *, suspended: bool) -> list[LockRow]:
    """Return a row for each of those who hold a lock; of very many, for the first of them."""
    row = LockRow(info, suspended)
    return row.holders[:_MOST_HOLDERS] if info.other_holders else [row]


def local_holds(alias: str) -> list[LockInfo]:
    """Return what this process holds in a backend, by its own clock, without asking the backend."""
    return [hold.info() for hold in manager().running() if hold.backend.alias == alias]


@dataclass(frozen=True, slots=True)
class BrokenHold:
    """A hold as it was when it was broken; times are by the clock of its backend.

    ``due``: when a holder that renews asks the backend again at the latest; None if it does not
    renew. ``end``: when its lease would have ended, which its own process knows by its own clock.
    """

    token: int
    owner: Owner
    at: datetime
    due: datetime | None
    end: datetime | None

    @classmethod
    def of(cls, row: LockRow) -> Self | None:
        """Return the hold of a row that was read a moment ago; None for one without a token."""
        info = row.info
        if info.owner is None or info.token is None or info.since is None:
            return None
        at, within = info.since + timedelta(seconds=info.held_for or 0.0), row.notified_within
        rest = info.lease if info.remaining is None else info.remaining
        return cls(
            token=info.token,
            owner=info.owner,
            at=at,
            due=None if within is None else at + timedelta(seconds=within),
            end=None if rest is None else at + timedelta(seconds=rest),
        )

    def signed(self) -> str:
        """Return it as a text that only this site can write, for an address."""
        times = [time and time.isoformat() for time in (self.at, self.due, self.end)]
        return signing.dumps([self.token, self.owner.to_fields(), *times], salt=_SALT)

    @classmethod
    def parse(cls, text: str) -> Self | None:
        """Return what signed() wrote; None for any other text."""
        try:
            token, owner, *times = signing.loads(text, salt=_SALT)
        except signing.BadSignature:
            return None
        at, due, end = (time and datetime.fromisoformat(time) for time in times)
        return cls(token, Owner.from_fields(owner), at, due, end)

    def aftermath(self, lock: LockInfo, others: Iterable[LockInfo]) -> dict[str, Any]:
        """Return what the page of the lock says of the old holder.

        ``others`` are locks that its process may hold now: one that was taken or renewed after the
        break shows that the process runs. A process that runs after ``due`` has asked for its hold.
        """
        now = timezone.now()
        if lock.since is not None and lock.held_for is not None:
            now = lock.since + timedelta(seconds=lock.held_for)  # by the clock of the backend
        seen = [
            time
            for info in others
            if info.owner and _process(info.owner) == _process(self.owner)
            for time in (info.since, info.renewed_at)
            if time and time > self.at
        ]
        last_seen = max(seen, default=None)
        is_here = _process(self.owner) == _process(current_owner())
        noticed = bool(self.due and last_seen and last_seen > self.due)
        if is_here:
            noticed = self.token not in [info.token for info in local_holds(lock.using)]
        return {
            "hold": self,
            "is_here": is_here,
            "noticed": noticed,
            "last_seen": last_seen,
            "is_due": self.due is not None and now < self.due,
            "has_ended": self.end is not None and now >= self.end,
        }


def _process(owner: Owner) -> tuple[str, int, str]:
    """Return what tells one process from all others. An owner with a name has no nonce."""
    nonce = "" if is_named(owner) else owner.key.partition(":")[0]
    return owner.host, owner.pid, nonce


@dataclass(frozen=True, slots=True)
class LockDetail:
    """The content of the page about a lock. ``row`` is None if its backend did not answer."""

    key: LockKey
    row: LockRow | None = None
    problem: str = ""
    stored: Mapping[str, str] = field(default_factory=dict)
    aftermath: Mapping[str, Any] = field(default_factory=dict)  # of a break, see BrokenHold

    @property
    def show_line(self) -> str:
        """The command that shows the lock."""
        alias, kind, name = self.key
        return output.command_line("show", alias, name, *output.kind_option(kind))

    @property
    def release_line(self) -> str:
        """The command that breaks the hold; empty if there is none."""
        if self.row is None or self.row.status is None or self.row.kind:
            return ""  # of several holders each has one, which `locks show` prints
        return output.release_command(self.row.info)


def lock_detail(key: LockKey, broken: BrokenHold | None, *, wait_for_silent: bool) -> LockDetail:
    """Ask the backend for a lock; raises no error of the backend. See call_backends().

    ``broken`` is a hold of it that was broken: what its process holds now is asked for, too.
    """

    def ask(backend: BaseBackend, deadline: float) -> LockDetail:
        row = read_row(backend, key, deadline)
        stored = part_of(backend, key.kind).stored(key.backend_name, deadline)
        aftermath: Mapping[str, Any] = {}
        if broken is not None:
            process = LockQuery(search=f"{broken.owner.host}:{broken.owner.pid}:")
            aftermath = broken.aftermath(row.info, backend.page(process, deadline).locks)
        return LockDetail(key, row, stored=stored, aftermath=aftermath)

    answer = call_backends([key.alias], ask, wait_for_silent=wait_for_silent)[key.alias]
    if answer.value is not None:
        return answer.value
    wanted = key.kind, key.name
    mine = [info for info in local_holds(key.alias) if (info.kind, info.name) == wanted]
    held = LockRow(mine[0], suspended=True) if mine else None
    return LockDetail(key, held, answer.problem)
