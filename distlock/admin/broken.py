"""A hold that was broken in the admin, and what is known of whether its holder has noticed."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Self

from django.core import signing
from django.utils import timezone

from distlock.admin.rows import LockRow, local_holds
from distlock.types.lease import LockInfo, Owner
from distlock.types.owners import current_owner, is_named

_SALT = "distlock.admin.broken"


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
