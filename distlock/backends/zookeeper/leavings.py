"""Removes nodes that nobody wants any more, also after the connection has come back."""

from __future__ import annotations

from distlock.backends.zookeeper.client import Client, Session
from distlock.backends.zookeeper.requests import Delete, Reply


def remove(client: Client, session: Session, path: str) -> None:
    """Remove a node without waiting for it; the end of its session removes it too."""

    def done(reply: Reply) -> None:
        if reply.lost:
            client.when_connected(again)

    def again() -> None:
        if client.session is session and not session.over:
            client.send(Delete(path, -1)).then(done)

    again()
