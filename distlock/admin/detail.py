"""The page about one lock: its data, and sentences that explain its status."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta

from django.contrib.admin.models import LogEntry
from django.utils.translation import gettext as _

from distlock.admin.fan_out import call_backends
from distlock.admin.log import log_entries
from distlock.admin.rows import LockRow, local_holds
from distlock.backends.base import BaseBackend
from distlock.backends.local import LocalBackend
from distlock.commands.output import release_command, show_command
from distlock.templatetags.distlock_admin import duration
from distlock.types.lease import LockInfo
from distlock.types.owners import current_owner
from distlock.types.query import DisplayStatus


@dataclass(frozen=True, slots=True)
class LockDetail:
    """What the page about a lock shows. ``row`` is None if its backend did not answer."""

    alias: str
    name: str
    row: LockRow | None
    problem: str
    explanations: Sequence[str]
    show_line: str
    release_line: str
    log: Sequence[LogEntry]
    stored: Mapping[str, str]

    @property
    def can_be_released(self) -> bool:
        """Whether there is a hold, and its backend answers."""
        return not self.problem and self.row is not None and self.row.status is not None


def lock_detail(alias: str, name: str, *, wait_for_silent: bool = True) -> LockDetail:
    """Ask the backend for a lock; raises no error of the backend. See call_backends()."""

    def inspect(backend: BaseBackend, deadline: float) -> tuple[LockInfo, Mapping[str, str]]:
        return backend.inspect(name, deadline), backend.stored(name, deadline)

    answers = call_backends([alias], inspect, wait_for_silent=wait_for_silent)
    answer = answers[alias]
    row = None
    stored: Mapping[str, str] = {}
    if answer.backend is not None:
        if answer.value is not None:
            info, stored = answer.value
            row = LockRow.of(info, answer.backend)
        elif holds := [info for info in local_holds(alias) if info.name == name]:
            row = LockRow.of(holds[0], answer.backend, suspended=True)
    held = row is not None and row.status is not None
    return LockDetail(
        alias,
        name,
        row,
        answer.problem,
        explain(row, answer.backend) if row and answer.backend else [],
        show_command(LockInfo(name, alias)),
        release_command(row.info) if row and held else "",
        log_entries(alias, name),
        stored,
    )


def explain(row: LockRow, backend: BaseBackend) -> list[str]:
    """Return sentences about the status of a lock, for someone who decides what to do."""
    match row.status:
        case None:
            return [_("Nobody holds this lock.")]
        case DisplayStatus.EXPIRED:
            return list(_explain_expired(row.info))
        case DisplayStatus.SUSPENDED:
            return list(_explain_suspended(row.info))
    if row.is_reserved:
        return list(_explain_reserved(row.info))
    return [*_explain_held(row), *_explain_place(row.info, backend)]


def _explain_reserved(info: LockInfo) -> Iterator[str]:
    yield _(
        "Its holder has released it, but with at_least: it stays reserved for another %(time)s. No"
        " code runs under it any more. If you break it, it can be taken at once, which its holder"
        " wanted to prevent."
    ) % {"time": duration(info.remaining)}


def _explain_held(row: LockRow) -> Iterator[str]:
    info = row.info
    if info.remaining is None:
        yield _(
            "It is held for as long as the session of its process lives. If the process ends, or"
            " cannot reach the servers for longer than a session lasts, they free the lock by"
            " themselves."
        )
        if info.renews is False:
            yield _(
                "It is not renewed: its process leaves it at the latest %(time)s after it was"
                " taken."
            ) % {"time": duration(info.lease)}
        return
    if not info.renews:
        yield _(
            "The lease ends in %(time)s and is not renewed: the lock is free then, whether the"
            " work under it is done or not. Until then nothing shows whether its process is alive."
        ) % {"time": duration(info.remaining)}
        return
    yield _("The lease ends in %(time)s, unless it is renewed.") % {
        "time": duration(info.remaining)
    }
    renewed_ago = max((info.lease or 0.0) - info.remaining, 0.0)
    if row.status is DisplayStatus.EXPIRING:
        yield _(
            "It was taken or renewed %(time)s ago and should have been renewed by now: its process"
            " hangs, has ended, or cannot reach the backend. The lock is free when the lease ends,"
            " without being broken."
        ) % {"time": duration(renewed_ago)}
    else:
        yield _(
            "It was taken or renewed %(time)s ago: its process was alive then, though nobody can"
            " tell from here whether its work goes on. Should the process end, the lock is free"
            " when the lease ends, without being broken."
        ) % {"time": duration(renewed_ago)}


def _explain_place(info: LockInfo, backend: BaseBackend) -> Iterator[str]:
    here = current_owner()
    if info.owner and (info.owner.host, info.owner.pid) == (here.host, os.getpid()):
        yield _("It is held by the process that shows this page.")
    elif isinstance(backend, LocalBackend):
        yield _("Other processes do not see it.")


def _explain_expired(info: LockInfo) -> Iterator[str]:
    if info.since and info.until and info.held_for is not None:
        ended_ago = info.held_for - (info.until - info.since) / timedelta(seconds=1)
        yield _(
            "Its lease ended %(time)s ago and was not released: its process ended, hung, or could"
            " not reach the backend."
        ) % {"time": duration(ended_ago)}
    yield _("Whoever asks next gets the lock. There is no need to break it; a sweep clears it.")


def _explain_suspended(info: LockInfo) -> Iterator[str]:
    yield _(
        "The backend does not answer. This process holds the lock, and counts on it for another"
        " %(time)s; if the backend can be reached again until then, it goes on."
    ) % {"time": duration(info.remaining)}
