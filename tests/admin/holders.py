"""What other processes do in these tests: hold locks, and tell when they lose them."""

from __future__ import annotations

from distlock import Lock
from distlock.activity import activity
from tests.children import hear, say


def hold(using, names, options):
    """Hold the locks until the parent says a word; tell it their tokens first."""
    with activity("Celery task shop.restock[7f3a]"):
        held = [Lock(name, using=using, **options) for name in names]
        for lock in held:
            lock.acquire()
    say(*(lock.token for lock in held))
    hear()


def hold_until_lost(using, name, options):
    """Hold the lock, tell its token, and tell when it has been lost, and that code noticed."""
    told = []
    lock = Lock(name, using=using, on_lost=told.append, **options)
    lock.acquire()
    say(lock.token)
    while not told:
        hear()
    say("lost", told[0].token, lock.held)


def wait_for(using, name):
    """Wait in line for a lock; tell that one is about to."""
    say("about to")
    Lock(name, using=using).acquire()
    say("got it")
    hear()
