"""Model fields that databases compare exactly, and defaults that are part of the statement."""

from __future__ import annotations

from typing import Any

from django.db import models
from django.db.backends.base.base import BaseDatabaseWrapper

#: By vendor, a collation that compares code points, so that no two characters are equal.
_EXACT = {"mysql": "utf8mb4_bin", "postgresql": "C"}


class _Exact:
    def db_parameters(self, connection: BaseDatabaseWrapper) -> dict[str, Any]:
        parameters = dict(super().db_parameters(connection))  # type: ignore[misc]
        if collation := _EXACT.get(connection.vendor):
            parameters["collation"] = collation
        return parameters


class ExactCharField(_Exact, models.CharField):  # type: ignore[type-arg]
    """Text that databases store whole, compare exactly and sort by code point.

    For MySQL's default collations ``Lock`` and ``lock`` are equal, and so are ``e`` and ``é``. A
    table whose character set is not utf8mb4 cannot store every name.
    """


class NoPadCharField(ExactCharField):
    """An ExactCharField in which spaces at the end count, too.

    For the usual collations of MariaDB and MySQL a text that ends with spaces equals one without:
    https://dev.mysql.com/doc/refman/8.4/en/charset-binary-collations.html
    """

    def db_parameters(self, connection: BaseDatabaseWrapper) -> dict[str, Any]:
        parameters = super().db_parameters(connection)
        if connection.vendor == "mysql":
            is_mariadb = connection.mysql_is_mariadb  # type: ignore[attr-defined]
            parameters["collation"] = "utf8mb4_nopad_bin" if is_mariadb else "utf8mb4_0900_bin"
        return parameters


class ExactTextField(_Exact, models.TextField):  # type: ignore[type-arg]
    """See ExactCharField, for text without a limit: a table's character set must lose nothing."""


class Literal(models.Value):
    """A default that is written out in the statement which makes the table.

    If that statement had parameters, Django would add the constraints with the next statement. A
    table without its unique key, even for a moment, grants a lock to everybody.
    """

    def as_sql(self, compiler: Any, connection: Any) -> tuple[str, tuple[()]]:
        return str(connection.schema_editor().quote_value(self.value)), ()
