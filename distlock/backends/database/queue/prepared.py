"""Statements that a session of PostgreSQL has planned once, and runs by their name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from distlock.backends.database.statements import Statement


class Prepared:
    """See https://www.postgresql.org/docs/current/sql-prepare.html."""

    def __init__(self, name: str, sql: str, types: Mapping[str, str]) -> None:
        """``types`` are those of the parameters of ``sql``, by name."""
        numbers = {parameter: f"${number}" for number, parameter in enumerate(types, start=1)}
        declared = f"PREPARE {name} ({', '.join(types.values())}) AS {sql % numbers}"
        self.declaration = declared.replace("%", "%%")
        values = ", ".join(f"%({parameter})s" for parameter in types)
        self.sql = f"EXECUTE {name} ({values})"

    def run(self, params: Mapping[str, Any]) -> Statement:
        """Return the statement that runs it with these parameters."""
        return Statement(self.sql, params)
