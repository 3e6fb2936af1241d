"""Django engines that keep connections in a pool of the project, in the ways that such engines do.

What is given back is lent again as it is. That is by ``close()``, where no method of Django's own
engine takes part, and the limit of the pool is an option in capitals.
"""

from __future__ import annotations

from typing import Any

#: the connections that are in the pool now, by alias
KEPT: dict[str, list[Any]] = {}


class Pooling:
    """Goes before the engine of Django."""

    alias: str
    connection: Any

    @property
    def pool(self) -> list[Any]:
        return KEPT.setdefault(self.alias, [])

    def get_new_connection(self, conn_params: dict[str, Any]) -> Any:
        assert conn_params.pop("MAX_CONNS") == 4
        return self.pool.pop() if self.pool else self.Database.connect(**conn_params)  # type: ignore[attr-defined]

    def close(self) -> None:
        if self.connection is not None:
            self.pool.append(self.connection)
            self.connection = None
