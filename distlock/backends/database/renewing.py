"""Lets many leases run on, in few statements."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby

from distlock.backends.database import errors
from distlock.backends.database.access import Access
from distlock.backends.database.batches import around_locked, pieces
from distlock.backends.database.dialects.base import Ask, Dialect
from distlock.lease import Lease


def renew(access: Access, leases: Sequence[Lease], deadline: float | None) -> Mapping[str, bool]:
    """See BaseBackend.renew()."""
    answer: dict[str, bool] = {}
    failure: errors.StatementFailed | None = None
    for batch in _batches(leases):
        try:
            for renewed in around_locked(batch, lambda some: _renew(access, some, deadline)):
                answer.update(renewed)
        except errors.StatementFailed as failed:
            failure = failed
            if isinstance(failed, (errors.NoSession, errors.Overran, errors.FileLocked)):
                break  # the others would fare no better
    if failure and not answer:
        raise access.unavailable(failure) from failure.__cause__
    return answer


def _batches(leases: Sequence[Lease]) -> Iterator[Sequence[Lease]]:
    """Yield leases of equal duration, so many that one statement can renew them."""
    for _, group in groupby(sorted(leases, key=_duration), key=_duration):
        yield from pieces(list(group))


def _duration(lease: Lease) -> float:
    return lease.duration


def _renew(access: Access, leases: Sequence[Lease], deadline: float | None) -> dict[str, bool]:
    def renew(dialect: Dialect, ask: Ask) -> dict[str, bool]:
        if ask(dialect.renew(leases)).changed == len(leases):
            return {lease.nonce: True for lease in leases}
        # What is held now was held a moment ago, so it has been renewed.
        held = {nonce for (nonce,) in ask(dialect.held(leases)).rows}
        return {lease.nonce: lease.nonce in held for lease in leases}

    return access.attempt(renew, deadline)
