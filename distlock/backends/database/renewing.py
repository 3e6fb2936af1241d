"""Lets many leases run on, in few statements."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby

from distlock.backends.database import errors
from distlock.backends.database.batches import around_locked, pieces
from distlock.backends.database.dialects.base import Ask, Dialect
from distlock.backends.database.runner import StatementRunner
from distlock.clock import clock, left
from distlock.types.lease import Lease


def renew(
    access: StatementRunner, leases: Sequence[Lease], deadline: float | None
) -> Mapping[str, bool]:
    """See BaseBackend.renew()."""
    answer: dict[str, bool] = {}
    failure: errors.StatementFailed | None = None
    for batch in _batches(leases):
        try:
            for renewed in _renewals(access, batch, deadline):
                answer.update(renewed)
        except errors.StatementFailed as failed:
            failure = failed
            if isinstance(failed, (errors.NoSession, errors.StatementTimeout, errors.FileLocked)):
                break  # the others would fare no better
    if failure and not answer:
        raise access.unavailable(failure) from failure.__cause__
    return answer


def _renewals(
    access: StatementRunner, leases: Sequence[Lease], deadline: float | None
) -> Iterator[dict[str, bool]]:
    """Renew leases, whatever one row or one session keeps them from.

    A statement gets half of the time that is left. If a row that is locked holds it up, or its
    session is silent, the others are renewed by another session in the other half.
    """
    # Without a deadline, both halves together last as long as the database gets for an answer.
    rest = access.pool.timeout if deadline is None else left(deadline, 2 * access.pool.timeout)
    try:
        yield _renew(access, leases, clock() + rest / 2)
        return
    except (errors.RowLocked, errors.StatementTimeout) as failed:
        if isinstance(failed, errors.RowLocked) and len(leases) == 1:
            return
    until = clock() + rest / 2
    try:
        others = leases if len(leases) == 1 else _unlocked(access, leases, until)
    except errors.RowLocked:  # it is the whole table
        return
    if others is None:
        yield from around_locked(leases, lambda some: _renew(access, some, until))
    elif others:
        yield from around_locked(others, lambda some: _renew(access, some, until))


def _unlocked(
    access: StatementRunner, leases: Sequence[Lease], deadline: float | None
) -> Sequence[Lease] | None:
    """Return those leases whose rows nobody keeps locked, None if the engine cannot tell."""

    def ask_for(dialect: Dialect, ask: Ask) -> Sequence[Lease] | None:
        if (statement := dialect.unlocked(leases)) is None:
            return None
        found = {nonce for (nonce,) in ask(statement).rows}
        return [lease for lease in leases if lease.nonce in found]

    try:
        return access.attempt(ask_for, deadline, at_once=True)
    except errors.StatementFailed as failed:
        if type(failed) is errors.StatementFailed:  # the server does not know these words
            return None
        raise


def _batches(leases: Sequence[Lease]) -> Iterator[Sequence[Lease]]:
    """Yield leases of equal duration, so many that one statement can renew them."""
    for _, group in groupby(sorted(leases, key=_duration), key=_duration):
        yield from pieces(list(group))


def _duration(lease: Lease) -> float:
    return lease.duration


def _renew(
    access: StatementRunner, leases: Sequence[Lease], deadline: float | None
) -> dict[str, bool]:
    def renew(dialect: Dialect, ask: Ask) -> dict[str, bool]:
        if ask(dialect.renew(leases)).affected == len(leases):
            return {lease.nonce: True for lease in leases}
        # What is held now was held a moment ago, so it has been renewed.
        held = {nonce for (nonce,) in ask(dialect.held(leases)).rows}
        return {lease.nonce: lease.nonce in held for lease in leases}

    # Threads that ask for rows which somebody keeps locked must not cost a held lock its lease.
    return access.attempt(renew, deadline, at_once=True)
