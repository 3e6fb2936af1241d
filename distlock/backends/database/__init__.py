"""Locks in the project's own database.

lock             the backend
sql              the statements about locks
record_sql       the statements about records, and the notices of their changes
advisory_locks   what an engine's own, native locks must do; comments that say who waits
mariadb          the words of MariaDB and MySQL, their sessions and their native locks
postgresql       the words of PostgreSQL, its sessions and its native locks
sqlite           the words of SQLite, and its waiting
wait_manager     waits of a process in the lock queue of the other engines, and the protocol
waiter           one wait, and what is known of the holder meanwhile
wait_session     what a wait asks the server: the session in the queue, the row
stall_monitor    looks at rows that nobody takes
queries          the part of the backend that reads: one lock, a list, a page
transactions     ``Lock.atomic()``, and transactions of the caller that remove records
store            small records for recipes
record_reads     reads some records of a directory, and counts others
record_watcher   wakes those who wait for a change of records
record_listeners sessions in which the server tells of such changes
checks           system checks
runner           the one way from the backend to the database; renews and sweeps rows
pool             shared sessions, and when a statement is tried again
connect          which engines there are; opens a session
connection       one session; what its driver has to do
sqlite_session   one session of SQLite, and locks in the caller's transaction there
drivers          how mysqlclient, psycopg and Python's own for SQLite send a statement
statements       a statement and its result; rows with leases; what a row of the table says
errors           what the errors of the drivers mean
"""

from distlock.backends.database.lock import DatabaseBackend

__all__ = ["DatabaseBackend"]
