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
    *,
    token: int | None = None,
    owner: Owner | None = None,
    waited: float | None = None,
    held: float | None = None,
) -> dict[str, Any]:
    """Return the ``extra`` of a record; None stands for what is not known or does not apply.

    ``backend`` is its alias; ``waited`` and ``held`` are seconds.
    """
    return {
        "lock": lock,
        "kind": None if kind is None else kind.value,
        "backend": backend,
        "token": token,
        "owner": None if owner is None else str(owner),
        "waited": None if waited is None else round(waited, 6),
        "held": None if held is None else round(held, 6),
    }


def claim_fields(backend: str, claim: Claim) -> dict[str, Any]:
    """Return the ``extra`` of a record about a request for a lock. See log_fields()."""
    return log_fields(backend, claim.name, claim.kind, owner=claim.owner)


def lease_fields(
    backend: str, lease: Lease, waited: float | None = None, held: float | None = None
) -> dict[str, Any]:
    """Return the ``extra`` of a record about a lease. See log_fields()."""
    seconds = {"waited": waited, "held": held}
    return {**claim_fields(backend, lease.claim), "token": lease.token, **seconds}
