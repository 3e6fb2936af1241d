"""A lock as a row of a table, or as the subject of a page."""

from __future__ import annotations

from dataclasses import dataclass

from django.utils.functional import Promise
from django.utils.translation import gettext_lazy as _

from distlock.admin.hold_ref import Chosen
from distlock.backends.base import BaseBackend
from distlock.backends.local import LocalBackend
from distlock.backends.settings import RENEWALS_PER_LEASE
from distlock.types.lease import LockInfo, State
from distlock.types.owners import NAMED, is_named, is_reserved
from distlock.types.query import DisplayStatus, status_of

LABELS: dict[DisplayStatus, str | Promise] = {
    DisplayStatus.HELD: _("Held"),
    DisplayStatus.EXPIRING: _("Ends soon"),
    DisplayStatus.EXPIRED: _("Expired"),
    DisplayStatus.SUSPENDED: _("Suspended"),
}


@dataclass(frozen=True, slots=True)
class Listed:
    """What is known of a lock, and how it stands with it; None: nobody holds it."""

    info: LockInfo
    status: DisplayStatus | None
    #: seconds within which its holder learns that it was broken; None if nobody tells it
    told_within: float | None

    @classmethod
    def of(cls, info: LockInfo, backend: BaseBackend, *, suspended: bool = False) -> Listed:
        """Return a lock as its backend tells of it, or this process of one that is suspended."""
        status = None if info.state is State.FREE else status_of(info)
        if suspended:
            status = DisplayStatus.SUSPENDED
        told_within = None
        if isinstance(backend, LocalBackend):
            told_within = 0.0  # its holder is in the very process that breaks it
        elif info.renews and info.lease is not None:
            told_within = info.lease / RENEWALS_PER_LEASE
        return cls(info, status, told_within)

    @property
    def is_reserved(self) -> bool:
        """Whether its holder has left it, and it stays taken for the rest of its time."""
        return self.info.owner is not None and is_reserved(self.info.owner)

    @property
    def look(self) -> str:
        """What it is called where colours are chosen."""
        if self.is_reserved and self.status in (DisplayStatus.HELD, DisplayStatus.EXPIRING):
            return "kept"
        return self.status.value if self.status else "free"

    @property
    def label(self) -> str | Promise:
        if self.look == "kept":
            return _("Left, stays taken")
        return LABELS[self.status] if self.status else _("Free")

    @property
    def value(self) -> str:
        """What a form says for this hold."""
        return str(Chosen.of(self.info))

    @property
    def percent(self) -> int | None:
        """How much is left of the lease, in percent; None where no end is known."""
        if self.info.remaining is None or not self.info.lease:
            return None
        return round(100 * min(self.info.remaining / self.info.lease, 1.0))

    @property
    def owners_name(self) -> str:
        """The name that the code gave the owner; empty for a thread or task."""
        owner = self.info.owner
        return owner.key.removeprefix(NAMED) if owner and is_named(owner) else ""
