"""One entry of the ``DISTLOCK`` setting, checked, and what its ``OPTIONS["tls"]`` stands for."""

from __future__ import annotations

import ssl
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, NoReturn, Self, TypeVar

from django.core.exceptions import ImproperlyConfigured

from distlock.types.values import Release, checked_release, checked_seconds

T = TypeVar("T")

DEFAULT_LEASE = 30.0
#: A renewal may fail once and be tried again in time if leases outlast three of their intervals.
RENEWALS_PER_LEASE = 3


class Secret(str):
    """A string that is not shown, neither in logs nor in errors."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "'********'"

    __str__ = __repr__

    def __format__(self, spec: str) -> str:
        return repr(self)


#: What an entry may have.
KEYS = ("BACKEND", "LEASE", "RENEW", "RELEASE", "LOCATION", "OPTIONS")
#: What ``OPTIONS["tls"]`` may have.
_TLS: Mapping[str, Any] = {
    "ca": None,
    "certfile": None,
    "keyfile": None,
    "keyfile_password": None,
    "verify_certs": True,
    "check_hostname": None,  # as verify_certs
}


@dataclass(frozen=True, slots=True)
class BackendSettings:
    """What ``DISTLOCK[alias]`` says; every error names that entry. It never changes.

    - ``LEASE``: seconds that a lease lasts unless a lock says otherwise (30).
    - ``RENEW``: seconds between two renewals; at most, and by default, a third of ``LEASE``.
    - ``RELEASE``: when a lock is free that is left inside a transaction, "now" or "commit", unless
      it says otherwise; None where it is not set, which means "now".
    - ``LOCATION``: where the servers are, for backends that do not take this from elsewhere.
    - ``OPTIONS``: what else the backend understands.
    """

    alias: str
    lease: float
    renew: float
    location: Any
    options: Mapping[str, Any] = field(repr=False)  # there may be passwords in it
    release: Release | None = None

    @classmethod
    def parse(
        cls,
        alias: str,
        params: Mapping[str, Any],
        default_options: Mapping[str, Any],
        *,
        uses_location: bool,
    ) -> Self:
        """Return the settings that ``params``, the dictionary ``DISTLOCK[alias]``, stands for.

        Raises ``ImproperlyConfigured``.
        """
        _refuse_unknown(alias, "", params, KEYS)
        location = params.get("LOCATION", "")
        if location and not uses_location:
            _refuse(alias, "LOCATION has no meaning for this backend")
        options = params.get("OPTIONS") or {}
        if not isinstance(options, Mapping):
            _refuse(alias, f"OPTIONS must be a dictionary, not {options!r}")
        _refuse_unknown(alias, "OPTIONS: ", options, tuple(default_options))
        lease = _checked(alias, checked_seconds, "LEASE", params.get("LEASE", DEFAULT_LEASE))
        longest = lease / RENEWALS_PER_LEASE
        renew = _checked(alias, checked_seconds, "RENEW", params.get("RENEW", longest))
        if renew > longest:
            _refuse(
                alias,
                f"RENEW is {renew:g}, but with LEASE {lease:g} it may be at most {longest:g}"
                " seconds, so that a renewal that fails can be tried again in time",
            )
        release = None
        if "RELEASE" in params:
            release = _checked(alias, checked_release, "RELEASE", params["RELEASE"])
        all_options = MappingProxyType({**default_options, **options})
        return cls(alias, lease, renew, location, all_options, release)

    def interval(self, duration: float) -> float:
        """Return the seconds between two renewals of a lease of ``duration`` seconds."""
        return min(self.renew, duration / RENEWALS_PER_LEASE)

    def seconds(self, option: str) -> float:
        """Return an option that must be a finite, positive number of seconds."""
        what = f"OPTIONS[{option!r}]"
        return _checked(self.alias, checked_seconds, what, self.options[option])

    def choice(self, option: str, allowed: tuple[str, ...]) -> str:
        """Return an option that must be one of ``allowed``."""
        value = self.options[option]
        if value not in allowed:
            self.refuse(f"OPTIONS[{option!r}] is {value!r}; it must be one of {', '.join(allowed)}")
        return str(value)

    def count(self, option: str, *, at_least: int = 0) -> int:
        """Return an option that must be a whole number, not below ``at_least``."""
        value = self.options[option]
        if not isinstance(value, int) or isinstance(value, bool) or value < at_least:
            self.refuse(f"OPTIONS[{option!r}] must be a whole number >= {at_least}, not {value!r}")
        return int(value)

    def mapping(self, option: str, defaults: Mapping[str, Any]) -> dict[str, Any]:
        """Return an option that must be a dictionary with keys of ``defaults``, completed."""
        given = self.options[option]
        if not isinstance(given, Mapping):
            self.refuse(f"OPTIONS[{option!r}] must be a dictionary")
        _refuse_unknown(self.alias, f"OPTIONS[{option!r}]: ", given, tuple(defaults))
        return {**defaults, **given}

    def refuse(self, problem: str) -> NoReturn:
        """Raise ``ImproperlyConfigured`` that names the entry."""
        _refuse(self.alias, problem)


def _refuse(alias: str, problem: str) -> NoReturn:
    raise ImproperlyConfigured(f"DISTLOCK[{alias!r}]: {problem}.")


def _checked(alias: str, check: Callable[[str, object], T], what: str, value: object) -> T:
    try:
        return check(what, value)
    except (TypeError, ValueError) as error:
        _refuse(alias, str(error))


def _refuse_unknown(
    alias: str, where: str, given: Mapping[str, Any], known: tuple[str, ...]
) -> None:
    for key in given:
        if key not in known:
            names = ", ".join(map(repr, known)) or "none"
            _refuse(alias, f"{where}unknown setting {key!r}; known are: {names}")


def tls_options(settings: BackendSettings) -> dict[str, Any]:
    """Return ``OPTIONS["tls"]``, checked and complete; True is for the defaults. Reads no files."""
    given = settings.options["tls"]
    if given is not True and not isinstance(given, Mapping):
        settings.refuse(f"OPTIONS['tls'] must be True or a dictionary, not {given!r}")
    tls = dict(_TLS) if given is True else settings.mapping("tls", _TLS)
    if tls["check_hostname"] is None:
        tls["check_hostname"] = tls["verify_certs"]
    elif tls["check_hostname"] and not tls["verify_certs"]:
        settings.refuse("OPTIONS['tls']: check_hostname goes only with verify_certs")
    if tls["certfile"] is None and tls["keyfile"] is not None:
        settings.refuse("OPTIONS['tls']: keyfile goes only with certfile")
    if (password := tls["keyfile_password"]) is not None:
        if not isinstance(password, str):
            kind = type(password).__name__  # and not its value: the message may be logged
            settings.refuse(f"OPTIONS['tls']: keyfile_password must be a text, not of type {kind}")
        tls["keyfile_password"] = Secret(password)
    return tls


def tls_context(tls: Mapping[str, Any]) -> ssl.SSLContext:
    """Read the files of complete options; OSError names those that cannot be read."""
    files = f"ca {tls['ca']!r}"
    try:
        context = ssl.create_default_context(cafile=tls["ca"])
        context.check_hostname = bool(tls["check_hostname"])
        context.verify_mode = ssl.CERT_REQUIRED if tls["verify_certs"] else ssl.CERT_NONE
        if tls["certfile"] is not None:
            files = f"certfile {tls['certfile']!r} with keyfile {tls['keyfile']!r}"
            # Without a function for it OpenSSL would ask the terminal for a password.
            password = tls["keyfile_password"] or ""
            context.load_cert_chain(tls["certfile"], tls["keyfile"], lambda: password)
    except (OSError, TypeError, ValueError) as error:
        raise OSError(f"cannot load {files} ({type(error).__name__}: {error})") from error
    return context
