"""How kazoo is set up: what ``DISTLOCK[alias]`` says in its words, and how it runs in a process."""

from __future__ import annotations

import importlib.util
import logging
import select
import socket
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from kazoo.handlers.threading import SequentialThreadingHandler
from kazoo.hosts import collect_hosts
from kazoo.protocol.paths import normpath
from kazoo.retry import KazooRetry
from kazoo.security import ACL, CREATOR_ALL_ACL, OPEN_ACL_UNSAFE

from distlock.backends.settings import BackendSettings, Secret, tls_context, tls_options
from distlock.concurrency.threads import without_signals
from distlock.types.owners import gevent_patched

DEFAULTS: Mapping[str, Any] = {
    "root": "/distlock",
    "session_timeout": 10,
    "timeout": 5,
    "auth": (),
    "sasl": None,
    "acl": "open",
    "tls": False,
    "retry": {},
}

_RETRY = {"max_tries": -1, "delay": 0.05, "backoff": 2, "max_jitter": 0.4, "max_delay": None}
_ACLS = {"open": OPEN_ACL_UNSAFE, "creator": CREATOR_ALL_ACL}

#: A lease lasts for this part of its session's time-out, counted from a request that was answered.
#: The rest covers the delay until a server reports to the leader, who alone ends sessions: servers
#: report twice in a tick.
_LEASE_OF_SESSION = 2 / 3

#: Seconds. To begin a session takes a write on most of the servers.
_SHORTEST_GREETING = 1.0

_log = logging.getLogger("distlock.zookeeper")
# Below DEBUG kazoo writes the passwords of sessions.
_log.addFilter(lambda record: record.levelno >= logging.DEBUG)


class ZooKeeperOptions:
    """The servers, where the locks are, and how kazoo is to reach them.

    - ``root``: the node below which the locks are; made if it is missing.
    - ``session_timeout``: seconds after which the servers end a session that they do not hear from,
      and free its locks; the servers may allow more or less.
    - ``timeout``: seconds that the servers get for an answer, connecting included.
    - ``auth``: pairs of scheme and credential, such as ``("digest", "user:password")``.
    - ``sasl``: options for pure-sasl, such as ``mechanism``, ``username`` and ``password``.
    - ``acl``: "open", "creator" (only the creator of a node has any rights on it), or a
      list of ``kazoo.security.ACL``.
    - ``tls``: True, or a dictionary with ``ca`` (in place of the system's), ``certfile``,
      ``keyfile``, ``keyfile_password``, ``verify_certs`` and ``check_hostname``.
    - ``retry``: how to go on connecting: ``delay``, ``backoff``, ``max_jitter``, ``max_delay``,
      ``max_tries`` of ``kazoo.retry.KazooRetry``; never to give up, and every second at least,
      unless told otherwise.
    """

    def __init__(self, settings: BackendSettings) -> None:
        self._settings = settings
        self.session_timeout = settings.seconds("session_timeout")
        self.timeout = settings.seconds("timeout")
        self.hosts, chroot = self._location()
        self.root = self._root(chroot)
        self.acl = self._acl()
        #: Seconds that one server has to accept a connection: one that is cut off must not take the
        #: time in which another would have kept the session.
        self.connect_limit = min(self.timeout, self.session_timeout / len(self.hosts.split(",")))
        #: Seconds that one server has to answer for the first time: one that is being started may
        #: accept a connection and forget it, and there is to be time for another try.
        self.greeting_limit = max(self.timeout / 2, _SHORTEST_GREETING)
        self._retry = settings.mapping("retry", _RETRY)
        if self._retry["max_delay"] is None:  # often enough to be in time for the session
            self._retry["max_delay"] = min(self.session_timeout / 10, 1.0)
        self._arguments: dict[str, Any] = {
            "hosts": self.hosts,
            "timeout": self.session_timeout,
            "auth_data": self._auth(),
            "sasl_options": self._sasl(),
            "logger": _log,
            **self._tls(),
        }

    def lease_of(self, session_timeout: float) -> float:
        """Return how many seconds a lease lasts in a session that ends after so much silence."""
        return session_timeout * _LEASE_OF_SESSION

    def arguments(self, handler: Any) -> dict[str, Any]:
        """Return the arguments of a ``KazooClient`` that runs on ``handler``."""
        sasl = self._arguments["sasl_options"]
        return {
            **self._arguments,
            "sasl_options": sasl and dict(sasl),  # kazoo adds to it
            "handler": handler,
            "connection_retry": KazooRetry(sleep_func=handler.sleep_func, **self._retry),
        }

    def _location(self) -> tuple[str, str]:
        location = self._settings.location
        if not isinstance(location, str) or not location:
            self._settings.refuse("LOCATION must name the servers: 'host:port,host:port/chroot'")
        hosts, slash, chroot = location.partition("/")
        try:
            collect_hosts(hosts)
        except ValueError:
            self._settings.refuse(f"LOCATION {location!r} is not like 'host:port,host:port/chroot'")
        return hosts, slash + chroot

    def _root(self, chroot: str) -> str:
        root = self._settings.options["root"]
        if not isinstance(root, str) or not root.startswith("/"):
            self._settings.refuse(f"OPTIONS['root'] must be a path like '/distlock', not {root!r}")
        try:
            path = str(normpath(f"{chroot}/{root}"))
        except ValueError:
            self._settings.refuse(f"OPTIONS['root'] must not contain . or ..: {root!r}")
        if path == "/":
            self._settings.refuse("OPTIONS['root'] must leave the top of the tree to others")
        return path

    def _auth(self) -> list[tuple[str, str]]:
        pairs = self._settings.options["auth"]
        if not isinstance(pairs, list | tuple) or not all(map(_is_pair, pairs)):
            self._settings.refuse("OPTIONS['auth'] must be a list of pairs (scheme, credential)")
        if any(scheme == "sasl" for scheme, _ in pairs):
            self._settings.refuse("OPTIONS['auth']: SASL has an option of its own, 'sasl'")
        return [(scheme, Secret(credential)) for scheme, credential in pairs]

    def _sasl(self) -> Mapping[str, Any] | None:
        sasl = self._settings.options["sasl"]
        if sasl is None:
            return None
        if not isinstance(sasl, Mapping) or "mechanism" not in sasl:
            self._settings.refuse("OPTIONS['sasl'] must be a dictionary with a 'mechanism'")
        if importlib.util.find_spec("puresasl") is None:
            self._settings.refuse(
                "OPTIONS['sasl'] needs pure-sasl: pip install 'django-distlock[sasl]'"
            )
        return sasl

    def _acl(self) -> Any:
        acl = self._settings.options["acl"]
        if isinstance(acl, str) and acl in _ACLS:
            return _ACLS[acl]
        if not isinstance(acl, list) or not acl or not all(isinstance(one, ACL) for one in acl):
            self._settings.refuse(
                "OPTIONS['acl'] must be 'open', 'creator', or a list of kazoo.security.ACL"
            )
        return acl

    def _tls(self) -> dict[str, Any]:
        if not self._settings.options["tls"]:
            return {}
        return {"use_ssl": True, **tls_options(self._settings)}


def _is_pair(value: Any) -> bool:
    is_two = isinstance(value, list | tuple) and len(value) == 2
    return is_two and all(isinstance(part, str) for part in value)


class Handler:
    """Mixed into one of kazoo's handlers: how kazoo runs in a process.

    ``connect_limit`` has the seconds that one server gets to accept a connection.
    """

    def __init__(self, connect_limit: float) -> None:
        super().__init__()
        self._connect_limit = connect_limit
        self.last_error: OSError | None = None  # why there was no connection

    def start(self) -> None:
        """Start no further thread: nothing is called back through kazoo."""

    def stop(self) -> None:
        pass

    def spawn(self, *args: Any, **kwargs: Any) -> Any:
        return without_signals(partial(super().spawn, *args, **kwargs))  # type: ignore[misc]

    def create_connection(
        self, address: tuple[str, int], hostname: str, timeout: float, **tls: Any
    ) -> socket.socket:
        try:
            return _connect(address, hostname, min(timeout, self._connect_limit), tls)
        except OSError as error:
            self.last_error = type(error)(*error.args)  # a copy without the traceback's frames
            raise

    def select(
        self,
        reading: Sequence[Any],
        writing: Sequence[Any],
        _exceptional: Sequence[Any],
        timeout: float | None = None,
    ) -> tuple[list[Any], list[Any], list[Any]]:
        """Do as ``select.select`` does.

        kazoo's own makes an epoll object for each call, which takes several system calls. This
        takes one, because every answer to a request of a lock passes here.
        """
        polling, by_number = select.poll(), {each.fileno(): each for each in (*reading, *writing)}
        for number, each in by_number.items():
            polling.register(number, select.POLLIN if each in reading else select.POLLOUT)
        ready = [by_number[n] for n, _ in polling.poll(None if timeout is None else timeout * 1000)]
        can_read = [each for each in ready if each in reading]
        can_write = [each for each in ready if each in writing]
        return can_read, can_write, []


def new_handler(connect_limit: float) -> Any:
    """Return a handler for this process, based on kazoo's gevent one where gevent is in use."""
    base: Any = SequentialThreadingHandler
    if gevent_patched():
        from kazoo.handlers.gevent import SequentialGeventHandler

        base = SequentialGeventHandler
    return type("Handler", (Handler, base), {})(connect_limit)


def _connect(
    address: tuple[str, int], hostname: str, timeout: float, tls: Mapping[str, Any]
) -> socket.socket:
    """Return a connection; OSError if there is none in ``timeout`` seconds.

    Unlike kazoo's own function it leaves no socket open when that fails, and ``ca`` takes the place
    of the system's authorities.
    """
    connection = socket.create_connection(address, timeout)
    try:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if not tls["use_ssl"]:
            return connection
        # The files are read again each time: they may have been replaced before they expired.
        return tls_context(tls).wrap_socket(connection, server_hostname=hostname)
    except Exception:
        connection.close()
        raise
