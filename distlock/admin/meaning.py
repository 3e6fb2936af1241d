"""What the state of a lock means, in plain words, for the person who decides what to do."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from datetime import timedelta

from django.utils.translation import gettext as _

from distlock.admin.listed import Listed
from distlock.backends.base import BaseBackend
from distlock.backends.local import LocalBackend
from distlock.lease import LockInfo
from distlock.listing import Standing
from distlock.owners import current_owner
from distlock.templatetags.distlock_admin import span

#: Seconds that the answer to a renewal may take.
_ANSWER = 1.0


def meaning(listed: Listed, backend: BaseBackend) -> list[str]:
    """Return sentences about how it stands with a lock."""
    match listed.standing:
        case None:
            return [_("Nobody holds this lock.")]
        case Standing.EXPIRED:
            return list(_expired(listed.info))
        case Standing.SUSPENDED:
            return list(_suspended(listed.info))
    if listed.is_kept:
        return list(_kept(listed.info))
    return [*_held(listed), *_where(listed.info, backend)]


def consequences(listed: Iterable[Listed]) -> list[str]:
    """Return sentences about what breaking these holds does."""
    within = max((each.renew for each in listed), default=0.0) + _ANSWER
    return [
        _("Whoever is next gets the lock at once."),
        _("The old holder may still be working: nothing stops its code."),
        _(
            "It is told when it next renews, within %(time)s: then lock.held is false, lock.check()"
            " and leaving the lock raise LockLost, and on_lost is called."
        )
        % {"time": span(within)},
        _(
            "What it writes with its old fencing token is refused where a newer one has been seen;"
            " everything else it writes is not."
        ),
    ]


def _kept(info: LockInfo) -> Iterator[str]:
    yield _(
        "Its holder has left it, but wanted it to stay taken for a while: it is free in %(time)s."
        " Nobody works under it any more. Broken, it could be taken at once, which its holder"
        " wanted to prevent."
    ) % {"time": span(info.remaining)}


def _held(listed: Listed) -> Iterator[str]:
    info = listed.info
    if info.remaining is None:
        yield _(
            "It is held for as long as the session of its process lives. If the process ends, or"
            " cannot reach the servers for longer than a session lasts, they free the lock by"
            " themselves."
        )
        return
    yield _("The lease ends in %(time)s, unless it is renewed.") % {"time": span(info.remaining)}
    if info.remaining > listed.lease:
        yield _("It is longer than usual here.")
    elif info.remaining > listed.lease - 1.5 * listed.renew:
        yield _(
            "It was taken or renewed a moment ago: its process is alive, though nobody can tell"
            " from here whether its work goes on. Should the process end, the lock is free when the"
            " lease ends, without being broken."
        )
    else:
        yield _(
            "A usual lease of this backend would have been renewed by now. Either this one is"
            " shorter or not meant to be renewed, or its process hangs or cannot reach the backend."
        )


def _where(info: LockInfo, backend: BaseBackend) -> Iterator[str]:
    here = current_owner()
    if info.owner and (info.owner.host, info.owner.pid) == (here.host, os.getpid()):
        yield _("It is held by the very process that shows this page.")
    elif isinstance(backend, LocalBackend):
        yield _("Other processes do not see it.")


def _expired(info: LockInfo) -> Iterator[str]:
    if info.since and info.until and info.held_for is not None:
        over = info.held_for - (info.until - info.since) / timedelta(seconds=1)
        yield _(
            "Its lease ended %(time)s ago and was not released: its process ended, hung, or could"
            " not reach the backend."
        ) % {"time": span(over)}
    yield _("Whoever asks next gets the lock. There is no need to break it; a sweep clears it.")


def _suspended(info: LockInfo) -> Iterator[str]:
    yield _(
        "The backend does not answer. This process holds the lock, and counts on it for another"
        " %(time)s; if the backend can be reached again until then, it goes on."
    ) % {"time": span(info.remaining)}
