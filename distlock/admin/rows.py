"""A lock as the admin shows it, and one hold as its forms name it."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass

from django.utils.functional import Promise
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from distlock.backends.base import BaseBackend
from distlock.backends.local import LocalBackend
from distlock.backends.settings import RENEWALS_PER_LEASE
from distlock.core.manager import manager
from distlock.types.arguments import MAX_NAME
from distlock.types.lease import LockInfo, State
from distlock.types.owners import NAMED, is_named, is_reserved
from distlock.types.query import DisplayStatus, status_of

#: Holds that can be released at once.
MAX_HOLDS = 100

LABELS: dict[DisplayStatus, str | Promise] = {
    DisplayStatus.HELD: gettext_lazy("Held"),
    DisplayStatus.EXPIRING: gettext_lazy("Ends soon"),
    DisplayStatus.EXPIRED: gettext_lazy("Expired"),
    DisplayStatus.SUSPENDED: gettext_lazy("Suspended"),
}


@dataclass(frozen=True, slots=True)
class HoldRef:
    """One hold of a lock: its backend, its name and its token, as a form field."""

    alias: str
    token: int
    name: str

    @classmethod
    def of(cls, info: LockInfo) -> HoldRef:
        """Return the reference to the hold of a lock in use."""
        return cls(info.using, info.token or 0, info.name)

    @classmethod
    def parse(cls, text: str) -> HoldRef:
        """Return the reference that str() wrote; ValueError for any other text."""
        try:
            parts = json.loads(text)
        except RecursionError:
            parts = None
        match parts:
            case [str(alias), int(token), str(name)] if _is_possible_name(name):
                return cls(alias, int(token), name)
        raise ValueError(f"{text!r} names no hold")

    @classmethod
    def parse_all(cls, texts: Iterable[str]) -> list[HoldRef]:
        """Return the references of a form.

        Raises ValueError, with a message for users, if there are none, too many or wrong ones.
        """
        try:
            refs = list(dict.fromkeys(map(cls.parse, texts)))
        except ValueError as error:
            raise ValueError(_("The form was not understood. Please select again.")) from error
        if not refs:
            raise ValueError(_("No lock was selected."))
        if len(refs) > MAX_HOLDS:
            text = _("At most %(most)d locks can be released at once.")
            raise ValueError(text % {"most": MAX_HOLDS})
        return refs

    def __str__(self) -> str:
        return json.dumps([self.alias, self.token, self.name])


def _is_possible_name(text: str) -> bool:
    """Return whether a backend can have a lock of this name. JSON also has lone surrogates."""
    return (
        0 < len(text) <= MAX_NAME
        and "\0" not in text
        and not any("\ud800" <= letter <= "\udfff" for letter in text)
    )


@dataclass(frozen=True, slots=True)
class LockRow:
    """A lock with its status. ``status`` is None if nobody holds the lock."""

    info: LockInfo
    status: DisplayStatus | None
    #: Seconds until the holder learns that its hold was broken; None if it does not renew.
    notified_within: float | None

    @classmethod
    def of(cls, info: LockInfo, backend: BaseBackend, *, suspended: bool = False) -> LockRow:
        """Return the row of a lock.

        ``suspended``: the backend does not answer, and ``info`` is of local_holds().
        """
        status = None if info.state is State.FREE else status_of(info)
        if suspended:
            status = DisplayStatus.SUSPENDED
        notified_within = None
        if isinstance(backend, LocalBackend):
            notified_within = 0.0  # its holder is in this process
        elif info.renews and info.lease is not None:
            notified_within = info.lease / RENEWALS_PER_LEASE
        return cls(info, status, notified_within)

    @property
    def is_reserved(self) -> bool:
        """Whether the holder has released it with ``at_least``, and nobody can take it yet."""
        return self.info.owner is not None and is_reserved(self.info.owner)

    @property
    def style(self) -> str:
        """The last part of its CSS classes."""
        if self.is_reserved and self.status in (DisplayStatus.HELD, DisplayStatus.EXPIRING):
            return "reserved"
        return self.status.value if self.status else "free"

    @property
    def label(self) -> str | Promise:
        """The status in words."""
        if self.style == "reserved":
            return _("Released, still reserved")
        return LABELS[self.status] if self.status else _("Free")

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
    def owner_name(self) -> str:
        """The name given as ``Lock(owner=…)``; empty for a thread or task."""
        owner = self.info.owner
        return owner.key.removeprefix(NAMED) if owner and is_named(owner) else ""


def local_holds(alias: str) -> list[LockInfo]:
    """Return what this process holds in a backend, by its own clock, without asking the backend."""
    return [hold.info() for hold in manager.running() if hold.backend.alias == alias]
