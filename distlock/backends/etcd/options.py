"""What ``DISTLOCK[alias]`` says of etcd, checked."""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from distlock.backends.settings import BackendSettings, Secret, tls_context, tls_options

DEFAULTS: Mapping[str, Any] = {
    "prefix": "/distlock/",
    "timeout": 5,
    "user": None,
    "password": None,
    "tls": None,
}

#: The port of etcd for clients, registered with IANA.
_PORT = 2379


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where one member of the cluster listens for clients."""

    scheme: str
    host: str
    port: int

    @property
    def is_local(self) -> bool:
        """Whether it is on this machine, as far as its name tells."""
        return self.host == "localhost" or self.host == "::1" or self.host.startswith("127.")

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.scheme}://{host}:{self.port}"


class EtcdOptions:
    """The members of the cluster, where the keys are, and how to reach them.

    - ``prefix``: what all keys begin with.
    - ``timeout``: seconds that the cluster gets for an answer, all members that are tried included.
    - ``user``, ``password``: for a cluster with authentication.
    - ``tls``: True, or a dictionary with ``ca`` (in place of the system's), ``certfile``,
      ``keyfile``, ``keyfile_password``, ``verify_certs`` and ``check_hostname``; it goes with
      ``https``.
    """

    def __init__(self, settings: BackendSettings) -> None:
        self._settings = settings
        self.alias = settings.alias
        self.timeout = settings.seconds("timeout")
        self.endpoints = self._endpoints()
        self.prefix = self._prefix()
        self.user, self.password = self._credentials()
        self.tls = self._tls()

    def __repr__(self) -> str:
        return f"<EtcdOptions of DISTLOCK[{self.alias!r}]>"

    def _endpoints(self) -> tuple[Endpoint, ...]:
        location = self._settings.location
        texts = location.split(",") if isinstance(location, str) else location
        if not isinstance(texts, list | tuple) or not all(isinstance(one, str) for one in texts):
            texts = []
        texts = [text.strip() for text in texts]
        if not texts or not all(texts):
            self._settings.refuse(
                "LOCATION must name the members of the cluster: 'http://host:port,http://host:port'"
                " or a list of such"
            )
        return tuple(dict.fromkeys(map(self._endpoint, texts)))

    def _endpoint(self, text: str) -> Endpoint:
        scheme = "https" if self._settings.options["tls"] else "http"
        url = text if "://" in text else f"{scheme}://{text}"
        if "@" in url:  # what stands before it may be a password
            self._settings.refuse(
                "LOCATION must not have a user or password in it: use OPTIONS['user'] and"
                " OPTIONS['password']"
            )
        wrong = f"LOCATION: {text!r} is not like 'http://host:port' or 'https://host:port'"
        try:
            parts = urlsplit(url)
            host, port = parts.hostname, parts.port
        except ValueError:
            self._settings.refuse(wrong)
        beyond = parts.path.strip("/") or parts.query or parts.fragment
        if parts.scheme not in ("http", "https") or not host or beyond or port == 0:
            self._settings.refuse(wrong)
        return Endpoint(parts.scheme, host, _PORT if port is None else port)

    def _prefix(self) -> str:
        prefix = self._settings.options["prefix"]
        if not isinstance(prefix, str) or not prefix.strip("/"):
            self._settings.refuse(f"OPTIONS['prefix'] must be like '/distlock/', not {prefix!r}")
        if not prefix.isprintable():
            self._settings.refuse(f"OPTIONS['prefix'] must be printable, not {prefix!r}")
        return prefix if prefix.endswith("/") else f"{prefix}/"

    def _credentials(self) -> tuple[str | None, Secret | None]:
        user, password = (self._settings.options[option] for option in ("user", "password"))
        if user is None and password is None:
            return None, None
        for option, value in (("user", user), ("password", password)):
            if not isinstance(value, str) or not value:
                self._settings.refuse(f"OPTIONS[{option!r}] must be a text that is not empty")
        return user, Secret(password)

    def _tls(self) -> ssl.SSLContext | None:
        if not self._settings.options["tls"]:
            is_encrypted = any(endpoint.scheme == "https" for endpoint in self.endpoints)
            return ssl.create_default_context() if is_encrypted else None
        tls = tls_options(self._settings)
        if any(endpoint.scheme == "http" for endpoint in self.endpoints):
            self._settings.refuse("OPTIONS['tls'] goes with https, but LOCATION has http, too")
        try:
            return tls_context(tls)
        except OSError as error:
            self._settings.refuse(f"OPTIONS['tls']: {error}")
