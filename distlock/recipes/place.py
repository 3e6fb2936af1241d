"""A place in the line of those who wait for something that is not a seat."""

from __future__ import annotations

from dataclasses import fields, replace
from functools import partial
from typing import Any

from distlock.backends.base import BaseBackend
from distlock.concurrency.clock import left
from distlock.concurrency.steps import Nested, Steps
from distlock.core.acquiring import AcquireRequest
from distlock.core.shared_options import SemaphoreOptions
from distlock.recipes.semaphore import Semaphore
from distlock.types.lease import LONGEST_LEASE, Claim, new_nonce
from distlock.types.owners import current_actor


class PlaceOptions(SemaphoreOptions):
    """Options of one who keeps its place while it looks for what it waits for."""

    def request(self, backend: BaseBackend, name: str, *args: Any, **kwargs: Any) -> AcquireRequest:
        """See LockOptions.request()."""
        request = SemaphoreOptions.request(self, backend, name, *args, **kwargs)
        request.claim = replace(request.claim, keeps_place=True)
        return request


class Place(Semaphore):
    """The place of one thread or task in a line; whoever is the first has the one seat.

    It is for one wait. Those behind the first one are told now and then to look for themselves, the
    nearest ones most often, because the first one may have been stopped or killed. They keep their
    places meanwhile.
    """

    def __init__(self, name: str, using: str) -> None:
        """Describe a place in the line of this name; nothing is asked yet."""
        super().__init__(name, 1, using=using)
        options = self._options
        values = (getattr(options, field.name) for field in fields(options))
        self._options = PlaceOptions(*values)
        self.claim_nonce = new_nonce()

    def waiting(self, deadline: float | None) -> Steps[bool]:
        """Return True as the first one; False when it is time to look, or the time is over."""
        terms = True, None if deadline is None else left(deadline, LONGEST_LEASE)
        return (yield Nested(partial(self.acquire, *terms), partial(self.aacquire, *terms)))  # type: ignore[no-any-return]

    def giving_up(self, deadline: float | None) -> Steps[None]:
        """Leave the line, as one who does not have the seat."""
        backend = self._backend
        yield backend.asking(partial(backend.leave_queue, self._claim), deadline)

    def give_up_soon(self) -> None:
        """Leave the line in the background, as one who does not have the seat; may be repeated."""
        self._backend.cleanup.add(self._claim)

    @property
    def _claim(self) -> Claim:
        lease = self._backend.settings.lease
        owner, kind = current_actor().owner, self._options.kind
        return Claim(self.name, owner, lease, nonce=self.claim_nonce, renews=True, kind=kind)
