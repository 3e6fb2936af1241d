"""A network between clients and all servers of a ZooKeeper, that can break."""

import time
from contextlib import ExitStack, suppress

from distlock import locks
from tests.servers.process import HOST
from tests.servers.proxy import Proxy


def server_of(alias):
    """Return host and port of the server that a client is connected to; None if there is none."""
    with suppress(OSError, AttributeError):
        return locks[alias].client.connection._socket.getpeername()[:2]
    return None


class Network:
    """A proxy before each server; what befalls one befalls all. A context manager."""

    def __init__(self, servers):
        self._after = ExitStack()
        self._proxies = [self._after.enter_context(Proxy(server.port)) for server in servers]

    @property
    def location(self):
        """The addresses that clients connect to."""
        return ",".join(f"{HOST}:{proxy.port}" for proxy in self._proxies)

    def __getattr__(self, fault):
        """Do to every proxy what its method of this name does."""
        methods = [getattr(proxy, fault) for proxy in self._proxies]
        return lambda *args, **kwargs: [method(*args, **kwargs) for method in methods]

    def lose_reply(self, to):
        """Lose the next reply to a request that contains ``to``, whichever server sends it."""
        return _Any([proxy.lose_reply(to) for proxy in self._proxies])

    def delay(self, to):
        """Keep back the next request that contains ``to``, whichever server it goes to."""
        return _Delays([proxy.delay(to) for proxy in self._proxies])

    def __enter__(self):
        return self

    def __exit__(self, *exc_info):
        self._after.close()


class _Any:
    """True when one of several events is."""

    def __init__(self, events):
        self._events = events

    def is_set(self):
        return any(event.is_set() for event in self._events)

    def wait(self, seconds):
        end = time.monotonic() + seconds
        while not self.is_set() and time.monotonic() < end:
            time.sleep(0.005)
        return self.is_set()


class _Delays:
    """The delays of several proxies, of which one comes to keep something back."""

    def __init__(self, delays):
        self._delays = delays
        self.kept_back = _Any([delay.kept_back for delay in delays])

    def end(self):
        for delay in self._delays:
            delay.end()
