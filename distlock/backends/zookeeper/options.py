"""What ``DISTLOCK[alias]`` says of ZooKeeper, checked and put in kazoo's words."""

from __future__ import annotations

import importlib.util
import logging
from collections.abc import Mapping
from typing import Any

from kazoo.hosts import collect_hosts
from kazoo.protocol.paths import normpath
from kazoo.retry import KazooRetry
from kazoo.security import ACL, CREATOR_ALL_ACL, OPEN_ACL_UNSAFE

from distlock.backends.settings import BackendSettings, Secret, tls_options

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


class Options:
    """The servers, where the locks are, and how kazoo is to reach them.

    - ``root``: the node below which the locks are; made if it is missing.
    - ``session_timeout``: seconds after which the servers end a session that they do not hear from,
      and free its locks; the servers may allow more or less.
    - ``timeout``: seconds that the servers get for an answer, connecting included.
    - ``auth``: pairs of scheme and credential, such as ``("digest", "user:password")``.
    - ``sasl``: options for pure-sasl, such as ``mechanism``, ``username`` and ``password``.
    - ``acl``: "open", "creator" (whoever made a node may do anything to it, others nothing), or a
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
    if not isinstance(value, list | tuple) or len(value) != 2:
        return False
    return all(isinstance(part, str) for part in value)
