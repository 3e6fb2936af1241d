"""On which terms a lock is taken: how long to wait for it, and how it is held."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any, Protocol, get_args

from distlock.activity import current_activity
from distlock.backends.base import BaseBackend
from distlock.concurrency.clock import clock
from distlock.exceptions import LockBusy, LockError, LockTimeout, NotSupported
from distlock.runtime.acquiring import AcquireRequest
from distlock.runtime.hold import Entrant, OnLost
from distlock.types.lease import Claim, Holder, LockKey
from distlock.types.owners import call_site, current_actor
from distlock.types.values import (
    OnBusy,
    Release,
    checked_callback,
    checked_choice,
    checked_description,
    checked_flag,
    checked_label,
    checked_release,
    checked_seconds,
    waiting_limit,
)


class Requester(Protocol):
    """The part of a Lock object that its requests need."""

    #: the nonce of the claim, if it is not to have a new one
    claim_nonce: str
    _key: LockKey


@dataclass(slots=True, eq=False)
class LockOptions:
    """The arguments of ``Lock`` beside its name; see there. Errors name the argument.

    They never change. Python would take five times as long to make a frozen object.
    """

    on_busy: OnBusy
    timeout: float | None
    busy_result: Any
    lease: float | None
    at_least: float | None
    at_most: float | None
    renew: bool
    reentrant: bool
    description: str
    owner: str | None
    on_lost: OnLost | None
    release: Release | None

    def __post_init__(self) -> None:
        # The defaults are right. Each check that is called makes every lock slower.
        if self.on_busy != "wait":
            checked_choice("on_busy", self.on_busy, get_args(OnBusy))
        if self.timeout is not None:
            waiting_limit(True, self.timeout)
        if self.busy_result is not None and self.on_busy != "skip":
            raise ValueError(
                f"busy_result={self.busy_result!r} is what a skipped call returns: it goes with"
                f" on_busy='skip', not {self.on_busy!r}"
            )
        if self.lease is not None:
            checked_seconds("lease", self.lease)
        if self.at_least is not None:
            checked_seconds("at_least", self.at_least)
        if self.at_most is not None:
            checked_seconds("at_most", self.at_most)
            if not self.renew or (self.at_least or 0.0) > self.at_most:
                raise ValueError(
                    f"at_most={self.at_most:g} is for holds that are renewed, and no shorter than"
                    f" at_least; got renew={self.renew!r} and at_least={self.at_least!r}"
                )
        if self.renew is not True:
            checked_flag("renew", self.renew)
        if self.reentrant is not True:
            checked_flag("reentrant", self.reentrant)
            if self.owner is not None:
                raise ValueError(f"reentrant=False does not go with owner={self.owner!r}")
        if self.description != "":
            checked_description(self.description)
        if self.owner is not None:
            checked_label("owner", self.owner)
        if self.on_lost is not None:
            checked_callback("on_lost", self.on_lost)
        if self.release is not None:
            checked_release("release", self.release)

    def limit(
        self, blocking: bool | None, timeout: float | None, began: float | None = None
    ) -> tuple[bool, float | None]:
        """Return whether to wait, and if so, until when by the local clock (None: forever).

        The arguments are those of ``acquire()``; these options hold where they are None. ``began``
        is when that was called, None for now.
        """
        if blocking is None:
            limited = timeout is not None or self.timeout is not None
            blocking = limited or self.on_busy == "wait"
        else:
            blocking = checked_flag("blocking", blocking)
        if timeout is None and blocking:
            timeout = self.timeout
        wait, seconds = waiting_limit(blocking, timeout)
        if seconds is None or not wait:
            return wait, None
        return True, (clock() if began is None else began) + seconds

    def request(
        self,
        backend: BaseBackend,
        lock: Requester,
        blocking: bool | None = None,
        timeout: float | None = None,
        began: float | None = None,
    ) -> AcquireRequest:
        """Return what the current owner wants of a backend, by way of the Lock object ``lock``.

        ``blocking`` and ``timeout`` are the arguments of ``acquire()``; these options hold where
        they are None. ``began``: see limit(). NotSupported if the backend cannot give what the
        options ask for; LockError in a job of an executor that would end with the lock.
        """
        wait, deadline = self.on_busy == "wait", None
        if blocking is not None or timeout is not None or self.timeout is not None:
            wait, deadline = self.limit(blocking, timeout, began)
        key, wanted, named = lock._key, self.lease, self.owner is not None
        lease = backend.settings.lease if wanted is None else checked_lease(backend, wanted)
        if named and not backend.capabilities.named_owners:
            raise NotSupported(
                f"owner={self.owner!r}: a hold of DISTLOCK[{backend.alias!r}] cannot pass from one"
                " process to another; leave it out"
            )
        owner, liveness, work = current_actor(self.owner)
        description = self.description or current_activity()
        site, label, is_whole_job = call_site(description)
        if is_whole_job and self.renew and not named:
            raise LockError(
                f"lock {key.name!r}: this job of an executor only acquires it, so nobody could"
                f" release it. In a task use `await lock.aacquire()` or `async with lock`; in"
                " a thread take and release it in one function"
            )
        at_least = 0.0 if self.at_least is None else float(self.at_least)
        nonce = lock.claim_nonce or os.urandom(16).hex()
        claim = Claim(key.name, owner, lease, description, nonce, self.renew, at_least, key.kind)
        claim.call_site, claim.label = site, label
        entry = Entrant(liveness, at_least, self.renew, self.on_lost, lock, work, site)
        entry.reentrant, entry.at_most = self.reentrant, self.at_most
        lane = (key, owner.key) if named else key
        return AcquireRequest(backend, claim, entry, named, wanted, wait, deadline, key, lane)

    def refuse_block(self, lock: object) -> None:
        """Raise TypeError for a ``with`` block, which cannot be skipped."""
        raise TypeError(
            f"{lock!r}: on_busy='skip' cannot skip a `with` block, only a decorated function."
            " Use `with lock.attempt() as acquired:`, or on_busy='raise'"
        )

    def busy(self, message: str, holder: Holder | None) -> LockBusy:
        """Return the error for who did not get the lock."""
        waited, _ = self.limit(None, None)
        if waited and self.timeout is not None:
            message += f"; waited for {self.timeout:g} s"
        error = LockTimeout(message) if waited else LockBusy(message)
        error.holder = holder
        return error


def checked_lease(backend: BaseBackend, wanted: float | None) -> float:
    """Return the length of a lease in seconds, None for the backend's own.

    NotSupported if the backend has no leases of this length.
    """
    if wanted is None:
        return backend.settings.lease
    if not backend.capabilities.lease_lengths:
        raise NotSupported(
            f"lease={wanted!r}: the locks of DISTLOCK[{backend.alias!r}] have no lease of"
            " their own length; leave it out"
        )
    if wanted < backend.capabilities.shortest_lease:
        raise NotSupported(
            f"lease={wanted!r}: a lease of DISTLOCK[{backend.alias!r}] lasts for"
            f" {backend.capabilities.shortest_lease:g} s at least; ask for that, or more"
        )
    return float(wanted)
