"""A PostgreSQL server."""

from __future__ import annotations

import signal
from typing import Any

from tests.servers.database import CONNECT_LIMIT, DatabaseServer
from tests.servers.debian import postgresql_program


class PostgreSQL(DatabaseServer):
    """``postgres`` with its own defaults, on TCP only."""

    name = "postgresql"
    account = "postgres"
    stop_signal = signal.SIGINT  # closes the sessions instead of waiting for them to end
    engine = "django.db.backends.postgresql"
    scheme = "postgres"
    administrator = "postgres"

    def install(self) -> None:
        self.run(
            postgresql_program("initdb"),
            f"--pgdata={self.folder / 'data'}",
            f"--username={self.administrator}",
            f"--pwfile={self.write('password', self.password)}",
            "--auth=md5",  # scram-sha-256 takes both sides 10 ms of each of thousands of sessions
            "--encoding=UTF8",
            "--locale=C.UTF-8",
        )
        # Single-user mode takes one statement a line.
        self._bootstrap(
            f"CREATE ROLE {self.user} LOGIN CREATEDB PASSWORD '{self.password}'\n"
            f"CREATE DATABASE {self.database} OWNER {self.user}\n"
        )

    def command(self) -> list[str]:
        settings = {
            "listen_addresses": self.host,
            "port": self.port,
            "unix_socket_directories": "",
        }
        return [
            postgresql_program("postgres"),
            "-D",
            str(self.folder / "data"),
            *(f"--{name}={value}" for name, value in settings.items()),
        ]

    def answers(self) -> bool:
        import psycopg

        try:
            self.execute("SELECT 1")
        except psycopg.OperationalError:
            return False
        return True

    def connect(self) -> Any:
        import psycopg

        return psycopg.connect(
            host=self.host,
            port=self.port,
            user=self.administrator,
            password=self.password,
            dbname=self.database,
            connect_timeout=CONNECT_LIMIT,
            autocommit=True,
        )

    def execute(self, *statements: str) -> list[tuple[Any, ...]]:
        with self.connect() as connection:
            for sql in statements:
                cursor = connection.execute(sql.encode())
            return cursor.fetchall() if cursor.description else []

    def _bootstrap(self, statements: str) -> None:
        self.run(
            "/bin/sh",
            "-c",
            'exec "$0" --single -D "$1" postgres < "$2"',
            postgresql_program("postgres"),
            str(self.folder / "data"),
            str(self.write("accounts.sql", statements)),
        )
