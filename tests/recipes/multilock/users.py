"""What tests do with the locks of a MultiLock."""

import threading
import uuid

from distlock import Lock, locks
from tests.contract.actors import PATIENCE


class Used:
    """A lock that an actor uses: a task by the async twins of its methods."""

    def __init__(self, actor, lock):
        self.actor = actor
        self.lock = lock

    def start(self, member, *args, **kwargs):
        def use():
            twin = "a" + member
            name = twin if hasattr(self.actor, "task") and hasattr(self.lock, twin) else member
            found = getattr(self.lock, name)
            return found(*args, **kwargs) if callable(found) else found

        return self.actor.call(use)

    def do(self, member, *args, **kwargs):
        return self.start(member, *args, **kwargs).result(PATIENCE)

    def body(self, function):
        """Run a body under the lock, with ``with`` or ``async with``."""

        def under():
            with self.lock as entered:
                return function(entered)

        async def aunder():
            async with self.lock as entered:
                return function(entered)

        chosen = aunder if hasattr(self.actor, "task") else under
        return self.actor.call(chosen).result(PATIENCE)


def take(actor, lock):
    """Return the lock, held by another object of the actor."""
    return actor.take(lock.name, using=lock.using)


def is_free(actor, lock):
    return actor.lock(lock.name, using=lock.using).acquire(timeout=PATIENCE)


def lose(lock):
    """Break the hold of a lock from outside."""
    backend = locks[lock.using]
    assert backend.force_release(lock.name, backend.inspect(lock.name).token)


def new_parts():
    name = uuid.uuid4().hex
    return [Lock(f"{name}:a"), Lock(f"{name}:b"), Lock(f"{name}:a", using="near")]


def others_get(parts):
    got = []

    def take():
        for part in parts:
            assert part.acquire(timeout=10)
            part.release()
            got.append(part)

    other = threading.Thread(target=take, daemon=True)
    other.start()
    other.join(60)
    assert len(got) == len(parts)
