"""The page about one lock."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from distlock.admin.broken import BrokenHold
from distlock.admin.rows import LockRow, local_holds
from distlock.backends.base import BaseBackend
from distlock.backends.seats import backend_name
from distlock.backends.shared import part_of
from distlock.commands.output import release_command, show_command
from distlock.fan_out import call_backends
from distlock.types.lease import Kind, LockInfo
from distlock.types.query import LockQuery


@dataclass(frozen=True, slots=True)
class LockDetail:
    """What the page about a lock shows. ``row`` is None if its backend did not answer."""

    alias: str
    kind: Kind
    name: str
    row: LockRow | None = None
    problem: str = ""
    stored: Mapping[str, str] = field(default_factory=dict)
    aftermath: Mapping[str, Any] = field(default_factory=dict)  # of a break, see BrokenHold

    @property
    def show_line(self) -> str:
        """The command that shows the lock."""
        return show_command(LockInfo(self.name, self.alias, kind=self.kind))

    @property
    def release_line(self) -> str:
        """The command that breaks the hold; empty if there is none."""
        if self.row is None or self.row.status is None or self.row.kind:
            return ""  # of several holders each has one, which `locks show` prints
        return release_command(self.row.info)


def lock_detail(
    alias: str,
    kind: Kind,
    name: str,
    *,
    broken: BrokenHold | None = None,
    wait_for_silent: bool = True,
) -> LockDetail:
    """Ask the backend for a lock; raises no error of the backend. See call_backends().

    ``broken`` is a hold of it that was broken: what its process holds now is asked for, too.
    """

    def ask(
        backend: BaseBackend, deadline: float
    ) -> tuple[LockInfo, Mapping[str, str], Mapping[str, Any]]:
        part, its_name = part_of(backend, kind), backend_name(kind, name)
        info, stored = part.inspect(its_name, deadline), part.stored(its_name, deadline)
        if broken is None:
            return info, stored, {}
        process = LockQuery(search=f"{broken.owner.host}:{broken.owner.pid}:")
        return info, stored, broken.aftermath(info, backend.page(process, deadline).locks)

    answer = call_backends([alias], ask, wait_for_silent=wait_for_silent)[alias]
    if answer.value is not None:
        info, stored, aftermath = answer.value
        return LockDetail(alias, kind, name, LockRow(info), stored=stored, aftermath=aftermath)
    mine = [info for info in local_holds(alias) if (info.kind, info.name) == (kind, name)]
    held = LockRow(mine[0], suspended=True) if mine else None
    return LockDetail(alias, kind, name, held, answer.problem)
