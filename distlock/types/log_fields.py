"""What records of the log say of a lock, as attributes of their own: see docs/locks.md."""

from __future__ import annotations

from typing import Any

from distlock.types.lease import Claim, Kind, Lease, Owner

#: The attributes; none is one that logging.LogRecord has. They never change: people's filters,
#: formatters and alerts know them.
FIELDS = ("lock", "kind", "backend", "token", "owner", "waited", "held")


def log_fields(
    backend: str,
    lock: str | None = None,
    kind: Kind | None = None,
    token: int | None = None,
    owner: Owner | None = None,
    *seconds: float | None,
) -> dict[str, Any]:
    """Return the ``extra`` of a record; None stands for what is not known or does not apply.

    ``backend`` is its alias. ``seconds`` are for how many it was waited for and held.
    """
    waited, held = [one and round(one, 6) for one in seconds or (None, None)]
    who, what = owner and str(owner), kind and kind.value
    return dict(zip(FIELDS, (lock, what, backend, token, who, waited, held), strict=True))


def claim_fields(backend: str, claim: Claim) -> dict[str, Any]:
    """Return the ``extra`` of a record about a request for a lock. See log_fields()."""
    return log_fields(backend, claim.name, claim.kind, None, claim.owner)


def lease_fields(
    backend: str, lease: Lease, waited: float | None = None, held: float | None = None
) -> dict[str, Any]:
    """Return the ``extra`` of a record about a lease. See log_fields()."""
    claim = lease.claim
    return log_fields(backend, claim.name, claim.kind, lease.token, claim.owner, waited, held)
