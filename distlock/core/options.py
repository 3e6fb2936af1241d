"""On which terms a lock is taken: how long to wait for it, and how it is held."""

from __future__ import annotations

from dataclasses import dataclass

from distlock.activity import current_activity
from distlock.backends.base import BaseBackend
from distlock.clock import clock
from distlock.core.attempt import AcquireRequest
from distlock.core.held import Level, OnLost
from distlock.exceptions import NotSupported
from distlock.types.arguments import checked_callback, checked_flag, checked_seconds, waiting_limit
from distlock.types.lease import Claim
from distlock.types.names import checked_description, checked_owner
from distlock.types.owners import current_life, current_owner


@dataclass(frozen=True, slots=True)
class LockOptions:
    """The arguments of ``Lock`` beside its name; see there. Wrong ones are refused by name."""

    blocking: bool
    timeout: float | None
    lease: float | None
    at_least: float | None
    renew: bool
    description: str
    owner: str | None
    on_lost: OnLost | None

    def __post_init__(self) -> None:
        checked_flag("blocking", self.blocking)
        waiting_limit(self.blocking, self.timeout)
        if self.lease is not None:
            checked_seconds("lease", self.lease)
        if self.at_least is not None:
            checked_seconds("at_least", self.at_least)
        checked_flag("renew", self.renew)
        checked_description(self.description)
        if self.owner is not None:
            checked_owner(self.owner)
        checked_callback("on_lost", self.on_lost)

    def limit(self, blocking: bool | None, timeout: float | None) -> tuple[bool, float | None]:
        """Return whether to wait, and until when by the local clock (None: for ever).

        The arguments are those of ``acquire()``; these terms hold where they are None.
        """
        if blocking is None:
            blocking = self.blocking if timeout is None else True
        else:
            blocking = checked_flag("blocking", blocking)
        if timeout is None and blocking:
            timeout = self.timeout
        wait, seconds = waiting_limit(blocking, timeout)
        return wait, None if seconds is None else clock() + seconds

    def request(self, backend: BaseBackend, name: str, lock: object = None) -> AcquireRequest:
        """Return what the current owner wants of a backend, by way of the Lock object ``lock``.

        NotSupported if the backend cannot give that.
        """
        if self.lease is not None and not backend.capabilities.lease_lengths:
            raise NotSupported(
                f"lease={self.lease!r}: the locks of DISTLOCK[{backend.alias!r}] have no lease of"
                " their own length; leave it out"
            )
        if self.owner is not None and not backend.capabilities.named_owners:
            raise NotSupported(
                f"owner={self.owner!r}: a hold of DISTLOCK[{backend.alias!r}] cannot pass from one"
                " process to another; leave it out"
            )
        duration = backend.settings.lease if self.lease is None else float(self.lease)
        description = self.description or current_activity()
        owner = current_owner(self.owner)
        at_least = 0.0 if self.at_least is None else float(self.at_least)
        claim = Claim(name, owner, duration, description, renews=self.renew, at_least=at_least)
        level = Level(current_life(), at_least, self.renew, self.on_lost, lock)
        return AcquireRequest(backend, claim, level, self.lease)

    @property
    def waited(self) -> str:
        """Words for how long was waited, for an error."""
        if not self.blocking or self.timeout is None:
            return ""
        return f" for the {self.timeout:g} s that were waited"
