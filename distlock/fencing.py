"""Rows that keep the newest fencing token they were written under, and refuse older ones.

A holder may be suspended, lose its lease, and still write when it wakes up. A lock cannot stop
that; only the place that is written to can. See Martin Kleppmann, "How to do distributed locking"
(2016), on fencing tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Self, TypeVar, cast

from asgiref.sync import sync_to_async
from django.db import NotSupportedError, connections, models, transaction
from django.db.models.expressions import RawSQL, Subquery
from django.db.models.sql import Query
from django.db.models.sql.where import ExtraWhere
from django.utils.translation import gettext_lazy as _

from distlock.exceptions import StaleToken
from distlock.types.values import batches, checked_token

M = TypeVar("M", bound=models.Model)

FENCE = "fence"
#: Rows named in one statement; the databases limit its parameters, some to a thousand.
BATCH = 500


class FencedQuerySet(models.QuerySet[M]):
    """A queryset whose rows can be written on condition of a fencing token."""

    if TYPE_CHECKING:

        @classmethod
        def as_manager(cls) -> FencedManager[M]: ...

    def fenced_update(self, token: int, /, **values: Any) -> int:
        """Update the rows as ``update(**values)`` does, unless one was written under a newer token.

        ``token`` is that of the lock that protects the rows (``lock.token``); the rows keep it.
        Without ``values`` only the token is written, which shuts out earlier holders at once.
        Either all rows are written or none. A transaction of the caller goes on after StaleToken.

        A row that a newer holder has changed may no longer match the filter. It is then not found,
        and raises nothing. So filter by columns that do not change, or look at the result.

        Returns the number of rows that were found. Raises StaleToken if any of them was written
        under a newer token; TypeError or ValueError if ``token`` cannot be one; TypeError where
        ``update()`` raises it. PostgreSQL from REPEATABLE READ on refuses to write to rows that
        have changed since the transaction began: then its OperationalError comes first.
        """
        if not 0 <= checked_token(token) <= models.BigIntegerField.MAX_BIGINT:
            raise ValueError(f"token must be within 0 and 2**63 - 1, got {token!r}")
        if FENCE in values:
            raise TypeError(f"{FENCE} is written by fenced_update() itself; do not pass it")
        if self.query.combinator:
            raise NotSupportedError("fenced_update() cannot be called after a union or the like")
        if self.query.distinct_fields:
            raise TypeError("fenced_update() cannot be called after .distinct(*fields)")
        self._for_write = True
        self._result_cache = None
        with transaction.atomic(using=self.db):
            fenced = _fence_field(self.model).model
            if fenced is self.model._meta.concrete_model and _looks_only_at_its_rows(self.query):
                return _write(self, token, values)
            return self._write_both(fenced, token, values)

    fenced_update.alters_data = True  # type: ignore[attr-defined]

    async def afenced_update(self, token: int, /, **values: Any) -> int:
        """See fenced_update()."""
        return await sync_to_async(self.fenced_update)(token, **values)

    afenced_update.alters_data = True  # type: ignore[attr-defined]

    def _write_both(self, fenced: type[models.Model], token: int, values: dict[str, Any]) -> int:
        """Write the rows that have the fences, and then, without a look at these, the others.

        The fence may be in a parent's table. A caller that has written it may write the other
        columns.
        """
        count = 0
        for pairs in batches(self._chosen(fenced), BATCH):
            pks, parents = zip(*pairs, strict=True)
            count += _write(_rows(fenced, self.db, parents), token, {})
            if values:
                _rows(self.model, self.db, pks).update(**values)
        return count

    def _chosen(self, fenced: type[models.Model]) -> list[tuple[Any, Any]]:
        """Return the primary keys of the rows, each with that of the row that has its fence.

        For fences in a parent's table, and for filters that look at other rows: the first write may
        change what such a filter finds.
        """
        connection = connections[self.db]
        chosen = self.order_by("pk").values_list("pk", str(fenced._meta.pk.name))
        if connection.vendor == "mysql":
            # A plain SELECT would see the rows as they were when the transaction began.
            chosen = chosen.select_for_update()
        elif not connection.features.has_select_for_update:
            # Become the writer first. SQLite refuses that to a transaction that has read, if
            # another one has written since.
            table = connection.ops.quote_name(fenced._meta.db_table)
            column = connection.ops.quote_name(str(_fence_field(fenced).column))
            with connection.cursor() as cursor:
                cursor.execute(f"UPDATE {table} SET {column} = {column} WHERE 1 = 0")
        return list(chosen)


if TYPE_CHECKING:
    _Manager = models.Manager
else:
    _Manager = models.Manager.from_queryset(FencedQuerySet)


class FencedManager(_Manager[M]):
    """The manager that gives fenced querysets."""

    if TYPE_CHECKING:  # Django makes these ask the queryset, and type checkers do not know of it
        # fmt: off
        def get_queryset(self) -> FencedQuerySet[M]: ...
        def all(self) -> FencedQuerySet[M]: ...
        def none(self) -> FencedQuerySet[M]: ...
        def using(self, alias: str | None) -> FencedQuerySet[M]: ...
        def filter(self, *args: Any, **kwargs: Any) -> FencedQuerySet[M]: ...
        def exclude(self, *args: Any, **kwargs: Any) -> FencedQuerySet[M]: ...
        def order_by(self, *field_names: Any) -> FencedQuerySet[M]: ...
        def select_for_update(self, *args: Any, **kwargs: Any) -> FencedQuerySet[M]: ...
        def fenced_update(self, token: int, /, **values: Any) -> int: ...
        async def afenced_update(self, token: int, /, **values: Any) -> int: ...
        # fmt: on


class FenceField(models.BigIntegerField):  # type: ignore[type-arg]
    """The newest token that a row was written under. Saving an instance does not write it.

    The instance was read some time ago: its fence may be older than that of the row.
    """

    def pre_save(self, model_instance: models.Model, add: bool) -> Any:
        return super().pre_save(model_instance, add) if add else models.F(self.attname)


class FencedModel(models.Model):
    """A model whose rows refuse writes under an older fencing token than their last one.

    Only ``fenced_update()`` checks tokens; ``save()`` and ``update()`` write unconditionally.
    """

    fence = FenceField(_("fencing token"), default=0, editable=False)

    objects: ClassVar[FencedManager[Self]] = FencedManager()

    if not TYPE_CHECKING:  # or pyright would want every model's Meta to inherit from this one

        class Meta:
            abstract = True


def _fence_field(model: type[models.Model]) -> models.Field[Any, Any]:
    return cast("models.Field[Any, Any]", model._meta.get_field(FENCE))


def _rows(model: type[models.Model], using: str, pks: Sequence[Any]) -> models.QuerySet[Any]:
    return model._base_manager.using(using).filter(pk__in=pks)


def _write(rows: models.QuerySet[Any], token: int, values: dict[str, Any]) -> int:
    """Update the rows that have no newer fence, and raise StaleToken if there are others.

    The UPDATE comes first: on every database its condition sees all commits until then, and no
    other session can change the rows that it has written. The rows that it has left out have a
    newer fence. They were not changed, so they still match the filter.
    """
    count = rows.filter(fence__lte=token).update(**{FENCE: token}, **values)
    newer = rows.filter(fence__gt=token).order_by().values_list(FENCE, flat=True)
    # With FOR UPDATE MySQL reads what is committed now, not the snapshot of the transaction.
    if fences := list(newer.select_for_update()):
        raise StaleToken(
            f"{len(fences)} of the rows of {rows.model._meta.label} were written under newer"
            f" fencing tokens, up to {max(fences)}; nothing was written under {token}"
        )
    return count


def _looks_only_at_its_rows(query: Query) -> bool:
    """Return whether a filter depends on nothing but the columns of the row that it filters."""
    query = query.chain()
    query.get_initial_alias()
    if query.count_active_tables() > 1 or query.distinct or query.extra_tables:
        return False
    if query.group_by is not None or query.where.contains_over_clause:
        return False
    return not _has_subquery(query.where)


def _has_subquery(expression: Any) -> bool:
    if isinstance(expression, (Query, Subquery, RawSQL, ExtraWhere)):  # raw text may hold one
        return True
    if not hasattr(expression, "get_source_expressions"):
        return False
    return any(_has_subquery(source) for source in expression.get_source_expressions() if source)
