"""How statements are sent through each driver, and how long an answer is waited for.

psycopg 3 and mysqlclient can send a statement without waiting for the answer. The thread then
waits at the socket, with a time limit, and can be interrupted. This also skips the drivers'
cursors, which cost more than a short statement does. Other drivers run a statement through a
cursor, and a timer shuts the socket down when the time is up.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from distlock.backends.database.drivers.base import RawConnection, TimedOut
from distlock.backends.database.drivers.cursors import CursorConnection, SQLiteConnection
from distlock.backends.database.drivers.mysqlclient import MySQLConnection
from distlock.backends.database.drivers.psycopg3 import PsycopgConnection

__all__ = [
    "CursorConnection",
    "MySQLConnection",
    "PsycopgConnection",
    "RawConnection",
    "SQLiteConnection",
    "TimedOut",
    "raw_connection_for",
]


def raw_connection_for(wrapper: Any, hang_up: Callable[[], object] | None) -> RawConnection:
    """Return how to send statements on a Django connection that is open.

    ``hang_up`` shuts its socket down, from another thread; None if it has none.
    """
    driver, connection = wrapper.Database.__name__, wrapper.connection
    # A backend with cursors of its own may send statements to several servers.
    if _has_djangos_cursors(wrapper):
        if driver == "psycopg" and connection.info.encoding == "utf-8":
            return PsycopgConnection(connection)
        if driver == "MySQLdb" and hasattr(connection, "send_query"):  # PyMySQL in its name
            ends_by_itself = "read_timeout" in wrapper.settings_dict["OPTIONS"]
            return MySQLConnection(
                connection,
                None if ends_by_itself else hang_up,
                prepares=wrapper.mysql_is_mariadb,
            )
        if wrapper.vendor == "sqlite":
            return SQLiteConnection(connection)
    return CursorConnection(wrapper, hang_up)


def _has_djangos_cursors(wrapper: Any) -> bool:
    return str(type(wrapper).create_cursor.__module__).startswith("django.")
