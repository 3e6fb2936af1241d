"""The backend that keeps locks in a table of a Django database."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, ClassVar

from django.core.checks import CheckMessage
from django.db import connections

from distlock.backends.base import Capabilities, LossReason, PendingLease
from distlock.backends.database import errors
from distlock.backends.database.checks import (
    database_checks,
    deployment_checks,
    settings_checks,
)
from distlock.backends.database.connect import ENGINES, Engine, refusal, wrapper_of
from distlock.backends.database.connection import Connection
from distlock.backends.database.pool import Pool
from distlock.backends.database.queries import DatabaseReader
from distlock.backends.database.runner import StatementRunner, renew
from distlock.backends.database.sql import holder
from distlock.backends.database.sqlite import poll_in_turn
from distlock.backends.database.sqlite_session import CallerTransaction, in_own_transaction
from distlock.backends.database.statements import Statement, owner_of
from distlock.backends.database.store import DatabaseStore
from distlock.backends.database.transactions import Transactions
from distlock.backends.database.wait_manager import WaitManager
from distlock.concurrency.clock import clock, left
from distlock.migrations._create_table import make_table
from distlock.types.lease import Claim, Lease, SweepResult
from distlock.types.owners import gevent_patched

#: Why a lease is gone that was taken in a transaction of the caller.
ROLLED_BACK = "the transaction it was taken in was rolled back"


class DatabaseBackend(DatabaseReader):
    """Keeps each lock in a row of a table, which names its holder and the end of the lease.

    ``OPTIONS``:

    - ``database``: the alias in ``DATABASES`` ("default").
    - ``wait``: "native" waits in the database's own lock queue; "poll" asks for the row again and
      again, which is what a pooler in transaction mode needs; "auto" is native where the engine
      has such a queue, unless a pooler is found ("auto").
    - ``timeout``: the most seconds for one answer of the database, connecting included (5).
    - ``keep``: seconds after which a sweep removes the row of a free lock (86400).
    - ``idle``: seconds after which an unused session is closed: a minute, and 0 where Django's
      tests run, because an open session would keep the test database from being dropped.
    - ``sessions``: the most sessions that the threads of a process share for all statements that
      are answered at once. Further threads wait for a free one, but renewals do not (4).
    - ``waiters``: the most sessions of a process in native waits; further waiters poll (8).
    """

    default_options: ClassVar[Mapping[str, Any]] = {
        "database": "default",
        "wait": "auto",
        "timeout": 5,
        "keep": 86400,
        "idle": None,
        "sessions": 4,
        "waiters": 8,
    }

    def __init__(self, alias: str, params: Mapping[str, Any]) -> None:
        super().__init__(alias, params)
        self.database: str = self.settings.options["database"]
        engine = self._engine()
        self.wait = self.settings.choice("wait", ("auto", "native", "poll"))
        self.waiters = self.settings.count("waiters")
        self.keeps_rows_for = self.settings.seconds("keep")
        idle = self.settings.options["idle"]
        self.pool = Pool(
            self.database,
            timeout=self.settings.seconds("timeout"),
            idle=idle if idle in (None, 0) else self.settings.seconds("idle"),
            sessions=self.settings.count("sessions", at_least=1),
            pooled={"poll": True, "native": False}.get(self.wait),
        )
        #: SQLite: locks are taken in the transaction of the caller, if one is open
        self._caller: CallerTransaction | None = None
        if engine.in_process:
            self._caller = CallerTransaction(self.database, self._abandoned, self.cleanup.add)
        self._runner = StatementRunner(self.pool, self._caller.connection if self._caller else None)
        self._transactions = Transactions(self._runner)
        self.waits = None
        # A greenlet that waits in a driver keeps all others from running.
        if engine.locks and self.wait != "poll" and not gevent_patched():
            self.waits = WaitManager(
                self.pool, engine.locks, self.waiters, self.calls, self.cleanup.add
            )
        self._store = self._make_store(DatabaseStore, self.pool, engine, self.keeps_rows_for)
        self.capabilities = Capabilities(
            named_owners=True,
            waiters=self.waits is not None,
            fair=self.waits is not None,
            atomic=True,
            extends=True,
            late_requests=self._caller is None,
        )

    def _engine(self) -> Engine:
        """Return the engine of the database; refuse one that cannot keep locks."""
        refused = f"OPTIONS['database'] is {self.database!r}"
        if self.database not in connections:
            known = ", ".join(map(repr, connections))
            self.settings.refuse(f"{refused}; DATABASES has: {known}")
        wrapper = wrapper_of(self.database)
        if why := refusal(wrapper):
            self.settings.refuse(f"{refused}: {why}")
        return ENGINES[wrapper.vendor]

    @property
    def store(self) -> DatabaseStore:
        """See BaseBackend.store."""
        return self._store

    # Taking and leaving

    def try_acquire(self, claim: Claim, deadline: float | None = None) -> Lease | None:
        """See BaseBackend.try_acquire()."""
        until = clock() + self.pool.limit(deadline)
        brief = until - clock() < errors.BRIEF

        def take(connection: Connection) -> Lease | None:
            dialect, ask = connection.dialect, connection.ask
            caller = self._caller if connection.of_caller else None
            if caller:
                caller.refuse_if_begun_by_hand(connection, claim)
            # Where only one can write at a time, a try in vain must not keep holders from renewing.
            # In a brief time a locked row looks like a silent server.
            elif (dialect.one_writer or brief) and (
                rows := ask(dialect.held_by_another(claim)).rows
            ):
                claim.refused_by = dialect.row(rows[0]).holder
                return None
            sent_at = clock()
            token = dialect.acquire(ask, claim)
            if token is None:
                return None
            if caller:
                caller.note_acquired(connection.wrapper, claim.nonce)
            return claim.granted(token, sent_at)

        while True:
            try:
                return self._runner.attempt(take, until)
            except errors.RowLocked as failed:
                # The holder is committing in atomic(), even if the lease has ended. But the row of
                # a free lock may be locked, too, by an operator who works on the table.
                row = self._row(claim.name, until)
                if row and not row.free and row.owner != holder(claim):
                    claim.refused_by = row.holder
                    return None
                if clock() + errors.ROW_WAIT >= until:
                    raise self._runner.unavailable(failed) from failed.__cause__
            except errors.StatementFailed as failed:
                failed = errors.seems_locked(failed) if brief else failed
                raise self._runner.unavailable(failed) from failed.__cause__

    def enqueue(self, claim: Claim, deadline: float | None) -> PendingLease:
        """See BaseBackend.enqueue(). Waits in the engine's own queue where there is one."""
        if self.waits:
            return self.waits.enqueue(claim, deadline)
        if self._caller:  # SQLite: its processes are all on one machine, and queue there
            return poll_in_turn(self.database, claim, deadline, self.attempt)
        return super().enqueue(claim, deadline)

    def renew(self, leases: Sequence[Lease], deadline: float | None = None) -> Mapping[str, bool]:
        """See BaseBackend.renew()."""
        # A row that a transaction of this process has locked can be neither renewed nor taken.
        caller, locked = self._caller, self._transactions.has_locked
        if caller and in_own_transaction(self.database):
            return {}  # its rollback would take back, unnoticed, what the holder relies on
        free = [
            lease
            for lease in leases
            if not (caller and caller.is_open(lease.nonce)) and not locked(lease.nonce)
        ]
        return renew(self._runner, free, deadline)

    def release(self, lease: Lease, deadline: float | None = None) -> bool:
        """See BaseBackend.release()."""
        claim, began, lost = lease.claim, clock(), False
        if self.waits and claim.nonce in self.waits.sessions.kept:  # where it was waited for
            # If its own session is silent, another one needs the rest of the time.
            half = self.pool.limit(deadline) / 2
            deadline = began + 2 * half
            try:
                if answer := self.waits.release(lease, half):
                    return bool(answer.affected)
            except errors.StatementFailed as failed:
                lost = failed.maybe_applied

        def free(connection: Connection) -> bool:
            nonlocal lost
            try:
                freed = connection.ask(connection.dialect.release_sql(lease)).affected > 0
            except errors.StatementFailed as failed:
                lost = lost or failed.maybe_applied
                raise
            if self._caller:
                self._caller.note_released(connection, claim)
            # Before the lease ends nobody else can take the lock, so a lost answer was yes. (If
            # the hold was broken in this very moment, that goes unnoticed.)
            return freed or (lost and began < lease.deadline)

        return self._runner.work(free, deadline, claim.nonce)

    def reserve_for(self, lease: Lease, seconds: float, deadline: float | None = None) -> bool:
        """See BaseBackend.reserve_for()."""
        end = clock() + seconds

        def again(until: float) -> object:
            return self.reserve_for(lease, left(end, seconds), until)

        def reserve(connection: Connection) -> bool:
            answer = connection.ask(connection.dialect.reserve(lease, seconds))
            if self._caller:
                self._caller.note_released(connection, lease.claim, again)
            return answer.affected > 0

        try:
            return self._runner.work(reserve, deadline, lease.nonce)
        finally:
            if self.waits:  # the next waiter has to watch the end of the reservation
                self.waits.discard(lease.nonce)

    def cancel(self, claim: Claim, deadline: float | None = None) -> None:
        """See BaseBackend.cancel()."""
        if self.waits:
            self.waits.cancel(claim)

        def free(connection: Connection) -> None:
            connection.ask(connection.dialect.free(claim.name, nonce=claim.nonce))
            if self._caller:
                self._caller.note_released(connection, claim)

        self._runner.work(free, deadline, claim.nonce)

    def discard_local(self, lease: Lease) -> None:
        """See BaseBackend.discard_local()."""
        if self.waits:
            self.waits.discard(lease.nonce)
        if self._caller:
            self._caller.discard(lease.nonce)

    def _abandoned(self, nonce: str) -> None:
        if self.listener:
            self.listener.lease_orphaned(nonce)

    # Looking; DatabaseReader does the rest

    def verify(self, lease: Lease, deadline: float | None = None) -> bool:
        """See BaseBackend.verify()."""
        # Waiting for a row that a transaction of this process has locked would be in vain.
        for_update = not self._transactions.has_locked(lease.nonce)

        def is_held(connection: Connection) -> bool:
            dialect, ask = connection.dialect, connection.ask
            try:
                return bool(ask(dialect.held([lease], for_update=for_update)).rows)
            except errors.RowLocked:
                # A transaction has the row: a yes was committed, a no may come from a replica.
                if ask(dialect.held([lease], for_update=False)).rows:
                    return True
                raise

        return self._runner.work(is_held, deadline, lease.nonce)

    def loss_reason(self, lease: Lease) -> str | None:
        """See BaseBackend.loss_reason()."""
        return ROLLED_BACK if self._caller and self._caller.was_rolled_back(lease.nonce) else None

    # Clearing

    def force_release(self, name: str, token: int, deadline: float | None = None) -> Lease | None:
        """See BaseBackend.force_release()."""
        broken: Lease | None = None
        lost = False

        def free(connection: Connection) -> bool:
            nonlocal broken, lost
            dialect, ask = connection.dialect, connection.ask
            row = next(iter(dialect.rows(ask(dialect.one(name, for_update=True)))), None)
            if row is None or row.free or row.token != token:
                return lost  # done, but the answer was lost; a waiter may have the lock by now
            rest = (row.until - row.now).total_seconds()
            claim = Claim(name, owner_of(row), rest, row.description, row.nonce)
            broken = claim.granted(token, clock())
            try:
                answer = ask(dialect.free(name, "broken", token=token, nonce=row.nonce))
            except errors.StatementFailed as failed:
                lost = lost or failed.maybe_applied
                raise
            return answer.affected > 0

        if not self._runner.work(free, deadline) or broken is None:
            return None
        self.tell_lost(broken, LossReason.BROKEN)
        return broken

    def sweep(self) -> SweepResult:
        """See BaseBackend.sweep(). Sweeps the records, too."""
        runner = self._runner
        try:
            expired = runner.clear(lambda db: db.dialect.expired(), None)
            removed = runner.clear(lambda db: db.dialect.unused(self.keeps_rows_for), None)
        except errors.StatementFailed as failed:
            raise runner.unavailable(failed) from failed.__cause__
        records = self.store.sweep()
        return SweepResult(expired + records.expired, removed + records.removed)

    def frees_inside(self, database: str) -> bool:
        """See BaseBackend.frees_inside(). On SQLite only one can write, see CallerTransaction."""
        return self._caller is not None and database == self.database

    def check_atomic(self, using: str | None, lease: Lease | None) -> None:
        """See BaseBackend.check_atomic()."""
        self._transactions.check(using, lease)

    def atomic(
        self, lease: Lease, using: str | None, others: Sequence[Lease] = ()
    ) -> AbstractContextManager[bool]:
        """See BaseBackend.atomic(). ``using`` can only be the database that has the lock."""
        return self._transactions.atomic(lease, using, others)

    def ensure_schema(self, deadline: float | None = None) -> bool:
        """See BaseBackend.ensure_schema(). The table may be missing."""
        # In a session of ours first: Django's would wait for a silent server without a limit.
        self._runner.work(lambda db: db.ask(Statement("SELECT 1")), deadline)
        return make_table(self.database, deadline)

    def close(self) -> None:
        """See BaseBackend.close()."""
        if self.waits:
            self.waits.close()
        self.store.close()
        self.pool.close()

    def checks(self) -> Iterable[CheckMessage]:
        """See BaseBackend.checks()."""
        return settings_checks(self.alias, self.database)

    def database_checks(self, databases: Collection[str]) -> Iterable[CheckMessage]:
        """See BaseBackend.database_checks()."""
        if self.database not in databases:
            return ()
        return database_checks(self.alias, self.database, self.wait)

    def deployment_checks(self) -> Iterable[CheckMessage]:
        """See BaseBackend.deployment_checks()."""
        return deployment_checks(self.alias, self.database)
