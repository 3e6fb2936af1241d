"""One lock with all that is known of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from django.contrib.admin.models import LogEntry

from distlock.admin.explanations import meaning
from distlock.admin.fan_out import ask_all
from distlock.admin.local_holds import own_locks
from distlock.admin.lock_row import Listed
from distlock.admin.log import entries
from distlock.backends.base import BaseBackend
from distlock.commands.shell_commands import release_line, show_line
from distlock.types.lease import LockInfo


@dataclass(frozen=True, slots=True)
class Subject:
    """What the page about a lock shows. ``listed`` is None if its backend could not be asked."""

    alias: str
    name: str
    listed: Listed | None
    problem: str
    meaning: Sequence[str]
    show_line: str
    release_line: str
    log: Sequence[LogEntry]
    stored: Mapping[str, str]

    @property
    def can_be_released(self) -> bool:
        """Whether there is a hold to break, and someone to tell so."""
        return not self.problem and self.listed is not None and self.listed.status is not None


def subject(alias: str, name: str, *, patient: bool = True) -> Subject:
    """Ask for a lock; raises nothing that its backend could cause. See overview()."""

    def look(backend: BaseBackend, deadline: float) -> tuple[LockInfo, Mapping[str, str]]:
        return backend.inspect(name, deadline), backend.stored(name, deadline)

    (answer,) = ask_all([alias], look, patient=patient).values()
    listed = None
    stored: Mapping[str, str] = {}
    if answer.backend is not None:
        if answer.value is not None:
            info, stored = answer.value
            listed = Listed.of(info, answer.backend)
        elif mine := [info for info in own_locks(alias) if info.name == name]:
            listed = Listed.of(mine[0], answer.backend, suspended=True)
    held = listed is not None and listed.status is not None
    return Subject(
        alias,
        name,
        listed,
        answer.problem,
        meaning(listed, answer.backend) if listed and answer.backend else [],
        show_line(LockInfo(name, alias)),
        release_line(listed.info) if listed and held else "",
        entries(alias, name),
        stored,
    )
