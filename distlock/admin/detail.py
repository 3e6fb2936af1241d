"""The page about one lock."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from distlock.admin.fan_out import call_backends
from distlock.admin.rows import LockRow, local_holds
from distlock.backends.base import BaseBackend
from distlock.commands.output import release_command, show_command
from distlock.types.lease import LockInfo


@dataclass(frozen=True, slots=True)
class LockDetail:
    """What the page about a lock shows. ``row`` is None if its backend did not answer."""

    alias: str
    name: str
    row: LockRow | None = None
    problem: str = ""
    stored: Mapping[str, str] = field(default_factory=dict)

    @property
    def show_line(self) -> str:
        """The command that shows the lock."""
        return show_command(LockInfo(self.name, self.alias))

    @property
    def release_line(self) -> str:
        """The command that breaks the hold; empty if there is none."""
        return release_command(self.row.info) if self.row and self.row.status else ""


def lock_detail(alias: str, name: str, *, wait_for_silent: bool = True) -> LockDetail:
    """Ask the backend for a lock; raises no error of the backend. See call_backends()."""

    def ask(backend: BaseBackend, deadline: float) -> tuple[LockInfo, Mapping[str, str]]:
        return backend.inspect(name, deadline), backend.stored(name, deadline)

    answer = call_backends([alias], ask, wait_for_silent=wait_for_silent)[alias]
    if answer.value is not None:
        info, stored = answer.value
        return LockDetail(alias, name, LockRow(info), stored=stored)
    held = [LockRow(info, suspended=True) for info in local_holds(alias) if info.name == name]
    return LockDetail(alias, name, held[0] if held else None, answer.problem)
