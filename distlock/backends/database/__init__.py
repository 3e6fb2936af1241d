"""Locks in the project's own database.

lock                the backend
engines             which engines there are, and the dialect of each
sql                 the statements about locks
advisory_locks      what an engine's own, native locks must be able to do; comments that say who waits
mariadb             the words of MariaDB and MySQL, and their native locks
postgresql          the words of PostgreSQL, and its native locks
sqlite              the words of SQLite, and its waiting
queue               waiting in the lock queue of the other engines
queries             reads: one lock, a list, a page
maintenance         renew many, sweep, force release
transactions        ``Lock.atomic()``
caller_transaction  locks inside the caller's transaction, on SQLite
store               small records for recipes
record_sql          the statements about records
record_peek         looks at some records of a directory, and counts others
record_engines      those in which the engines differ
record_renewal      renews the sessions of records
record_runner       runs the statements about records
record_listener     hears of changes from PostgreSQL
record_transactions  the caller's, that remove records when they commit
record_watcher      wakes those who wait for a change of records
schema              makes the table if it is missing
checks              system checks
runner              the one way from the backend to the database
pool                shared sessions, and when a statement is tried again
connect             opens a session
connection          one session
sqlite_session      one session of SQLite
drivers             how mysqlclient and psycopg send a statement, and give it up
raw_connection      what a driver has to do, and those whose cursors are used
statements          a statement and its result; what a row of the table says
errors              what the errors of the drivers mean
"""

from distlock.backends.database.lock import DatabaseBackend

__all__ = ["DatabaseBackend"]
