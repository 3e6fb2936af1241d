"""Waiting for a lock of a database in the server's own queue.

The engine's native locks (PostgreSQL: advisory locks, MySQL: ``GET_LOCK``) say who is next; the row
says who holds. The backend makes one :class:`~.wait_manager.WaitManager` over its pool if the
engine is one that :func:`~.engines.native_for` knows.
"""
