"""A Redis server, the broker of the Celery tests."""

from __future__ import annotations

import contextlib
import socket

from tests.servers.debian import program
from tests.servers.process import Server


class Redis(Server):
    """``redis-server`` that writes every change to disk."""

    name = "redis"

    @property
    def url(self) -> str:
        return f"redis://{self.host}:{self.port}/0"

    def install(self) -> None:
        """An empty folder will do."""

    def command(self) -> list[str]:
        settings = {
            "bind": self.host,
            "port": self.port,
            "dir": self.folder,
            "save": "",
            "appendonly": "yes",
            "appendfsync": "always",
        }
        options = [text for name, value in settings.items() for text in (f"--{name}", str(value))]
        return [program("redis-server"), *options]

    def answers(self) -> bool:
        with (
            contextlib.suppress(OSError),
            socket.create_connection((self.host, self.port), timeout=10) as connection,
        ):
            connection.sendall(b"PING\r\n")
            return connection.recv(64) == b"+PONG\r\n"
        return False
