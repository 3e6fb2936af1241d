"""Waiting for a lock of a database in the server's own queue.

The engine's native locks (PostgreSQL: advisory locks, MySQL: ``GET_LOCK``) say who is next; the row
says who holds. The backend makes one :class:`~.room.Room` over its pool if the engine is one that
:func:`~.engines.native_for` knows.

From the bottom: ``native`` and the engines (texts), ``place`` (a session in a queue), ``rows``
(what is asked of the row), ``waiter`` (one wait, on a thread of its own), ``lookout`` (looks at the
rows meanwhile), ``places`` (sessions in which nobody waits), ``room`` (all waits of a process).
"""
