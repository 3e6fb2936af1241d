"""A PostgreSQL server that follows another one, and can take its place."""

from __future__ import annotations

import time

from tests.servers.debian import postgresql_program
from tests.servers.postgresql import PostgreSQL
from tests.servers.process import START_LIMIT
from tests.servers.proxy import Proxy


class Standby(PostgreSQL):
    """A copy of ``primary``, kept up to date through ``network``, a Proxy that tests can break.

    A context manager like all servers. Not synchronous until wait_for_it() was called.
    """

    name = "standby"

    def __init__(self, primary: PostgreSQL) -> None:
        super().__init__()
        self.primary = primary
        self.network = Proxy(primary.port).__enter__()

    def install(self) -> None:
        # A .pgpass that others can read is ignored; the copy keeps the password by itself.
        conninfo = (
            f"host={self.host} port={self.network.port} user={self.administrator}"
            f" password={self.password}"
        )
        self.run(
            postgresql_program("pg_basebackup"),
            f"--dbname={conninfo}",
            f"--pgdata={self.folder / 'data'}",
            "--wal-method=stream",
            "--checkpoint=fast",
            "--write-recovery-conf",
        )

    def command(self) -> list[str]:
        # Its name is what the primary knows it by, see synchronous_standby_names.
        return [
            *super().command(),
            f"--cluster_name={self.name}",
            "--wal_retrieve_retry_interval=200ms",
        ]

    def wait_for_it(self) -> None:
        """Let no commit of the primary be answered from now on before this one has it on disk."""
        self.primary.execute(f"ALTER SYSTEM SET synchronous_standby_names = '{self.name}'")
        self.primary.execute("SELECT pg_reload_conf()")
        self._await(self.primary, "SELECT sync_state FROM pg_stat_replication", "sync")

    def catch_up(self) -> None:
        """Wait until it has everything that the primary has written so far."""
        # Its commit waits for the disk, and so for earlier ones that have not waited for it.
        self.primary.execute("SELECT pg_logical_emit_message(true, 'tests', 'caught up')")
        ((written,),) = self.primary.execute("SELECT pg_current_wal_flush_lsn()")
        self._await(self, f"SELECT pg_last_wal_replay_lsn() >= '{written}'", True)

    def promote(self) -> None:
        """Take the primary's place; what it has not received by now is lost."""
        assert self.execute("SELECT pg_promote()") == [(True,)]
        self._await(self, "SELECT pg_is_in_recovery()", False)

    def close(self) -> None:
        """End it and remove its data."""
        super().close()
        self.network.__exit__(None, None, None)

    def _await(self, server: PostgreSQL, question: str, answer: object) -> None:
        ends_at = time.monotonic() + START_LIMIT
        while (found := server.execute(question)) != [(answer,)]:
            if time.monotonic() > ends_at:
                raise RuntimeError(f"{question} is {found}, not {answer!r}:\n{self.log_tail()}")
            time.sleep(0.02)
