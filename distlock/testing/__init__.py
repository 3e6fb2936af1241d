"""For the tests of projects: every test finds its locks free, and one that keeps a lock fails.

A mixin for Django's test cases, a context manager and decorator for everything else, and a fixture
for pytest of the same name.
"""

from __future__ import annotations

import time
import unittest
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress

from distlock.conf import locks
from distlock.core.held import HeldLease
from distlock.core.manager import manager
from distlock.core.queueing_owners import PREFIX as QUEUEING
from distlock.types.owners import current_liveness, current_owner, is_reserved

__all__ = ["IsolatedLocksMixin", "LeakedLock", "isolated_locks"]

#: Seconds that other threads and tasks get to leave what they hold when a test ends.
_TIME_TO_LEAVE = 5.0
_PAUSE = 0.01

#: How often each hold had been entered when a test began.
Entered = Mapping[HeldLease, int]


class LeakedLock(AssertionError):
    """A test ended without leaving a lock that it had taken."""


@contextmanager
def isolated_locks() -> Iterator[None]:
    """Run a test of whatever kind, as ``with isolated_locks():`` or below ``@isolated_locks()``.

    What this process took meanwhile is free afterwards, whoever in it has it: locks that were not
    left, queueing locks of tasks that no worker ran, and what ``at_least`` would keep taken (except
    in ZooKeeper).

    Raises LeakedLock that names the locks which were not left, except those that were held before.
    Other threads and tasks get five seconds to leave theirs. An error of the body goes first.
    """
    before = _entered()
    try:
        yield
    except BaseException as error:
        if leaked := _free_again(before):
            error.add_note(leaked)
        raise
    _check_for_leaks(before)


class IsolatedLocksMixin(unittest.TestCase):
    """Put it before Django's test case: ``class ReportTest(IsolatedLocksMixin, TestCase)``.

    Each test runs as under :func:`isolated_locks`. Locks that ``setUpClass()`` takes may be kept.
    """

    def run(self, result: unittest.TestResult | None = None) -> unittest.TestResult | None:
        """See TestCase.run()."""
        self.addCleanup(_check_for_leaks, _entered())  # the first clean-up runs last
        return super().run(result)


def _entered() -> Entered:
    return {hold: hold.count for hold in manager.all()}


def _check_for_leaks(before: Entered) -> None:
    if leaked := _free_again(before):
        raise LeakedLock(leaked)


def _free_again(before: Entered) -> str:
    """Free what was taken since then; return a message that names what was not left, if any was."""
    until = time.monotonic() + _TIME_TO_LEAVE
    while any(map(_is_elsewhere, leaked := _leaked(before))) and time.monotonic() < until:
        time.sleep(_PAUSE)
    message = "; ".join(map(_sentence, leaked))
    for hold in manager.all():
        if hold not in before:
            with suppress(Exception):  # its backend may be gone, or forbidden by now
                manager.free(hold)
    _free_what_nobody_is_in()
    return message


def _leaked(before: Entered) -> list[HeldLease]:
    # A named owner's hold that ended was carried on elsewhere, or left there.
    return [
        hold
        for hold in manager.all()
        if hold.count > before.get(hold, 0) and not (hold.named and hold.ended)
    ]


def _is_elsewhere(hold: HeldLease) -> bool:
    """Return whether a thread or task that goes on has it, other than the one that looks."""
    here = current_liveness()
    return any(entry.is_alive() and entry.is_alive != here for entry in hold.entries)


def _sentence(hold: HeldLease) -> str:
    lease = hold.lease
    state = f"was lost ({hold.lost}) and not left" if hold.lost else "was not left"
    return (
        f"lock {lease.name!r} on {hold.backend.alias!r} {state} by the test;"
        f" {lease.owner} took it (token {lease.token})"
    )


def _free_what_nobody_is_in() -> None:
    """Free the queueing locks, and what ``at_least`` keeps, if this process took them.

    Other rows of this process may be about to be freed by another thread.
    """
    me = current_owner()
    for backend in locks.made():
        with suppress(Exception):  # where it may not be asked, this test has taken nothing
            for info in list(backend.list()):
                who, token = info.owner, info.token
                if who is None or token is None or (who.host, who.pid) != (me.host, me.pid):
                    continue
                if is_reserved(who) or info.name.startswith(QUEUEING):
                    backend.force_release(info.name, token)
