"""How actors take the seats of a semaphore, and who has them."""

from distlock.backends import background
from distlock.recipes import Semaphore
from distlock.records import shared_backend
from tests.contract.actors import PATIENCE
from tests.contract.watch import eventually


def seats(actor, name, value=3, **options):
    """Return a semaphore that belongs to an actor."""
    return actor.lock(name, value=value, make="semaphore", **options)


def take(actor, name, value=3, **options):
    """Return a semaphore of which an actor has seats."""
    return actor.take(name, value=value, make="semaphore", **options)


def be_patient():
    """As a process of an actor: do not think that others are gone, for as long as a test takes."""
    background.LAST_ANSWER, shared_backend._PATIENCE = PATIENCE / 2, 2 * PATIENCE


def in_queue(using, name, recipe=Semaphore):
    return len(recipe(name, using=using).info().waiters)


def queue(lock, using, name, recipe=Semaphore, **options):
    """Let someone wait; return the future once it stands in the queue."""
    before = in_queue(using, name, recipe)
    waiting = lock.start("acquire", **options)
    eventually(lambda: in_queue(using, name, recipe) > before)
    return waiting


def is_unused(using, name):
    """Return whether nobody has a seat or waits for one."""
    info = Semaphore(name, using=using).info()
    return info.taken == 0 and info.waiters == ()
