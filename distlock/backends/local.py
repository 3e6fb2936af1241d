"""Locks of one process: the reference of what a backend does, and what a user's tests run on."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

from django.conf import settings
from django.core.checks import CheckMessage, Warning
from django.db import DEFAULT_DB_ALIAS, transaction

from distlock.backends.base import BaseBackend, Capabilities, LossReason
from distlock.backends.local_store import LocalStore
from distlock.backends.open_transactions import (
    check_durable,
    durable,
    in_test_environment,
    is_inside,
    is_joining,
    joined,
)
from distlock.concurrency.clock import clock
from distlock.exceptions import LockLost, LockUnavailable
from distlock.types.lease import Claim, Lease, LockInfo, State, SweepResult
from distlock.types.owners import is_named, is_reserved, reserved_owner

#: Seconds between two looks whether a transaction has been committed.
_COMMIT_PAUSE = 0.005


@dataclass(slots=True)
class _Grant:
    claim: Claim
    token: int
    taken_at: float
    expires_at: float
    lasts: float  # seconds from the last renewal, or the grant, to the end
    since: datetime = field(default_factory=lambda: datetime.now(UTC))
    committing: bool = False  # a transaction is being committed under it: it cannot end now

    @property
    def expired(self) -> bool:
        return clock() >= self.expires_at and not self.committing


class LocalBackend(BaseBackend):
    """Threads and tasks of one process exclude each other; other processes are not seen."""

    capabilities = Capabilities(named_owners=True, atomic=True, extends=True)

    def __init__(self, alias: str, params: Mapping[str, Any]) -> None:
        super().__init__(alias, params)
        # Tokens go on growing over restarts, because what they protect may outlive the process.
        self._last_token = time.time_ns() // 1000
        self._store = self._make_store(LocalStore)
        self._mutex = threading.Lock()
        self._held: dict[str, _Grant] = {}

    @property
    def store(self) -> LocalStore:
        """See BaseBackend.store. Two of them would be two sets of records."""
        return self._store

    def try_acquire(self, claim: Claim, deadline: float | None = None) -> Lease | None:
        with self._mutex:
            held = self._held.get(claim.name)
            if held and not held.expired and not _is_again(claim, held.claim):
                claim.refused_by = self._info(held).holders[0]
                return None
            self._last_token += 1
            now, seconds = clock(), claim.reserved
            self._held[claim.name] = _Grant(claim, self._last_token, now, now + seconds, seconds)
            return claim.granted(self._last_token, now)

    def renew(self, leases: Sequence[Lease], deadline: float | None = None) -> Mapping[str, bool]:
        with self._mutex:
            return {lease.nonce: self._renew(lease) for lease in leases}

    def _renew(self, lease: Lease) -> bool:
        held = self._current(lease.claim)
        if held is None or held.expired:
            return False
        if (ends_at := clock() + lease.duration) >= held.expires_at:
            held.expires_at, held.lasts = ends_at, lease.duration
        return True

    def release(self, lease: Lease, deadline: float | None = None) -> bool:
        with self._mutex:
            if self._current(lease.claim) is None:
                return False
            del self._held[lease.name]
            return True

    def reserve_for(self, lease: Lease, seconds: float, deadline: float | None = None) -> bool:
        nobody = replace(
            lease.claim,
            owner=reserved_owner(lease.owner, lease.nonce),
            nonce="",
            renews=False,
        )
        with self._mutex:
            held = self._held.get(lease.name)
            if held is None or held.expired:
                return False
            if held.claim.nonce != lease.nonce and held.claim.owner != nobody.owner:
                return False
            held.claim = nobody
            held.expires_at, held.lasts = clock() + seconds, seconds
            return True

    def cancel(self, claim: Claim, deadline: float | None = None) -> None:
        with self._mutex:
            if self._current(claim) is not None:
                del self._held[claim.name]

    def verify(self, lease: Lease, deadline: float | None = None) -> bool:
        with self._mutex:
            held = self._current(lease.claim)
            return held is not None and not held.expired

    def inspect(self, name: str, deadline: float | None = None) -> LockInfo:
        with self._mutex:
            held = self._held.get(name)
            return LockInfo(name, self.alias) if held is None else self._info(held)

    def list(self, prefix: str = "", deadline: float | None = None) -> list[LockInfo]:
        with self._mutex:
            names = sorted(name for name in self._held if name.startswith(prefix))
            infos = [self._info(self._held[name]) for name in names]
        return [info for info in infos if info.state is not State.FREE]

    def force_release(self, name: str, token: int, deadline: float | None = None) -> Lease | None:
        while True:
            with self._mutex:
                held = self._held.get(name)
                if held is None or held.token != token:
                    return None
                if not held.committing:
                    del self._held[name]
                    break
            if deadline is not None and clock() >= deadline:
                raise LockUnavailable(
                    f"lock {name!r} on {self.alias!r}: its holder is committing a transaction under"
                    " it, which lasts for longer than the time limit"
                )
            # No condition variable, which an interrupt could leave without the mutex.
            time.sleep(_COMMIT_PAUSE)
        lease = Lease(held.claim, held.token, held.expires_at)
        self.tell_lost(lease, LossReason.BROKEN)
        return lease

    def sweep(self) -> SweepResult:
        with self._mutex:
            ended = tuple(name for name, held in self._held.items() if held.expired)
            for name in ended:
                del self._held[name]
            return SweepResult(expired=len(ended))

    def check_atomic(self, using: str | None, lease: Lease | None) -> None:
        check_durable(using or DEFAULT_DB_ALIAS, lease)

    @contextmanager
    def atomic(
        self, lease: Lease, using: str | None, others: Sequence[Lease] = ()
    ) -> Iterator[bool]:
        database, leases = using or DEFAULT_DB_ALIAS, (lease, *others)
        if all(is_inside(one, database) for one in leases):
            with transaction.atomic(database):
                yield False
            return
        guard = partial(self._set_committing, leases, True)
        after = partial(self._set_committing, leases, False)
        if is_joining(database):
            check_durable(database, None)
            with joined(database, *leases, guard=guard, after=after):
                yield True
            return
        try:
            with durable(database, *leases):
                yield False
                guard()
        finally:
            after()

    def checks(self) -> Iterator[CheckMessage]:
        if not settings.DEBUG and not in_test_environment():
            yield Warning(
                "LocalBackend keeps its locks in the process: others do not see them.",
                hint="Use distlock.backends.database.DatabaseBackend where several processes run.",
                obj=f"DISTLOCK[{self.alias!r}]",
                id="distlock.W001",
            )

    def _set_committing(self, leases: Sequence[Lease], committing: bool) -> None:
        with self._mutex:
            found = tuple((lease, self._current(lease.claim)) for lease in leases)
            lost = tuple(lease for lease, held in found if held is None or held.expired)
            if committing and lost:
                raise LockLost(f"lock {lost[0].name!r} was lost before the commit: rolled back")
            for held in tuple(held for _, held in found if held is not None):
                held.committing = committing

    def _current(self, claim: Claim) -> _Grant | None:
        held = self._held.get(claim.name)
        return held if held and held.claim.nonce == claim.nonce else None

    def _info(self, held: _Grant) -> LockInfo:
        expired = held.expired  # once: it may expire while this looks
        if expired and is_reserved(held.claim.owner):
            return LockInfo(held.claim.name, self.alias, token=held.token)
        now = clock()
        until = held.since + timedelta(seconds=held.expires_at - held.taken_at)
        return LockInfo(
            held.claim.name,
            self.alias,
            State.EXPIRED if expired else State.HELD,
            owner=held.claim.owner,
            token=held.token,
            since=held.since,
            until=until,
            held_for=now - held.taken_at,
            remaining=max(held.expires_at - now, 0.0),
            description=held.claim.label or held.claim.description,
            lease=held.lasts,
            renews=held.claim.renews,
            renewed_at=until - timedelta(seconds=held.lasts),
        )


def _is_again(claim: Claim, other: Claim) -> bool:
    return claim.nonce == other.nonce or (is_named(claim.owner) and claim.owner == other.owner)
