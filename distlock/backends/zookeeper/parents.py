"""Makes the nodes below which others stand in line."""

from __future__ import annotations

from collections.abc import Callable

from kazoo.exceptions import NodeExistsError, NoNodeError, UnimplementedError

from distlock.backends.zookeeper import paths
from distlock.backends.zookeeper.client import Client
from distlock.backends.zookeeper.requests import CreateContainer, Reply, create_persistent


def make_parent(client: Client, path: str, then: Callable[[Reply], None]) -> None:
    """Make the node of a lock, and what is above it; ``then`` gets the last reply.

    The node is a container: the server removes it some time after its last child. Servers before
    3.5.3 do not know that kind, and need the sweep.
    """

    def made(reply: Reply) -> None:
        if isinstance(reply.error, NoNodeError):
            _make_path(client, client.options.root, again)
        elif isinstance(reply.error, UnimplementedError):
            _make_path(client, path, then)
        else:
            then(reply)

    def again(reply: Reply) -> None:
        if is_there(reply):
            client.send(CreateContainer(path, client.options.acl)).then(then)
        else:
            then(reply)

    client.send(CreateContainer(path, client.options.acl)).then(made)


def is_there(reply: Reply) -> bool:
    """Return whether the node that was to be made is there now."""
    return reply.error is None or isinstance(reply.error, NodeExistsError)


def _make_path(client: Client, path: str, then: Callable[[Reply], None]) -> None:
    requests = [create_persistent(each, client.options.acl) for each in paths.ancestors(path)]
    client.send_all(requests)[-1].then(then)
