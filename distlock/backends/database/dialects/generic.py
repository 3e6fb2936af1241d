"""Any other database that Django knows: the ORM writes the statements."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any, ClassVar

from django.db.models import DateTimeField, DurationField, ExpressionWrapper, F, Q, Value
from django.db.models.functions import Greatest, Now
from django.db.models.sql import DeleteQuery, InsertQuery, UpdateQuery
from django.utils import timezone

from distlock.backends.database.dialects.base import (
    COLUMNS,
    LONGEST,
    Ask,
    Dialect,
    Row,
    columns,
    holder,
)
from distlock.backends.database.errors import SerializationFailure, UniqueViolation
from distlock.backends.database.statements import Result, Statement
from distlock.types.lease import Claim, Lease
from distlock.types.owners import kept

#: The server's time may be rounded down; a lease must not end there before it ends here.
_ROUNDING = timedelta(milliseconds=1)
#: How often a row may be made or removed by others while one takes the lock.
_ATTEMPTS = 5
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class Generic(Dialect):
    """Statements compiled for the connection of one session; taking needs three, a new row four."""

    guards_early: ClassVar[bool] = True
    by_code_point: ClassVar[bool] = False

    def __init__(self, wrapper: Any) -> None:
        """``wrapper`` is the Django connection that the statements will run on."""
        self._wrapper = wrapper

    def take(self, ask: Ask, claim: Claim) -> int | None:
        possible = Q(owner="") | Q(owner=holder(claim)) | Q(expires_at__lte=Now())
        grant = {
            **columns(claim),
            "acquired_at": Now(),
            "expires_at": _from_now(claim.reserved),
        }
        locks = self._locks.filter(possible, lock=claim.name)
        now = self.microseconds(ask)
        updating = self._update(locks, **grant, token=Greatest(F("token") + 1, Value(now)))
        for _ in range(_ATTEMPTS):
            ask(updating)
            if rows := self.rows(ask(self.one(claim.name, for_update=True))):
                return rows[0].token if rows[0].nonce == claim.nonce else None
            with suppress(UniqueViolation):  # someone else was first
                ask(self._insert(**grant, token=now))
        raise SerializationFailure("the row of the lock comes and goes")

    def free(self, lock: str, **hold: str | int) -> Statement:
        return self._free(self._locks.filter(lock=lock, **hold).exclude(owner=""))

    def reserve(self, lease: Lease, seconds: float) -> Statement:
        nobody = kept(lease.owner, lease.nonce).key
        locks = self._locks.filter(
            Q(nonce=lease.nonce) | Q(owner=nobody),
            lock=lease.name,
            expires_at__gt=Now(),
        )
        return self._update(
            locks,
            owner=nobody,
            nonce="",
            expires_at=_from_now(seconds),
            lease=seconds,
            renews=False,
        )

    def renew(self, leases: Sequence[Lease]) -> Statement:
        duration = leases[0].duration
        return self._update(self._these(leases), expires_at=_from_now(duration), lease=duration)

    def held(self, leases: Sequence[Lease], *, for_update: bool = True) -> Statement:
        return self._select(self._these(leases).values_list("nonce"), for_update=for_update)

    def guard(self, lease: Lease) -> Statement:
        return self._update(self._these([lease]), expires_at=F("expires_at"))

    def one(self, lock: str, *, for_update: bool = False) -> Statement:
        return self._select(self._rows.filter(lock=lock), for_update=for_update)

    def page(self, after: str, beginning: bool, size: int) -> Statement:
        beyond = {"lock__gte": after} if beginning else {"lock__gt": after}
        return self._select(self._rows.filter(**beyond).exclude(owner="").order_by("lock")[:size])

    def rows(self, answer: Result) -> list[Row]:
        compiler = self._rows.query.get_compiler(connection=self._wrapper)
        compiler.as_sql()  # finds out how the columns are converted
        values = compiler.results_iter(results=[answer.rows])
        return [Row(*row[:10], *map(self._aware, row[10:])) for row in values]

    def ended(self, after: int, size: int) -> Statement:
        return self._ids(self._ended, after, size)

    def free_ended(self, ids: Sequence[int]) -> Statement:
        return self._free(self._ended.filter(id__in=ids))

    def unused(self, after: int, size: int, keep: float, newest: int) -> Statement:
        return self._ids(self._unused(keep, newest), after, size)

    def remove_unused(self, ids: Sequence[int], keep: float, newest: int) -> Statement:
        unused = self._unused(keep, newest).filter(id__in=ids)
        return self._compiled(unused.query.chain(DeleteQuery))

    # What is talked about

    @property
    def _locks(self) -> Any:
        return _model()._base_manager.order_by()

    @property
    def _rows(self) -> Any:
        return self._locks.annotate(now=Now()).values_list(*COLUMNS, "now")

    @property
    def _ended(self) -> Any:
        return self._locks.exclude(owner="").filter(expires_at__lte=Now())

    def _unused(self, keep: float, newest: int) -> Any:
        return self._locks.filter(owner="", expires_at__lte=_from_now(-keep), token__lte=newest)

    def _these(self, leases: Sequence[Lease]) -> Any:
        return self._locks.exclude(owner="").filter(
            lock__in=[lease.name for lease in leases],
            nonce__in=[lease.nonce for lease in leases],
            expires_at__gt=Now(),
        )

    # Statements

    def _select(self, locks: Any, *, for_update: bool = False) -> Statement:
        statement = self._compiled(locks.query)
        features = self._wrapper.features
        # By hand: Django takes select_for_update() outside of a transaction for a mistake.
        if for_update and features.has_select_for_update and not features.for_update_after_from:
            locking = self._wrapper.ops.for_update_sql()
            return statement._replace(sql=f"{statement.sql} {locking}")
        return statement

    def _ids(self, locks: Any, after: int, size: int) -> Statement:
        return self._select(locks.filter(id__gt=after).order_by("id").values_list("id")[:size])

    def _update(self, locks: Any, **values: Any) -> Statement:
        query = locks.query.chain(UpdateQuery)
        query.add_update_values(values)
        return self._compiled(query)

    def _free(self, locks: Any) -> Statement:
        return self._update(locks, owner="", nonce="", expires_at=Now())

    def _insert(self, **values: Any) -> Statement:
        model = _model()
        query = InsertQuery(model)
        fields = [field for field in model._meta.concrete_fields if not field.primary_key]
        query.insert_values(fields, [model(**values)])
        ((sql, params),) = query.get_compiler(connection=self._wrapper).as_sql()
        return Statement(sql, tuple(params))

    def _compiled(self, query: Any) -> Statement:
        sql, params = query.get_compiler(connection=self._wrapper).as_sql()
        return Statement(sql, tuple(params))

    # Times

    def microseconds(self, ask: Ask) -> int:
        compiler = self._locks.query.get_compiler(connection=self._wrapper)
        now = Now()
        sql, params = compiler.compile(now)
        suffix = self._wrapper.features.bare_select_suffix
        answer = ask(Statement(f"SELECT {sql}{suffix}", tuple(params)))
        ((value,),) = compiler.apply_converters(answer.rows, compiler.get_converters([now]))
        return (self._aware(value) - _EPOCH) // timedelta(microseconds=1)

    def _aware(self, value: datetime) -> datetime:
        if timezone.is_naive(value):
            # Without USE_TZ, Django lets the servers that know zones use TIME_ZONE.
            utc = self._wrapper.vendor in ("mysql", "sqlite")
            value = timezone.make_aware(value, UTC if utc else timezone.get_default_timezone())
        return value.astimezone(UTC)


def _model() -> Any:
    from distlock.models import DatabaseLock  # not while Django starts

    return DatabaseLock


def _from_now(seconds: float) -> Any:
    span = timedelta(seconds=max(min(seconds, LONGEST), -LONGEST)) + _ROUNDING
    return ExpressionWrapper(
        Now() + Value(span, output_field=DurationField()), output_field=DateTimeField()
    )
