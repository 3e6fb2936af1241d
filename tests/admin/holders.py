"""What other processes do in these tests: hold locks, wait for them, report their loss."""

from __future__ import annotations

from distlock import Lock
from distlock.activity import activity
from tests.children import read_line, write_line


def hold(using, names, options):
    """Write the tokens of the locks, and hold the locks until the parent writes a line."""
    with activity("Celery task shop.restock[7f3a]"):
        held = [Lock(name, using=using, **options) for name in names]
        for lock in held:
            lock.acquire()
        write_line(*(lock.token for lock in held))
        read_line()


def hold_until_lost(using, name, options):
    """Write the token of the lock, hold it, and write a line when it has been lost."""
    losses = []
    lock = Lock(name, using=using, on_lost=losses.append, **options)
    lock.acquire()
    write_line(lock.token)
    while not losses:
        read_line()
    write_line("lost", losses[0].token, lock.held)


def wait_for(using, name):
    """Write that the wait begins, and wait for a lock."""
    write_line("about to")
    Lock(name, using=using).acquire()
    write_line("got it")
    read_line()
