"""A PgBouncer before a PostgreSQL server."""

from __future__ import annotations

import socket

from tests.servers.debian import program
from tests.servers.postgresql import PostgreSQL
from tests.servers.process import Server


class PgBouncer(Server):
    """``pgbouncer``, which lets many clients share ``size`` sessions of ``server``.

    ``mode`` is its ``pool_mode``: "session", "transaction" or "statement".
    """

    name = "pgbouncer"
    account = "postgres"

    def __init__(self, server: PostgreSQL, *, mode: str = "transaction", size: int = 2) -> None:
        super().__init__()
        self.server = server
        self.mode = mode
        self.size = size

    def install(self) -> None:
        server = self.server
        self.write("users.txt", f'"{server.user}" "{server.password}"\n')
        self.write(
            "pgbouncer.ini",
            "[databases]\n"
            f"* = host={server.host} port={server.port}\n"
            "[pgbouncer]\n"
            f"listen_addr = {self.host}\n"
            f"listen_port = {self.port}\n"
            "unix_socket_dir =\n"
            "auth_type = scram-sha-256\n"
            f"auth_file = {self.folder / 'users.txt'}\n"
            f"pool_mode = {self.mode}\n"
            f"default_pool_size = {self.size}\n"
            "max_client_conn = 200\n",
        )

    def command(self) -> list[str]:
        return [program("pgbouncer"), str(self.folder / "pgbouncer.ini")]

    def answers(self) -> bool:
        try:
            socket.create_connection((self.host, self.port), 10).close()
        except OSError:
            return False
        return True
