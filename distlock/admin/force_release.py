"""Breaks the holds that someone has chosen, each only if it is still the one that was shown."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from django.core.exceptions import ImproperlyConfigured
from django.utils.translation import gettext_lazy as _

from distlock.admin.fan_out import LIMIT, ask_all
from distlock.admin.hold_ref import Chosen
from distlock.admin.lock_row import Listed
from distlock.admin.log import in_the_logs_language, log
from distlock.backends.base import BaseBackend
from distlock.clock import clock
from distlock.conf import locks
from distlock.core.events import send_event
from distlock.exceptions import LockError, LockUnavailable
from distlock.signals import lock_broken
from distlock.types.lease import Lease, LockInfo, State
from distlock.types.printable import escaped

logger = logging.getLogger("distlock")


class Outcome(StrEnum):
    """What became of a hold that was to be released."""

    RELEASED = "released"
    CHANGED = "changed"  # it is no longer the hold that was shown
    UNKNOWN = "unknown"  # the backend was told, and its answer did not come
    UNTOUCHED = "untouched"  # the backend could not be told


@dataclass(frozen=True, slots=True)
class Done:
    """A chosen hold and what became of it; ``logged``: whether the trace could be written."""

    chosen: Chosen
    outcome: Outcome
    problem: str = ""
    logged: bool = True


@dataclass(frozen=True, slots=True)
class Sighting:
    """A chosen hold as it is now: ``listed`` is what there is, None if nobody could be asked."""

    chosen: Chosen
    listed: Listed | None
    problem: str = ""

    @property
    def is_current(self) -> bool:
        """Whether the hold that was chosen is the one that there is."""
        return self.listed is not None and _same(self.listed.info, self.chosen)


def look_at(chosen: Iterable[Chosen]) -> list[Sighting]:
    """Return how it stands with the holds now, in their order; asks all backends at once."""
    chosen = list(chosen)
    wanted = {each.alias: [one for one in chosen if one.alias == each.alias] for each in chosen}

    def inspect(backend: BaseBackend, deadline: float) -> dict[Chosen, LockInfo]:
        return {each: backend.inspect(each.name, deadline) for each in wanted[backend.alias]}

    answers = ask_all(wanted, inspect)

    def sighting(each: Chosen) -> Sighting:
        answer = answers[each.alias]
        if answer.backend is None or answer.value is None:
            return Sighting(each, None, answer.problem)
        return Sighting(each, Listed.of(answer.value[each], answer.backend))

    return [sighting(each) for each in chosen]


def release(chosen: Iterable[Chosen], user: Any, reason: str) -> list[Done]:
    """Break the holds, and write down who broke them and why. Returns what became of each.

    A backend that does not answer once is not told of the others that it has.
    """
    done: list[Done] = []
    silent: dict[str, str] = {}
    for each in chosen:
        if problem := silent.get(each.alias):
            done.append(Done(each, Outcome.UNTOUCHED, problem))
            continue
        one = _release(each, user, reason)
        if one.problem:
            silent[each.alias] = one.problem
        done.append(one)
    return done


def _release(each: Chosen, user: Any, reason: str) -> Done:
    try:
        backend = locks[each.alias]
        lease = backend.force_release(each.name, each.token, clock() + LIMIT)
    except Exception as error:
        problem = escaped(" ".join(str(error).split())) or type(error).__name__
        if not isinstance(error, (LockError, ImproperlyConfigured)):
            logger.exception("backend %r failed when the admin released a lock", each.alias)
        elif not (isinstance(error, LockUnavailable) and error.maybe_applied):
            return Done(each, Outcome.UNTOUCHED, problem)
        message = in_the_logs_language(
            _(
                "Told to release token %(token)d, without an answer (%(problem)s)."
                " Reason: %(reason)s"
            ),
            {"token": each.token, "problem": problem, "reason": escaped(reason)},
        )
        return Done(each, Outcome.UNKNOWN, problem, log(user, each.alias, each.name, message))
    if lease is None:
        return Done(each, Outcome.CHANGED)
    send_event(lock_broken, backend, lease)
    logged = log(user, each.alias, each.name, _message(lease, reason))
    return Done(each, Outcome.RELEASED, logged=logged)


def _message(lease: Lease, reason: str) -> str:
    values = {
        "token": lease.token,
        "owner": escaped(str(lease.owner)),
        "reason": escaped(reason),
    }
    return in_the_logs_language(
        _("Force released: token %(token)d, owner %(owner)s. Reason: %(reason)s"), values
    )


def _same(info: LockInfo, chosen: Chosen) -> bool:
    return info.state is not State.FREE and info.token == chosen.token
