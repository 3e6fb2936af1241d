"""The lock that users hold."""

from __future__ import annotations

import hashlib
import json
import logging
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, Self, overload

from django.db.models import Model, QuerySet
from django.utils.asyncio import async_unsafe

from distlock.backends.base import LossReason
from distlock.concurrency.clock import clock
from distlock.concurrency.reentry import refuse_reentry
from distlock.concurrency.steps import Call, Sleep, Steps
from distlock.conf import DEFAULT_ALIAS
from distlock.exceptions import BodyEnded, LockError, LockLost, LockUnavailable, NotSupported
from distlock.locking.base_lock import BaseLock, twins
from distlock.locking.blocks import BlockLock, raise_or_note
from distlock.locking.options import LockOptions
from distlock.locking.until_commit import leave_until_commit
from distlock.runtime.hold import Hold, OnLost
from distlock.runtime.holds import not_held
from distlock.runtime.manager import manager
from distlock.types.lease import Owner
from distlock.types.values import OnBusy, Release, checked_int, checked_name, checked_seconds

if TYPE_CHECKING:
    from distlock.typed import MultiLock  # a stub

logger = logging.getLogger("distlock")

#: Seconds between two looks whether a renewal that is under way has ended.
_PAUSE = 0.02


class Lock(BaseLock):
    """A lock that one owner at a time holds, among all processes that use the same backend.

    The owner is the current asyncio task, or the current piece of work of a thread: a request, a
    job of an executor, a Celery task, a block under ``activity()``; outside of these, the thread.
    Two ``Lock`` objects of one name are one lock for one owner: the owner enters it again, and
    leaves as often as it entered.

    Use it with ``with``, with ``async with``, or as a decorator of plain and async functions. The
    name given to a decorator is a template: ``@Lock("report:{account_id}")`` is filled in from the
    arguments of each call, defaults included.
    """

    def __init__(
        self,
        name: str,
        *,
        using: str = DEFAULT_ALIAS,
        on_busy: OnBusy = "wait",
        timeout: float | None = None,
        busy_result: Any = None,
        lease: float | None = None,
        at_least: float | None = None,
        at_most: float | None = None,
        renew: bool = True,
        reentrant: bool = True,
        description: str = "",
        owner: str | None = None,
        on_lost: OnLost | None = None,
        release: Release | None = None,
    ) -> None:
        """Describe a lock; nothing is asked or taken yet.

        - ``name``: the name of the lock, 1 to 564 characters, compared exactly; no control
          characters, no space at either end.
        - ``using``: the alias of the backend in the ``DISTLOCK`` setting.
        - ``on_busy``: the behaviour of ``with`` and a decorated call if the lock is busy: "wait"
          for it, "raise" LockBusy, or "skip" the call, which then returns ``busy_result``. A
          ``with`` block cannot be skipped: see attempt().
        - ``timeout``: seconds to wait before that; with None "wait" waits forever, and "raise" and
          "skip" try once. A wait that times out raises LockTimeout, a LockBusy.
        - ``busy_result``: the result of a skipped call, with ``on_busy="skip"``.
        - ``lease``: seconds after which the backend may give the lock to another unless it was
          renewed meanwhile; None takes the backend's ``LEASE``.
        - ``at_least``: seconds for which the lock stays taken, counted from when it was granted.
          A holder that leaves it earlier, with or without an error, no longer holds it; but no
          owner can enter before that time is over, not even the one that left. So machines whose
          clocks differ do not run a short job twice that is due once. It holds for a process that
          is killed, too, except in ZooKeeper, where a lock ends with its process.
        - ``at_most``: seconds after its grant at which this process gives up a renewed hold,
          even if its thread hangs: then it is lost, for ``on_lost``, the signal and check(), and
          after that it is freed. The code in the thread goes on, unless it checks the lock.
          Entering again changes nothing; it raises LockError where it is to end the hold earlier.
        - ``renew``: whether the lease is renewed; with False the hold expires with it.
        - ``reentrant``: False refuses a thread or task that holds the lock already, as
          ``threading.Lock`` does: acquire() returns False if it does not wait, and raises
          LockDeadlock at once if it would wait, with or without a ``timeout``. It does not go
          with ``owner``.
        - ``description``: shown to operators; by default the current request or activity, if it is
          known (see :mod:`distlock.activity`).
        - ``owner``: a name for the owner in place of the thread or task, so that a hold may be
          entered and left by any code that gives that name, in other processes too: the process
          that takes it next adopts the hold under a new token.
        - ``on_lost``: called with the lease when the hold has been lost, on another thread; where
          a lock is entered again, every callback is. A hold that another process adopts by its
          owner's name is not lost.
        - ``release``: when leaving it inside a transaction of this thread frees it. "now" frees it
          at once, and warns: the next holder does not see the changes yet. "commit" keeps and
          renews it until the outermost transaction has ended, by commit or rollback; with several
          databases the last of them. None takes the backend's ``RELEASE``, by default "now". An
          asyncio task has no transaction, and frees it at once.

        Raises TypeError or ValueError that names the argument and its value.
        """
        waits = on_busy, timeout, busy_result
        options = LockOptions(
            *waits, lease, at_least, at_most, renew, reentrant, description, owner, on_lost, release
        )
        super().__init__(name, using, options)

    @overload
    @classmethod
    def of(cls, instance: Model, **options: Any) -> Self: ...

    @overload
    @classmethod
    def of(cls, instance: QuerySet[Any], *, limit: int, **options: Any) -> MultiLock: ...

    @classmethod
    def of(
        cls, instance: Model | QuerySet[Any], *, limit: int | None = None, **options: Any
    ) -> Self | MultiLock:
        """Return the lock of a row: ``Lock.of(seat)`` is ``Lock("shop.seat:7")``.

        ``instance`` is that row, or a queryset.
        The name is the app label, the concrete model (that of a proxy is the model it stands for)
        and the primary key. A key that cannot be part of a name is written as its SHA-256. The
        database of the row is not part of it.

        For a queryset it is a MultiLock of its present rows, which this call reads: at most
        ``limit``. Without rows it locks nothing and raises nothing. In asyncio use
        ``MultiLock(*[Lock.of(row) async for row in queryset])``.

        ``options`` are those of Lock, or of MultiLock. Raises ValueError for an instance that is
        not saved, or if there are more rows than ``limit``; TypeError for anything else.
        """
        if isinstance(instance, QuerySet):
            from distlock.locking.multilock import MultiLock  # which is built on Lock

            return MultiLock._over(_names_of(instance, limit), **options)
        if limit is not None:
            raise TypeError(f"limit={limit!r} is for a queryset, not {instance!r}")
        lock = cls(_name_of(instance), **options)
        lock.name_is_filled_in = True
        return lock

    def _extend(self, seconds: float) -> Steps[None]:
        """Let a hold with ``renew=False`` end no earlier than ``seconds`` from now.

        It never ends earlier than it would have. The lease is as long as it was for everything
        else: it is this one hold that lasts for longer.

        Raises TypeError or ValueError for what is no time; LockNotHeld, or LockLost if it is not
        ours any more; LockUnavailable if the backend does not answer, or a transaction has locked
        the row: then it ends when it would have, or later; LockError for a hold that is renewed;
        NotSupported in ZooKeeper, where a hold lasts as long as the session.
        """
        yield from _extending(self._hold, checked_seconds("seconds", seconds))

    extend, aextend = twins("extend", _extend)

    @async_unsafe(
        "Lock.atomic() would block the event loop, as Django's transactions do; call the function"
        " that uses it by `await sync_to_async(function)()`."
    )
    @contextmanager
    def atomic(self, using: str | None = None) -> Iterator[Self]:
        """Hold the lock around a transaction that can commit only while the lock is still held.

        The transaction begins after the lock was taken and is committed before it is freed, so
        the next holder sees all of it. ``using`` is the database of the transaction; it must be
        the one that the locks live in, which is the default.

        Inside atomic() of another lock it is a savepoint: the outer transaction commits only while
        both are held, and then both are freed. With a rollback to the savepoint this lock no longer
        counts.

        Raises LockLost, with everything rolled back, if the lock was lost before the commit. Before
        the lock is taken or waited for: LockError if another transaction is open already, or one of
        another lock above READ COMMITTED, NotSupported where the backend cannot give it.
        """
        refuse_reentry()
        with transaction_under(self, [self], using, self._leave_part, f"lock {self.name!r}"):
            yield self

    def _leave_part(self, owner: Owner, body_error: BaseException | None) -> None:
        try:
            leave_until_commit(self._key, owner, self, self._options, warns=False)
        except LockError as error:
            raise_or_note(error, body_error)


@contextmanager
def transaction_under(
    lock: BlockLock,
    parts: Sequence[Lock],
    using: str | None,
    leave_part: Callable[[Owner, BaseException | None], object],
    shown: str,
) -> Iterator[None]:
    """Hold ``lock``, which consists of ``parts``, around a transaction; see Lock.atomic().

    ``leave_part(owner, body_error)`` leaves it if the transaction is one of another atomic(), which
    goes on, and frees it when it has ended. ``shown`` is the lock in a line of the log.
    """
    first, *others = parts
    backend = first._backend
    backend.check_atomic(using, first._hold.lease if lock.held else None)
    if lock._options.on_busy == "skip":
        lock._options.refuse_block(lock)
    if not lock._begin(sys._getframe()):
        raise lock._busy(lock._options)
    is_part = False
    try:
        hold, leases = first._hold, [part._hold.lease for part in others]
        with backend.atomic(hold.lease, using, leases) as is_part:
            yield
            lock.check()  # what this process knows to be lost must not be committed
    except BaseException as error:  # whatever it is, others wait for the lock
        if is_part:
            leave_part(lock._blocks.end(sys._getframe(), lock._current_owner), error)
        else:
            BlockLock.__exit__(lock, type(error), error, error.__traceback__)
        raise
    try:
        if is_part:
            leave_part(lock._blocks.end(sys._getframe(), lock._current_owner), None)
        else:
            BlockLock.__exit__(lock, None, None, None)
    except (LockLost, LockUnavailable) as error:
        if isinstance(error, BodyEnded):
            raise  # another lock was lost, in whose body this is
        # It was ours at the commit, which stands: an error now would say that it does not.
        fields = None if others else hold.log_fields()
        logger.warning("after the commit under %s: %s", shown, error, extra=fields)


def _extending(hold: Hold, seconds: float) -> Steps[None]:
    """Let a hold end no earlier than ``seconds`` from now. See Lock.extend() for the errors."""
    backend, lease = hold.backend, hold.lease
    _refuse_to_extend(hold, seconds)
    due = backend.calls.due()
    # Renewals that begin from here on ask for as much. One that has begun might bind the hold to
    # its usual lease later than this.
    hold.extended_until = max(hold.extended_until, clock() + seconds)
    while hold.renewing:
        if due is not None and clock() >= due:
            raise LockUnavailable(f"lock {lease.name!r}: its renewal has had no answer yet")
        yield Sleep(_PAUSE)
    wanted = max(seconds, hold.lease.remaining, backend.capabilities.shortest_lease)
    sent_at = clock()
    renewing = partial(backend.renew, [lease.lasting(wanted)])
    answer = (yield Call(renewing, due, executor=backend.calls)).get(lease.nonce)
    if answer is None:
        raise LockUnavailable(
            f"lock {lease.name!r} could not be extended just now, try again; in a database, a"
            " transaction has locked its row, which may be one of this thread"
        )
    if answer:
        manager().renewer.extend(hold, sent_at, wanted)
        if hold.lost_for_good:  # by then; it must not go on for nobody
            manager().renewer.lose(hold, LossReason.EXPIRED)
            backend.cleanup.add(lease.claim)
    else:
        reason = yield Call(hold.ask_loss_reason, due, executor=backend.calls)
        manager().renewer.lose(hold, reason)
        # What was left is not lost: another thread of its owner's name has released it meanwhile.
        raise hold.lost_error() or not_held(hold.key, lease.owner)
    if (loss := hold.lost_error()) is not None:
        raise loss


def _refuse_to_extend(hold: Hold, seconds: float) -> None:
    """Raise the error for a hold that cannot be extended, or need not be."""
    claim, alias = hold.lease.claim, hold.backend.alias
    if not hold.backend.capabilities.extends:
        raise NotSupported(
            f"extend({seconds:g}): a lock of DISTLOCK[{alias!r}] is held as long as a session lives"
        )
    if hold.renews:
        raise LockError(
            f"extend({seconds:g}) is for renew=False, and lock {claim.name!r} is renewed anyway"
        )
    if claim.maybe_repeated:
        raise LockUnavailable(
            f"extend({seconds:g}): an earlier request for lock {claim.name!r}, whose answer was"
            " lost, may still arrive, and restore the earlier end. Take the lock again"
        )


def _name_of(instance: object) -> str:
    """Return the name of the lock of a row; TypeError or ValueError for what is no saved row."""
    if not isinstance(instance, Model):
        raise TypeError(f"instance must be a saved model instance or a queryset, not {instance!r}")
    pk = instance.pk
    if instance._state.adding or pk is None:
        raise ValueError(
            f"instance must be saved: this {instance._meta.label} with pk={pk!r} has no row to lock"
        )
    return _row_name(type(instance), pk)


def _names_of(queryset: QuerySet[Any], limit: int | None) -> list[str]:
    """Return the names of the locks of all rows, which are read; ValueError if they are more."""
    if limit is None:
        raise TypeError("a queryset needs limit=: the number of rows to lock at most")
    if (most := checked_int("limit", limit)) < 1:
        raise ValueError(f"limit must be at least 1, got {limit!r}")
    keys = [*queryset.values_list("pk", flat=True)[: most + 1]]
    if len(keys) > most:
        raise ValueError(
            f"limit={limit}: the queryset of {queryset.model._meta.label} has more rows than that"
        )
    return sorted({_row_name(queryset.model, key) for key in keys})


def _row_name(model: type[Model], pk: Any) -> str:
    meta = (model._meta.concrete_model or model)._meta
    keys = pk if isinstance(pk, tuple) else (pk,)
    # One that was given as text, say, is written as it is read from the database.
    texts = [str(field.to_python(key)) for field, key in zip(meta.pk_fields, keys, strict=True)]
    text = texts[0] if len(texts) == 1 else json.dumps(texts, ensure_ascii=False)
    try:
        return checked_name(f"{meta.label_lower}:{text}")
    except ValueError:  # too long, or with control characters
        digest = hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()
        return checked_name(f"{meta.label_lower}#{digest}")
