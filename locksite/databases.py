"""From ``DATABASE_URL`` to the entry of Django's ``DATABASES`` setting."""

from __future__ import annotations

from typing import Any

import dj_database_url

#: What each engine needs so that several processes can write to it at the same time.
_OPTIONS: dict[str, dict[str, Any]] = {
    "sqlite3": {
        # Readers go on while someone writes.
        "init_command": "PRAGMA journal_mode=WAL",
        # A transaction that reads first and writes later would otherwise fail at once, and not
        # wait its turn, when someone else has written in between.
        "transaction_mode": "IMMEDIATE",
        "timeout": 20,  # seconds to wait for the file's one writer
    },
    "mysql": {
        "charset": "utf8mb4",
        # Django keeps times in UTC; the functions of the server should return UTC, too.
        "init_command": "SET time_zone = '+00:00'",
    },
}


def database(url: str) -> dict[str, Any]:
    """Return the entry for a ``sqlite:///``, ``mysql://`` or ``postgres://`` address."""
    config: dict[str, Any] = {**dj_database_url.parse(url)}
    engine = str(config["ENGINE"]).rpartition(".")[2]
    config["OPTIONS"] = {**_OPTIONS.get(engine, {}), **config.get("OPTIONS", {})}
    return config
