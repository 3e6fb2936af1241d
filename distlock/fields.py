"""A model field that databases compare exactly, and defaults that are part of the statement."""

from __future__ import annotations

from typing import Any

from django.db import models
from django.db.backends.base.base import BaseDatabaseWrapper

#: By engine, a collation that compares code points, and thereby keeps every character apart.
_EXACT = {"mysql": "utf8mb4_bin", "postgresql": "C"}


class ExactCharField(models.CharField):  # type: ignore[type-arg]
    """Text that databases store whole, compare exactly and sort by code point.

    MySQL's default collations take ``Lock`` and ``lock``, or ``e`` and ``é``, for one, and a table
    whose character set is not utf8mb4 could not store every name.
    """

    def db_parameters(self, connection: BaseDatabaseWrapper) -> Any:
        parameters: dict[str, Any] = dict(super().db_parameters(connection))
        if collation := _EXACT.get(connection.vendor):
            parameters["collation"] = collation
        return parameters


class Literal(models.Value):
    """A default that stands in the statement which makes the table.

    A statement with parameters would make the table without its constraints: Django adds those with
    the next statement then, and without the unique key a lock is granted to everybody.
    """

    def as_sql(self, compiler: Any, connection: Any) -> tuple[str, tuple[()]]:
        return str(connection.schema_editor().quote_value(self.value)), ()
