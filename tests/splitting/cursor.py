"""Decides which statements go to the replica."""

from __future__ import annotations

import re
from typing import Any

#: A plain read of the tables of locks and records. A packet of several statements goes to the
#: primary, and so does what locks rows.
_READ = re.compile(r"\s*SELECT\b(?!.*\bFOR (UPDATE|SHARE)\b).*\bdatabase_lock\w*\b[^;]*$", re.S)


class SplittingCursor:
    """A cursor of the primary, and one of the replica when it is needed."""

    def __init__(self, primary: Any, replica: Any) -> None:
        """``replica`` is a Django connection."""
        self._primary = self._chosen = primary
        self._replica = replica

    def execute(self, sql: str, params: Any = None) -> Any:
        self._chosen = self._primary
        if _READ.match(sql.replace('"', "").replace("`", "")):
            self._replica.ensure_connection()
            self._chosen = self._replica.create_cursor()
        return self._chosen.execute(sql, params)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._chosen, name)

    def __iter__(self) -> Any:
        return iter(self._chosen)
