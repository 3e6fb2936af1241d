"""Tasks that run in place of being queued, under locks of this process."""

from distlock import locks
from distlock.celery import LockedTask
from distlock.types.lease import State
from tests.contract.watch import eventually


def await_free(name):
    """Wait until a lock is free, as it is soon."""
    eventually(lambda: locks["default"].inspect(name).state is State.FREE)


def task_of(app, function, **options):
    function.__name__ = "body"  # a lambda's name is not one for Celery
    given = {"name": "in.place", "shared": False, "base": LockedTask, **options}
    return app.task(**given)(function)
