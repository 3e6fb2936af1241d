"""What the state of a lock means, in plain words, for the person who decides what to do."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Iterator, Sequence
from datetime import timedelta

from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from distlock.admin.lock_row import Listed
from distlock.backends.base import BaseBackend
from distlock.backends.local import LocalBackend
from distlock.templatetags.distlock_admin import span
from distlock.types.lease import LockInfo
from distlock.types.owners import current_owner
from distlock.types.query import DisplayStatus

#: Seconds that the answer to a renewal may take.
_ANSWER = 1.0


def meaning(listed: Listed, backend: BaseBackend) -> list[str]:
    """Return sentences about how it stands with a lock."""
    match listed.status:
        case None:
            return [_("Nobody holds this lock.")]
        case DisplayStatus.EXPIRED:
            return list(_expired(listed.info))
        case DisplayStatus.SUSPENDED:
            return list(_suspended(listed.info))
    if listed.is_reserved:
        return list(_kept(listed.info))
    return [*_held(listed), *_where(listed.info, backend)]


def consequences(listed: Iterable[Listed]) -> list[str]:
    """Return sentences about what breaking these holds does."""
    working = [each for each in listed if not each.is_reserved]
    sentences = [_("Whoever is next gets the lock at once.")]
    if working:
        sentences.append(_("The old holder may still be working: nothing stops its code."))
        held = [each for each in working if each.status is not DisplayStatus.EXPIRED]
        sentences += [*_told([each for each in held if each.told_within is not None])]
        sentences += [*_not_told([each for each in held if each.told_within is None])]
    sentences.append(
        _(
            "What it writes with its old fencing token is refused where a newer one has been seen;"
            " everything else it writes is not."
        )
    )
    return sentences


def _told(held: Sequence[Listed]) -> Iterator[str]:
    """Yield when holders learn that their holds were broken."""
    if not held:
        return
    within = max(each.told_within or 0.0 for each in held) + _ANSWER
    yield ngettext(
        "%(count)d holder is told within %(time)s, or at the end of its lease if it cannot reach"
        " the backend: then lock.held is false, lock.check() and leaving the lock raise LockLost,"
        " and on_lost is called.",
        "%(count)d holders are told within %(time)s, or at the end of their leases if they cannot"
        " reach the backend: then lock.held is false, lock.check() and leaving the lock raise"
        " LockLost, and on_lost is called.",
        len(held),
    ) % {"count": len(held), "time": span(math.ceil(within))}


def _not_told(held: Sequence[Listed]) -> Iterator[str]:
    if not held:
        return
    ends = max(
        each.info.lease or 0.0 if each.info.remaining is None else each.info.remaining
        for each in held
    )
    yield ngettext(
        "%(count)d holder does not renew its lease and is not told: until the lease ends, in"
        " %(time)s at the latest, lock.held stays true there and lock.check() raises nothing. Only"
        " lock.verify() and leaving the lock ask the backend.",
        "%(count)d holders do not renew their leases and are not told: until the leases end, the"
        " last of them in %(time)s, lock.held stays true there and lock.check() raises nothing."
        " Only lock.verify() and leaving the lock ask the backend.",
        len(held),
    ) % {"count": len(held), "time": span(math.ceil(ends))}


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
        if info.renews is False:
            yield _(
                "It is not renewed: its process leaves it at the latest %(time)s after it was"
                " taken."
            ) % {"time": span(info.lease)}
        return
    if not info.renews:
        yield _(
            "The lease ends in %(time)s and is not renewed: the lock is free then, whether the"
            " work under it is done or not. Until then nothing shows whether its process is alive."
        ) % {"time": span(info.remaining)}
        return
    yield _("The lease ends in %(time)s, unless it is renewed.") % {"time": span(info.remaining)}
    ago = max((info.lease or 0.0) - info.remaining, 0.0)
    if listed.status is DisplayStatus.EXPIRING:
        yield _(
            "It was taken or renewed %(time)s ago and should have been renewed by now: its process"
            " hangs, has ended, or cannot reach the backend. The lock is free when the lease ends,"
            " without being broken."
        ) % {"time": span(ago)}
    else:
        yield _(
            "It was taken or renewed %(time)s ago: its process was alive then, though nobody can"
            " tell from here whether its work goes on. Should the process end, the lock is free"
            " when the lease ends, without being broken."
        ) % {"time": span(ago)}


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
