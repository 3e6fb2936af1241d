"""Which engines have native locks to wait for."""

from __future__ import annotations

from distlock.backends.database.waiting.mysql import MySQL
from distlock.backends.database.waiting.native import Native
from distlock.backends.database.waiting.postgresql import PostgreSQL

_ENGINES: dict[str, Native] = {"mysql": MySQL(), "postgresql": PostgreSQL()}


def native_for(vendor: str) -> Native | None:
    """Return the native locks of an engine by its vendor's name in Django, None if it has none."""
    return _ENGINES.get(vendor)
