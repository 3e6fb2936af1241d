"""What the children of these tests do: hold locks, run ``manage.py``."""

from __future__ import annotations

import os
import pty
import threading

from distlock import Lock
from tests.children import read_line, write_line


def hold(*names, **options):
    """Hold the locks until the parent says a word; tell it their tokens first."""
    held = [Lock(name, lease=600, **options) for name in names]
    for lock in held:
        lock.acquire()
    write_line(*(lock.token for lock in held))
    read_line()
    for lock in held:
        lock.release()


def hold_until_lost(name):
    """Hold the lock, tell its token, and tell when it has been lost."""
    with Lock(name, lease=4, on_lost=lambda lease: write_line("lost", lease.token)) as lock:
        write_line(lock.token)
        read_line()


def abandon(lease, *names):
    """Take locks that nobody renews, tell their tokens, and go away."""
    taken = [Lock(name, lease=lease, renew=False) for name in names]
    for lock in taken:
        lock.acquire()
    write_line(*(lock.token for lock in taken))
    os._exit(0)


def manage(*arguments):
    """Run ``manage.py`` with these arguments."""
    from django.core.management import execute_from_command_line

    execute_from_command_line(["manage.py", *arguments])


def manage_for_nobody(*arguments):
    """Run ``manage.py`` with its output into a pipe that nobody reads any more."""
    reader, writer = os.pipe()
    os.dup2(writer, 1)
    os.close(reader)
    manage(*arguments)


def manage_on_terminal(typed, *arguments):
    """Run ``manage.py`` at a terminal where someone types this, and then what the parent tells."""
    master, slave = pty.openpty()
    parent = os.fdopen(os.dup(0))
    os.dup2(slave, 0)
    os.write(master, typed.encode())

    def forward():
        for line in parent:
            os.write(master, line.encode())

    threading.Thread(target=forward, daemon=True).start()
    manage(*arguments)


def crowd(name, number):
    """Let so many threads wait for the lock, and leave it as soon as they have it."""

    def wait():
        with Lock(name):
            pass

    threads = [threading.Thread(target=wait) for _ in range(number)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    write_line("done")


def hold_before_crowd(name, number):
    """Hold the lock while so many threads wait here, until the parent says a word."""
    with Lock(name):
        waiting = threading.Thread(target=crowd, args=(name, number))
        waiting.start()
        write_line("held")
        read_line()
    waiting.join()
