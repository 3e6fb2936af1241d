"""A model field that databases compare exactly."""

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
