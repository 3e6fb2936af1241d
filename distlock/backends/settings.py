"""One entry of the ``DISTLOCK`` setting, checked."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NoReturn

from django.core.exceptions import ImproperlyConfigured

from distlock.types.lease import LONGEST_LEASE

DEFAULT_LEASE = 30.0
#: A renewal may fail once and be tried again in time if leases outlast three of their intervals.
RENEWALS_PER_LEASE = 3

_KNOWN = ("BACKEND", "LEASE", "RENEW", "LOCATION", "OPTIONS")


class BackendSettings:
    """What ``DISTLOCK[alias]`` says; every error names that entry.

    - ``LEASE``: seconds that a lease lasts unless a lock says otherwise (30).
    - ``RENEW``: seconds between two renewals; at most, and by default, a third of ``LEASE``.
    - ``LOCATION``: where the servers are, for backends that do not take this from elsewhere.
    - ``OPTIONS``: what else the backend understands.
    """

    def __init__(
        self,
        alias: str,
        params: Mapping[str, Any],
        default_options: Mapping[str, Any],
        *,
        uses_location: bool,
    ) -> None:
        self.alias = alias
        self._refuse_unknown("", params, _KNOWN)
        if params.get("LOCATION") and not uses_location:
            self.refuse("LOCATION has no meaning for this backend")
        self.location = params.get("LOCATION", "")
        options = params.get("OPTIONS") or {}
        if not isinstance(options, Mapping):
            self.refuse(f"OPTIONS must be a dictionary, not {options!r}")
        self._refuse_unknown("OPTIONS: ", options, tuple(default_options))
        self.options: dict[str, Any] = {**default_options, **options}
        self.lease = self._seconds("LEASE", params.get("LEASE", DEFAULT_LEASE))
        longest = self.lease / RENEWALS_PER_LEASE
        self.renew = self._seconds("RENEW", params.get("RENEW", longest))
        if self.renew > longest:
            self.refuse(
                f"RENEW is {self.renew:g}, but with LEASE {self.lease:g} it may be at most"
                f" {longest:g} seconds, so that a renewal that fails can be tried again in time"
            )

    def interval(self, duration: float) -> float:
        """Return the seconds between two renewals of a lease of ``duration`` seconds."""
        return min(self.renew, duration / RENEWALS_PER_LEASE)

    def seconds(self, option: str) -> float:
        """Return an option that must be a finite, positive number of seconds."""
        return self._seconds(f"OPTIONS[{option!r}]", self.options[option])

    def choice(self, option: str, allowed: tuple[str, ...]) -> str:
        """Return an option that must be one of ``allowed``."""
        value = self.options[option]
        if value not in allowed:
            self.refuse(f"OPTIONS[{option!r}] is {value!r}; it must be one of {', '.join(allowed)}")
        return str(value)

    def count(self, option: str, *, at_least: int = 0) -> int:
        """Return an option that must be a whole number, not below ``at_least``."""
        value = self.options[option]
        if not isinstance(value, int) or isinstance(value, bool) or value < at_least:
            self.refuse(f"OPTIONS[{option!r}] must be a whole number >= {at_least}, not {value!r}")
        return int(value)

    def refuse(self, problem: str) -> NoReturn:
        raise ImproperlyConfigured(f"DISTLOCK[{self.alias!r}]: {problem}.")

    def _seconds(self, what: str, value: Any) -> float:
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            self.refuse(f"{what} must be a number of seconds, not {value!r}")
        if not 0 < value < math.inf:
            self.refuse(f"{what} must be finite and greater than 0, not {value!r}")
        if value > LONGEST_LEASE:
            self.refuse(f"{what} must be at most {LONGEST_LEASE} seconds, not {value!r}")
        return float(value)

    def _refuse_unknown(self, where: str, given: Mapping[str, Any], known: tuple[str, ...]) -> None:
        for key in given:
            if key not in known:
                names = ", ".join(map(repr, known)) or "none"
                self.refuse(f"{where}unknown setting {key!r}; known are: {names}")
