"""A MariaDB server."""

from __future__ import annotations

from typing import Any

from tests.servers.database import CONNECT_LIMIT, DatabaseServer
from tests.servers.debian import program


class MariaDB(DatabaseServer):
    """``mariadbd`` with its own defaults, whatever the machine's configuration says."""

    name = "mariadb"
    account = "mysql"
    engine = "django.db.backends.mysql"
    scheme = "mysql"
    administrator = "root"

    def install(self) -> None:
        self.run(
            program("mariadb-install-db"),
            "--no-defaults",
            f"--datadir={self.folder / 'data'}",
            f"--tmpdir={self.folder}",  # servers that start at once get in each other's way in /tmp
            "--auth-root-authentication-method=normal",
            "--skip-test-db",
        )
        self.write(
            "accounts.sql",
            f"CREATE DATABASE IF NOT EXISTS {self.database} CHARACTER SET utf8mb4;\n"
            f"ALTER USER '{self.administrator}'@'{self.host}' IDENTIFIED BY '{self.password}';\n"
            f"CREATE USER IF NOT EXISTS '{self.user}'@'{self.host}'"
            f" IDENTIFIED BY '{self.password}';\n"
            f"GRANT ALL ON {self.database}.* TO '{self.user}'@'{self.host}';\n"
            f"GRANT ALL ON `test\\_{self.database}`.* TO '{self.user}'@'{self.host}';\n",
        )

    def command(self) -> list[str]:
        return [
            program("mariadbd"),
            "--no-defaults",
            f"--datadir={self.folder / 'data'}",
            f"--tmpdir={self.folder}",
            f"--bind-address={self.host}",
            f"--port={self.port}",
            f"--socket={self.folder / 'socket'}",
            f"--init-file={self.folder / 'accounts.sql'}",
            "--skip-name-resolve",
        ]

    def answers(self) -> bool:
        import MySQLdb

        try:
            self.execute("SELECT 1")
        except MySQLdb.OperationalError:
            return False
        return True

    def connect(self) -> Any:
        import MySQLdb

        return MySQLdb.connect(
            host=self.host,
            port=self.port,
            user=self.administrator,
            password=self.password,
            database=self.database,
            charset="utf8mb4",
            connect_timeout=CONNECT_LIMIT,
            autocommit=True,
        )

    def execute(self, *statements: str) -> list[tuple[Any, ...]]:
        connection = self.connect()
        try:
            cursor = connection.cursor()
            for sql in statements:
                cursor.execute(sql)
            return list(cursor.fetchall())
        finally:
            connection.close()


class SecureMariaDB(MariaDB):
    """One that speaks TLS with whoever wants to."""

    def django(self, port: int | None = None) -> dict[str, Any]:
        return {**super().django(port), "OPTIONS": {"ssl_mode": "REQUIRED"}}

    def install(self) -> None:
        super().install()
        arguments = "req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=127.0.0.1"
        files = ("-keyout", str(self.folder / "key.pem"), "-out", str(self.folder / "cert.pem"))
        self.run(program("openssl"), *arguments.split(), *files)

    def command(self) -> list[str]:
        return [
            *super().command(),
            f"--ssl-cert={self.folder / 'cert.pem'}",
            f"--ssl-key={self.folder / 'key.pem'}",
        ]
