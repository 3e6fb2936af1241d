"""The replica is another table of the same server, in the schema ``replica``."""

from __future__ import annotations

from typing import Any

from django.db.backends.postgresql import base

from tests.splitting.cursor import SplittingCursor


class DatabaseWrapper(base.DatabaseWrapper):
    """Reads locks from a replica unless it locks them."""

    def __init__(self, settings_dict: dict[str, Any], alias: str) -> None:
        super().__init__(settings_dict, alias)
        entry = {**settings_dict, "OPTIONS": {**settings_dict["OPTIONS"]}}
        entry["OPTIONS"] = {**entry["OPTIONS"], "options": "-c search_path=replica"}
        self._replica = base.DatabaseWrapper(entry, alias)
        self._replica.inc_thread_sharing()

    def create_cursor(self, name: str | None = None) -> Any:
        return SplittingCursor(super().create_cursor(name), self._replica)

    def close(self) -> None:
        self._replica.close()
        super().close()
