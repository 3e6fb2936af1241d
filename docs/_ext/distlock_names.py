"""Which names of distlock are public: each is in docs/reference, with a complete docstring.

A name is public if ``__all__`` of its module has it, if it is in ``OTHERS``, or if a page for users
imports it. Sphinx is not needed.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from importlib import import_module
from pkgutil import walk_packages

from django.utils.module_loading import import_string

import distlock

#: Public names of modules that have no ``__all__``.
OTHERS = (
    "distlock.activity.activity",
    "distlock.audit.entries",
    "distlock.backends.local.LocalBackend",
    "distlock.fencing.FenceField",
    "distlock.fencing.FencedManager",
    "distlock.fencing.FencedModel",
    "distlock.fencing.FencedQuerySet",
    "distlock.middleware.LockErrorMiddleware",
    "distlock.middleware.error_response",
    "distlock.middleware.exception_handler",
    "distlock.models.AuditEntry",
    "distlock.models.DatabaseLock",
    "distlock.models.DatabaseRecord",
    "distlock.models.HeldLock",
    "distlock.models.RecordDirectory",
    "distlock.models.RecordSession",
    "distlock.tasks.sweep",
    "distlock.views.leads",
    "distlock.views.ready",
)

#: Users name these classes, in settings and in queries, and call no methods of distlock there.
CLOSED = ("distlock.admin.", "distlock.backends.", "distlock.models.")

#: What methods return; users do not call the constructor.
MADE = (
    "distlock.Lease",
    "distlock.celery.LockedResult",
    "distlock.recipes.Delivery",
    "distlock.recipes.Registration",
)

#: Members of public classes that other modules of distlock call, and users do not.
INTERNAL = (
    "distlock.Lease.lasting",
    "distlock.Lease.log_fields",
    "distlock.Lease.renewed",
    "distlock.Lease.until",
    "distlock.Lock.claim_nonce",
    "distlock.Lock.name_is_filled_in",
    "distlock.LockInfo.of",
    "distlock.Owner.from_fields",
    "distlock.Owner.keys",
    "distlock.Owner.to_fields",
    "distlock.celery.LockedTask.on_bound",
    "distlock.commands.LockedCommand.create_parser",
    "distlock.commands.LockedCommand.execute",
    "distlock.conf.BackendHandler.close_all",
    "distlock.conf.BackendHandler.made",
    "distlock.fencing.FenceField.pre_save",
    "distlock.fencing.FencedManager.use_in_migrations",
    "distlock.middleware.LockErrorMiddleware.process_exception",
    "distlock.recipes.Config.getting",
    "distlock.recipes.Config.setting",
    "distlock.recipes.Delivery.acking_all",
    "distlock.recipes.Delivery.give_up",
    "distlock.recipes.DeliveryInfo.of",
    "distlock.recipes.QueueItem.having",
    "distlock.recipes.QueueItem.of",
    "distlock.recipes.QueueItem.put_back",
    "distlock.recipes.QueueItem.value",
    "distlock.recipes.RateLimiter.busy",
)


def public_names() -> list[str]:
    """Return the public names, each where users import it."""
    names = [f"distlock.{name}" for name in distlock.__all__]
    for module in walk_packages(distlock.__path__, "distlock."):
        if module.ispkg:
            listed = getattr(import_module(module.name), "__all__", ())
            names += [f"{module.name}.{name}" for name in listed]
    signals = vars(import_module("distlock.signals"))
    names += [f"distlock.signals.{name}" for name in signals if name.startswith("lock_")]
    return [*names, *OTHERS]


def members_of(owner: type) -> Iterator[tuple[str, object]]:
    """Yield the public members of a class that distlock defines, of its bases, too."""
    names = {
        name
        for base in owner.__mro__
        if base.__module__.startswith("distlock")
        for name in vars(base)
        if not name.startswith("_")
    }
    for name in sorted(names):
        member = getattr(owner, name, None)
        if member is None or inspect.isclass(member):
            continue
        if not any(is_same(member, path) for path in INTERNAL if path.endswith(f".{name}")):
            yield name, member


def is_same(member: object, path: str) -> bool:
    """Return whether a member of a class is the one that a dotted path names."""
    owner, _, name = path.rpartition(".")
    found = getattr(import_string(owner), name)
    return bool(getattr(member, "__func__", member) == getattr(found, "__func__", found))


def method_of(owner: type, twin: str) -> str:
    """Return the method for threads that does what this one for tasks does; "" if there is none.

    Both have the same docstring, or that of the one for tasks begins with ``See acquire()``.
    """
    method = twin.removeprefix("a").removesuffix("_")
    here, there = getattr(owner, twin, None), getattr(owner, method, None)
    if twin.startswith("a") and there is not None:
        says = inspect.getdoc(here) or ""
        if says == inspect.getdoc(there) or says.startswith(f"See {method}()"):
            return method
    return ""
