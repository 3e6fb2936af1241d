"""System checks: what is wrong with the ``DISTLOCK`` setting and with where the locks are kept.

``manage.py check`` looks at the settings only; ``manage.py check --database ALIAS`` asks that
database, too. With ``--deploy`` it says what would be better in production.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any

from django.apps import AppConfig
from django.conf import settings
from django.core.checks import CheckMessage, Error, Warning
from django.core.exceptions import ImproperlyConfigured
from django.db import connections

from distlock.apps import GROUPS_SETTING
from distlock.backends.base import BaseBackend
from distlock.conf import (
    AUDIT_SETTING,
    DEFAULT_ALIAS,
    INSTALL,
    audit_days,
    configured_groups,
    locks,
    missing_extra,
)
from distlock.types.owners import host_problem

Apps = Sequence[AppConfig] | None

#: What reads each setting beside DISTLOCK; if that is wrong: the id of the error, and its hint.
_OTHER_SETTINGS: Sequence[tuple[Callable[[], object], str, str, str]] = (
    (
        configured_groups,
        GROUPS_SETTING,
        "distlock.E009",
        'It is like {"celery": "workers", "web": "web", "using": "default"}.',
    ),
    (audit_days, AUDIT_SETTING, "distlock.E011", "None keeps the entries forever."),
)


def check_settings(app_configs: Apps, **kwargs: Any) -> list[CheckMessage]:
    """Check what can be known without asking anyone."""
    backends, messages = _backends()
    for backend in backends:
        messages.extend(backend.checks())
    messages.extend(_atomic_requests(backends))
    for read, setting, number, hint in _OTHER_SETTINGS:
        try:
            read()
        except ImproperlyConfigured as error:
            messages.append(Error(str(error), hint=hint, obj=setting, id=number))
    return messages


def check_databases(
    app_configs: Apps, databases: Collection[str] | None = None, **kwargs: Any
) -> list[CheckMessage]:
    """Check the databases that may be asked now."""
    if not databases:
        return []
    backends, _ = _backends()  # the others are reported by check_settings()
    return [message for backend in backends for message in backend.database_checks(databases)]


def check_deployment(app_configs: Apps, **kwargs: Any) -> list[CheckMessage]:
    """Check what is right, but would be better otherwise where many use it."""
    backends, _ = _backends()
    return [message for backend in backends for message in backend.deployment_checks()]


def _atomic_requests(backends: list[BaseBackend]) -> Iterator[CheckMessage]:
    """Warn of requests that are transactions, unless somebody has said when locks are freed."""
    atomic = [
        repr(name) for name in connections if connections.settings[name].get("ATOMIC_REQUESTS")
    ]
    for backend in backends if atomic else ():
        if backend.settings.release is None:
            yield Warning(
                f"ATOMIC_REQUESTS is set for {', '.join(atomic)}: a lock that a view leaves is free"
                " before the transaction of the request commits, so the next holder does not see"
                " its writes.",
                hint='Set "RELEASE" to "commit", which keeps the locks until the transaction has'
                ' ended; or to "now" if you accept this, for example because locks in views are'
                " used with atomic() only.",
                obj=f"DISTLOCK[{backend.alias!r}]",
                id="distlock.W009",
            )


def _backends() -> tuple[list[BaseBackend], list[CheckMessage]]:
    """Return the backends that can be made, and what is wrong with the others."""
    try:
        aliases = list(locks)
    except ImproperlyConfigured as error:
        return [], [_invalid("DISTLOCK", error)]
    if problem := host_problem():
        return [], [Error(f"No lock works here: {problem}.", id="distlock.E010")]
    backends: list[BaseBackend] = []
    messages: list[CheckMessage] = []
    if DEFAULT_ALIAS not in (getattr(settings, "DISTLOCK", None) or aliases):
        aliases.append(DEFAULT_ALIAS)  # what is without using= would be in this one
    for alias in aliases:
        try:
            backends.append(locks[alias])
        except ImproperlyConfigured as error:
            messages.append(_invalid(f"DISTLOCK[{alias!r}]", error))
    return backends, messages


def _invalid(entry: str, error: ImproperlyConfigured) -> Error:
    problem = str(error).removeprefix(entry).lstrip(": ")
    if extra := missing_extra(error):
        hint = INSTALL % extra
        return Error(
            f"The driver is not installed: {problem.removesuffix(hint).rstrip()}",
            hint=hint,
            obj=entry,
            id="distlock.E002",
        )
    return Error(problem, hint="Correct the setting DISTLOCK.", obj=entry, id="distlock.E001")
