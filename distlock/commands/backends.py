"""The backends a command asks, and what became of those that could not be asked."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from django.core.exceptions import ImproperlyConfigured

from distlock.backends.base import BaseBackend
from distlock.commands.exit_codes import FAILED, USAGE, leave
from distlock.commands.quiet import quiet_drivers
from distlock.commands.text import escaped
from distlock.conf import locks
from distlock.exceptions import LockError


class Backends:
    """The backends of some aliases, or of all. One that fails does not keep the others back."""

    def __init__(self, using: Iterable[str] | None) -> None:
        quiet_drivers()
        try:
            known = list(locks)
        except ImproperlyConfigured as error:
            leave(FAILED, escaped(str(error)))
        self.aliases = list(dict.fromkeys(using or known))
        for alias in self.aliases:
            if alias not in known:
                leave(
                    USAGE,
                    f"--using: DISTLOCK has no alias {alias!r}; the aliases are:"
                    f" {', '.join(map(repr, known))}",
                )
        #: why backends could not be asked, by alias
        self.failures: dict[str, str] = {}

    def __iter__(self) -> Iterator[str]:
        return iter(self.aliases)

    def __getitem__(self, alias: str) -> BaseBackend:
        return locks[alias]

    @contextmanager
    def noting(self, alias: str) -> Iterator[None]:
        """Note a failure of the backend ``alias`` instead of raising it."""
        try:
            yield
        except (LockError, ImproperlyConfigured) as error:
            self.failures[alias] = escaped(str(error)) or type(error).__name__

    def finish(self) -> None:
        """End with an error if a backend could not be asked."""
        if self.failures:
            leave(FAILED, "; ".join(self.report()))

    def report(self) -> list[str]:
        """Return a sentence for each backend that could not be asked."""
        return [f"{alias!r} could not be asked: {why}" for alias, why in self.failures.items()]
