"""What other processes do in these tests: hold locks, and tell when they lose them."""

from __future__ import annotations

from distlock import Lock
from distlock.activity import activity
from tests.children import read_line, write_line


def hold(using, names, options):
    """Hold the locks until the parent says a word; tell it their tokens first."""
    with activity("Celery task shop.restock[7f3a]"):
        held = [Lock(name, using=using, **options) for name in names]
        for lock in held:
            lock.acquire()
    write_line(*(lock.token for lock in held))
    read_line()


def hold_until_lost(using, name, options):
    """Hold the lock, tell its token, and tell when it has been lost, and that code noticed."""
    told = []
    lock = Lock(name, using=using, on_lost=told.append, **options)
    lock.acquire()
    write_line(lock.token)
    while not told:
        read_line()
    write_line("lost", told[0].token, lock.held)


def wait_for(using, name):
    """Wait in line for a lock; tell that one is about to."""
    write_line("about to")
    Lock(name, using=using).acquire()
    write_line("got it")
    read_line()
