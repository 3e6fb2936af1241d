"""PostgreSQL's advisory locks, https://www.postgresql.org/docs/current/explicit-locking.html."""

from __future__ import annotations

from collections.abc import Collection

from distlock.backends.database.dialects.postgresql import PostgreSQL as Dialect
from distlock.backends.database.statements import Statement
from distlock.backends.database.waiting.native import Native, digest
from distlock.backends.database.waiting.prepared import Prepared

#: Limits of the server's own would end a wait; without the others it would grant the lock to a
#: waiter that has died. What a server does not know, or cannot do where it runs, is left alone.
_SETTINGS = {
    "statement_timeout": "0",
    "transaction_timeout": "0",
    "idle_session_timeout": "0",
    "client_connection_check_interval": "1s",
    "tcp_keepalives_idle": "10",
    "tcp_keepalives_interval": "5",
    "tcp_keepalives_count": "3",
    "plan_cache_mode": "force_generic_plan",
}
_HOLD = {"lock": "text", "nonce": "text"}
_TAKE = Prepared(
    "distlock_take",
    Dialect.TAKE.format(condition="TRUE"),
    {
        **_HOLD,
        "owner": "text",
        "description": "text",
        "host": "text",
        "process": "bigint",
        "thread": "text",
        "lease": "double precision",
        "renews": "boolean",
        "duration": "bigint",
    },
)
# The next one may come as soon as the row is written: it waits for the rest of the transaction.
_FREE_AND_LEAVE = Prepared(
    "distlock_free",
    f"{Dialect().free('', nonce='').sql}, pg_advisory_unlock(%(key)s)",
    {**_HOLD, "key": "bigint"},
)
_SET_UP = (
    "DO $$ BEGIN "
    + " ".join(
        f"BEGIN PERFORM set_config('{name}', '{value}', false);"
        " EXCEPTION WHEN OTHERS THEN NULL; END;"
        for name, value in _SETTINGS.items()
    )
    + f" END $$; {_TAKE.declaration}; {_FREE_AND_LEAVE.declaration}; SELECT pg_backend_pid()"
)


class PostgreSQL(Native):
    """Session-level advisory locks, numbered by 64 bits.

    A statement that waits holds a snapshot, which VACUUM cannot look past and for which
    CREATE INDEX CONCURRENTLY waits. It holds no lock on any table, because what follows in the same
    packet is not looked at before it is done.
    """

    longest_wait = 600.0

    def key(self, database: str, name: str) -> str:
        return str(int.from_bytes(digest(database, name)[:8], "big", signed=True))

    def set_up(self) -> Statement:
        return Statement(_SET_UP)

    def is_free(self, key: str) -> str:
        return f"pg_try_advisory_xact_lock({key})"

    def enter(self, key: str) -> str:
        return f"SELECT pg_advisory_lock({key})"

    def has_entered(self, key: str) -> Statement:
        # A session of ours has no other.
        return Statement(
            "SELECT COUNT(*) FROM pg_locks"
            " WHERE locktype = 'advisory' AND granted AND pid = pg_backend_pid()"
        )

    def leave(self, key: str) -> str:
        return f"SELECT pg_advisory_unlock({key})"

    def queue(self, key: str, take: Statement) -> Statement:
        return self.then(self.enter(key), _TAKE.run(take.named))

    def free_and_leave(self, key: str, free: Statement) -> Statement:
        return _FREE_AND_LEAVE.run({**free.named, "key": int(key)})

    def call_out(self, ident: int) -> Statement:
        return Statement("SELECT pg_cancel_backend(%s)", (ident,))

    def look(self, table: str, names: Collection[str]) -> Statement:
        return Statement(
            "SELECT lock, owner, token,"
            " EXTRACT(EPOCH FROM expires_at - clock_timestamp())::double precision"
            f" FROM {table} WHERE lock = ANY(%s)",
            (list(names),),
        )

    def signed(self, mark: str, first: str) -> Statement:
        # What is idle shows its last statement. One that had waited and got in is idle, too.
        return Statement(
            "SELECT CASE WHEN starts_with(query, %(mark)s) THEN query ELSE '' END,"
            " EXTRACT(EPOCH FROM clock_timestamp() - query_start)::double precision"
            " FROM pg_locks JOIN pg_stat_activity USING (pid)"
            " WHERE locktype = 'advisory' AND datname = current_database() AND CASE"
            " WHEN granted THEN starts_with(query, %(first)s)"
            " ELSE starts_with(query, %(mark)s) OR query = '<insufficient privilege>' END"
            " ORDER BY query_start",
            {"mark": mark, "first": first},
        )

    def sessions(self, idents: Collection[int]) -> Statement:
        # Whoever runs a statement has a virtual transaction; another waits for it to end.
        return Statement(
            "WITH locks AS MATERIALIZED (SELECT pid, granted, virtualxid FROM pg_locks"
            " WHERE locktype = 'virtualxid')"
            " SELECT own.pid, MAX(CASE WHEN other.pid IS NULL THEN 0 ELSE 1 END)"
            " FROM locks own LEFT JOIN locks other"
            " ON other.virtualxid = own.virtualxid AND NOT other.granted"
            " WHERE own.granted AND own.pid = ANY(%s) GROUP BY own.pid",
            (list(idents),),
        )
