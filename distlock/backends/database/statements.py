"""What is said to a database, and what it answers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple


class Statement(NamedTuple):
    """SQL as Django's cursors take it: with ``%(name)s`` or ``%s``, and ``%%`` for a ``%``."""

    sql: str
    params: Mapping[str, Any] | tuple[Any, ...] = {}

    @property
    def named(self) -> Mapping[str, Any]:
        """The parameters by name; TypeError if they have none."""
        if isinstance(self.params, tuple):
            raise TypeError(f"the parameters of {self.sql!r} have no names")
        return self.params


class Answer(NamedTuple):
    """The rows that a statement returned, and how many it says it has changed (or found)."""

    rows: list[tuple[Any, ...]]
    changed: int
