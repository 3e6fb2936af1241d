"""What can be seen of locks from outside: the nodes, and the servers' own figures."""

import json
import re
import socket

from kazoo.exceptions import NoNodeError
from kazoo.protocol.serialization import Connect

from distlock.backends.zookeeper.tree import escaped, in_order


class Tree:
    """The nodes below a root, by the names of locks; answers come even after servers were away."""

    def __init__(self, kazoo, root):
        self.kazoo = kazoo
        self.root = root

    def path(self, name):
        return f"{self.root}/{escaped(name)}"

    def parents(self):
        """Return the nodes of locks that there are, empty or not."""
        self.kazoo.retry(self.kazoo.sync, self.root)
        try:
            return self.kazoo.retry(self.kazoo.get_children, self.root)
        except NoNodeError:
            return []

    def queue(self, name):
        """Return the paths of the nodes of all contenders for a lock, the holder first."""
        path = self.path(name)
        self.kazoo.retry(self.kazoo.sync, path)
        try:
            children = self.kazoo.retry(self.kazoo.get_children, path)
            return [f"{path}/{node}" for node in in_order(children)]
        except NoNodeError:
            return []

    def read(self, path):
        """Return the JSON and the stat of a node."""
        data, stat = self.kazoo.get(path)
        return json.loads(data), stat

    def token(self, name):
        """Return the token of the holder, None if there is none."""
        queue = self.queue(name)
        return self.kazoo.get(queue[0])[1].czxid if queue else None


def watches(server, session=None):
    """Return the paths that are watched on a server, by anyone or in one session."""
    if session is None:
        return re.findall(r"^/.*", server.four_letters("wchp"), re.MULTILINE)
    watched = re.split(r"^0x", server.four_letters("wchc"), flags=re.MULTILINE)
    for each in watched[1:]:
        first, *paths = each.splitlines()
        if int(first, 16) == session:
            return [path.strip() for path in paths if path.strip()]
    return []


def packets(server):
    """Return for each session how many packets the server has got from it and sent to it."""
    found = re.findall(r"recved=(\d+),sent=(\d+),sid=(0x[0-9a-f]+)", server.four_letters("cons"))
    return {int(sid, 16): (int(received), int(sent)) for received, sent, sid in found}


def session_of(backend):
    """Return the id of the session that a backend has, as ``packets`` gives it."""
    return backend.client.session.id % 2**64


def expire(server, client_id):
    """End a session on the server's side, whatever its client thinks."""
    session, password = client_id
    connect = bytes(Connect(0, 0, 10_000, session, password, False).serialize())
    with socket.create_connection((server.host, server.port), timeout=10) as connection:
        connection.sendall(_frame(connect))
        answer = connection.recv(4096)
        assert int.from_bytes(answer[8:12]) > 0, "the session was over already"
        connection.sendall(_frame(_CLOSE))
        while connection.recv(4096):
            pass


#: request number 1, of the type closeSession
_CLOSE = (1).to_bytes(4) + (-11).to_bytes(4, signed=True)


def _frame(body):
    return len(body).to_bytes(4) + body
