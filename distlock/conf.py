"""From the ``DISTLOCK`` setting to backends, each made when it is first asked for."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from typing import Any
from weakref import WeakSet

from django.conf import settings
from django.core.exceptions import ImproperlyConfigured
from django.core.signals import setting_changed
from django.utils.module_loading import import_string

from distlock.apps import GROUPS_SETTING
from distlock.backends.base import BaseBackend, all_backends
from distlock.backends.settings import KEYS
from distlock.concurrency import fork
from distlock.concurrency.reentry import refuse_reentry
from distlock.exceptions import NotSupported
from distlock.types.owners import host_problem
from distlock.types.values import checked_name

DEFAULT_ALIAS = "default"
DEFAULTS: Mapping[str, Mapping[str, Any]] = {
    DEFAULT_ALIAS: {"BACKEND": "distlock.backends.database.DatabaseBackend"}
}

#: The drivers that backends and Django's engines import, and the extra that installs each. Django
#: tries psycopg, then psycopg2.
EXTRAS = {
    "MySQLdb": "mysql",
    "psycopg": "postgresql",
    "psycopg2": "postgresql",
    "kazoo": "zookeeper",
}
INSTALL = 'Install it with `python -m pip install "django-distlock[%s]"`.'

#: What processes join by themselves: a group for each of these, and the alias under "using".
ROLES = ("celery", "web")

#: Days after which a sweep removes entries of the audit log; the default, and the most.
AUDIT_SETTING = "DISTLOCK_AUDIT_DAYS"
_AUDIT_DAYS, _MOST_DAYS = 90, 100 * 366


class _HandlerState:
    """The state of a handler in one process."""

    def __init__(self) -> None:
        self.making = threading.RLock()
        #: whether this process has been found fit for locks; gunicorn's workers for gevent replace
        #: threads after the fork
        self.in_good_host = False


class BackendHandler:
    """``locks["alias"]``: the backends of a process, shared by its threads and tasks.

    Unlike Django's connection handlers it makes one for all threads and tasks: a backend is safe to
    share, and five tasks must not open five sessions.
    """

    def __init__(self) -> None:
        #: those of the parent of a fork are the child's, too, and begin again there
        self._backends: dict[str, BaseBackend] = {}
        #: those that were closed: what goes on with one, a call or a recipe, opens it again
        self._closed: WeakSet[BaseBackend] = WeakSet()
        self._state = fork.PerProcess(_HandlerState)

    @property
    def settings(self) -> Mapping[str, Any]:
        """What each alias stands for; ImproperlyConfigured if the setting is no such dictionary.

        Without the setting, or where it is empty, this is the default database. A setting without
        "default", or with None for it, has no such alias: a mistyped one moves no lock.
        """
        configured = getattr(settings, "DISTLOCK", None)
        if configured is None:
            return DEFAULTS
        if not isinstance(configured, Mapping):
            raise ImproperlyConfigured(f"DISTLOCK must be a dictionary, not {configured!r}.")
        if misplaced := [key for key in configured if key in KEYS]:
            raise ImproperlyConfigured(
                "DISTLOCK must have an entry for each alias, such as {'default': {'BACKEND': …}};"
                f" {', '.join(map(repr, misplaced))} belongs into such an entry."
            )
        if configured.get(DEFAULT_ALIAS, configured) is None:
            return {key: entry for key, entry in configured.items() if key != DEFAULT_ALIAS}
        return configured or DEFAULTS

    def __getitem__(self, alias: str) -> BaseBackend:
        """Return the backend of ``alias``; ImproperlyConfigured if there is none.

        Raises NotSupported where no lock can work, because threads are not what they should be.
        """
        state, backend = self._state(), self._backends.get(alias)
        if backend is not None and state.in_good_host:
            return backend
        if problem := host_problem():
            raise NotSupported(problem)
        state.in_good_host = True
        with state.making:
            if alias not in self._backends:
                # A signal handler may have made it meanwhile, on this very thread.
                self._backends.setdefault(alias, self._make(alias))
            return self._backends[alias]

    def __iter__(self) -> Iterator[str]:
        return iter(self.settings)

    def all(self) -> list[BaseBackend]:
        """Return every configured backend."""
        return [self[alias] for alias in self]

    def made(self) -> list[BaseBackend]:
        """Return the backends that have been used since they were last closed."""
        with self._state().making:
            return list(self._backends.values())

    def close_all(self) -> None:
        """Close the backends that have been made; the next use makes them again.

        Those that an earlier call has closed, and that were still used after it, are closed, too.
        """
        refuse_reentry(2)
        self._close_all()

    def _close_all(self) -> None:
        with self._state().making:
            self._closed.update(self._backends.values())
            self._backends.clear()
            backends = list(self._closed)
        for backend in backends:
            backend.close()

    def _make(self, alias: str) -> BaseBackend:
        try:
            return self._backend_class(alias)(alias, self.settings[alias])
        except ImproperlyConfigured as error:
            if extra := missing_extra(error):
                message = f"{str(error).rstrip('.')}. {INSTALL % extra}"
                raise ImproperlyConfigured(message) from error
            raise

    def _backend_class(self, alias: str) -> type[BaseBackend]:
        if alias not in self.settings:
            known = ", ".join(map(repr, self.settings))
            message = f"DISTLOCK[{alias!r}] is not configured; the aliases are: {known}."
            if alias == DEFAULT_ALIAS:
                message += (
                    " Give the lock using=, or add this alias; for the default database:"
                    " {'default': {'BACKEND': 'distlock.backends.database.DatabaseBackend'}, …}."
                )
            raise ImproperlyConfigured(message)
        params = self.settings[alias]
        if isinstance(params, Mapping):  # for "default" a LEASE, say, is enough
            params = {**DEFAULTS.get(alias, {}), **params}
        if not isinstance(params, Mapping) or "BACKEND" not in params:
            raise ImproperlyConfigured(
                f"DISTLOCK[{alias!r}] must be a dictionary with a 'BACKEND'."
            )
        path = params["BACKEND"]
        try:
            backend_class = path if isinstance(path, type) else import_string(path)
        except (ImportError, AttributeError, TypeError) as error:
            raise ImproperlyConfigured(
                f"DISTLOCK[{alias!r}]: cannot import BACKEND {path!r}: {error}"
            ) from error
        if not (isinstance(backend_class, type) and issubclass(backend_class, BaseBackend)):
            problem = f"BACKEND {path!r} is not a lock backend"
            raise ImproperlyConfigured(f"DISTLOCK[{alias!r}]: {problem}.")
        return backend_class


def missing_extra(error: BaseException | None) -> str | None:
    """Return the extra that installs the driver whose lack has led to an error; None for others."""
    while error is not None:
        if isinstance(error, ModuleNotFoundError) and error.name:
            return EXTRAS.get(error.name.partition(".")[0])
        error = error.__cause__ or error.__context__
    return None


locks = BackendHandler()


@fork.in_child
def _begin_backends() -> None:
    for backend in list(all_backends):
        try:
            backend.begin_in_child()
        except Exception:  # none keeps the others the parent's; who asks for it next gets it
            if locks._backends.get(backend.alias) is backend:
                del locks._backends[backend.alias]


def configured_groups() -> dict[str, str]:
    """Return which group a process joins by its role, and the alias under "using".

    Empty if no process joins any; ImproperlyConfigured if the setting is wrong.
    """
    groups = getattr(settings, GROUPS_SETTING, None)
    if not groups:
        return {}
    if not isinstance(groups, Mapping):
        raise ImproperlyConfigured(f"{GROUPS_SETTING} must be a dictionary, not {groups!r}.")
    using, names = groups.get("using", DEFAULT_ALIAS), dict(groups)
    names.pop("using", None)
    if not isinstance(using, str) or using not in locks:
        raise ImproperlyConfigured(f"{GROUPS_SETTING}['using']: DISTLOCK has no alias {using!r}.")
    for role, name in names.items():
        if role not in ROLES:
            raise ImproperlyConfigured(
                f"{GROUPS_SETTING}: unknown key {role!r}; there are 'celery', 'web' and 'using'."
            )
        try:
            checked_name(name)
        except (TypeError, ValueError) as error:
            raise ImproperlyConfigured(f"{GROUPS_SETTING}[{role!r}]: {error}") from error
    return {**names, "using": using}


def audit_days() -> float | None:
    """Return after how many days an entry of the audit log is old; None if none ever is.

    ImproperlyConfigured if the setting is wrong.
    """
    days = getattr(settings, AUDIT_SETTING, _AUDIT_DAYS)
    if days is None:
        return None
    if isinstance(days, bool) or not isinstance(days, (int, float)) or not 0 <= days <= _MOST_DAYS:
        raise ImproperlyConfigured(
            f"{AUDIT_SETTING} must be a number of days from 0 to {_MOST_DAYS}, or None,"
            f" not {days!r}."
        )
    return days


def _reset(*, setting: str, **kwargs: Any) -> None:
    if setting == "DISTLOCK":
        locks._close_all()


setting_changed.connect(_reset)
