"""PostgreSQL's advisory locks, https://www.postgresql.org/docs/current/explicit-locking.html."""

from __future__ import annotations

from collections.abc import Collection

from distlock.backends.database.postgresql import PostgreSQL as Dialect
from distlock.backends.database.queue.advisory_locks import AdvisoryLocks, digest
from distlock.backends.database.queue.prepared import Prepared
from distlock.backends.database.statements import Result, Statement

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
# Nobody stands aside: whoever does so shares that lock. It is not kept, because the commit of this
# statement may take long.
_NOBODY_ASIDE = "CASE WHEN pg_try_advisory_lock({0}) THEN pg_advisory_unlock({0}) ELSE FALSE END"
_TAKE = Prepared(
    "distlock_take",
    Dialect.ACQUIRE.format(condition=f"({Dialect().owned} OR {_NOBODY_ASIDE.format('%(aside)s')})"),
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
        "aside": "bigint",
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


# A ticket is when its owner came, in quarters of a second since 2023: 31 bits last for 17 years.
_SINCE, _PER_SECOND = 1_672_531_200, 4


class PostgreSQL(AdvisoryLocks):
    """Session-level advisory locks, numbered by 64 bits.

    A statement that waits holds a snapshot, which VACUUM cannot look past and for which
    CREATE INDEX CONCURRENTLY waits. It holds no lock on any table. Who has waited for too long, or
    is in somebody's way, therefore stands aside: it shares a second lock, and has a third one that
    says since when it waits, neither of which it has to wait for, and looks at the row.
    """

    longest_wait = 600.0

    def key(self, database: str, name: str) -> str:
        return str(int.from_bytes(digest(database, name)[:8], "big", signed=True))

    def set_up(self) -> Statement:
        return Statement(_SET_UP)

    def is_free(self, key: str) -> str:
        nobody = _NOBODY_ASIDE.format(_aside(key))
        return f"(pg_try_advisory_xact_lock({key}) AND {nobody})"

    def enter(self, key: str) -> str:
        return f"SET LOCAL lock_timeout = 0; SELECT pg_advisory_lock({key})"

    def entered(self, answer: Result) -> bool:
        return True  # or it would have been an error

    def has_entered(self, key: str) -> Statement:
        # A session of ours has no other.
        return Statement(
            "SELECT COUNT(*) FROM pg_locks"
            " WHERE locktype = 'advisory' AND granted AND pid = pg_backend_pid()"
        )

    def leave(self, key: str) -> str:
        return f"SELECT pg_advisory_unlock({key})"

    def take(self, key: str, take: Statement) -> Statement:
        return _TAKE.run({**take.named, "aside": _aside(key)})

    def stand_aside(self, key: str, waited: float) -> Statement:
        return Statement(
            f"SELECT ticket, pg_advisory_lock_shared({_aside(key)}),"
            f" pg_advisory_lock_shared({_word(key)}, ticket) FROM (SELECT"
            f" ({_PER_SECOND} * (EXTRACT(EPOCH FROM clock_timestamp()) - {_SINCE} - {waited:.3f}))"
            "::integer AS ticket) came"
        )

    def is_somebody_aside(self, key: str) -> Statement | None:
        return Statement(f"SELECT 1 - ({_NOBODY_ASIDE.format(_aside(key))})::integer")

    def is_oldest(self, key: str, ticket: int) -> str:
        return (
            "NOT EXISTS (SELECT FROM pg_locks WHERE locktype = 'advisory' AND granted AND database"
            " = (SELECT oid FROM pg_database WHERE datname = current_database()) AND objsubid = 2"
            f" AND classid = '{_word(key) % 2**32}'::oid AND objid < '{ticket}'::oid)"
        )

    def free_and_leave(self, key: str, free: Statement) -> Statement:
        return _FREE_AND_LEAVE.run({**free.named, "key": int(key)})

    def cancel(self, ident: int) -> Statement:
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
            " GROUP BY pid, query, query_start ORDER BY query_start",
            {"mark": mark, "first": first},
        )

    def sessions(self, idents: Collection[int]) -> Statement:
        # Whoever runs a statement has a virtual transaction; another waits for it to end. Whoever
        # has written has a transaction id until its commit is done, standbys included.
        return Statement(
            "WITH locks AS MATERIALIZED (SELECT * FROM pg_locks"
            " WHERE locktype IN ('virtualxid', 'advisory', 'transactionid'))"
            " SELECT pid, EXISTS (SELECT FROM locks other"
            " WHERE other.virtualxid = own.virtualxid AND NOT other.granted)::int,"
            " EXISTS (SELECT FROM locks mine"
            " JOIN locks first USING (locktype, database, classid, objid, objsubid)"
            " JOIN locks writes ON writes.pid = first.pid"
            " WHERE mine.pid = own.pid AND mine.locktype = 'advisory' AND NOT mine.granted"
            " AND first.granted AND writes.locktype = 'transactionid' AND writes.granted)::int"
            " FROM locks own WHERE locktype = 'virtualxid' AND granted AND pid = ANY(%s)",
            (list(idents),),
        )


def _aside(key: str) -> int:
    """Return the native lock that those share who stand aside."""
    return ~int(key)


def _word(key: str) -> int:
    """Return the first half of the native locks that are their tickets, as 32 bits with a sign."""
    word = int(key) % 2**32
    return word - 2**32 if word >= 2**31 else word
