"""What becomes of sessions when their process forks or ends."""

from __future__ import annotations

import atexit
import os
import weakref
from typing import Protocol


class Instance(Protocol):
    """Something that has a session."""

    def close(self) -> None: ...
    def after_fork(self) -> None: ...


_instances: weakref.WeakSet[Instance] = weakref.WeakSet()


def register(instance: Instance) -> None:
    """See to it that the session ends with the process, and is not used by its children."""
    _instances.add(instance)


def _close_all() -> None:
    for instance in list(_instances):
        instance.close()


def _after_fork() -> None:
    for instance in list(_instances):
        instance.after_fork()


atexit.register(_close_all)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
