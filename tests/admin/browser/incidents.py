"""What processes do in the incidents that are replayed."""

from __future__ import annotations

import threading

from distlock import Lock
from distlock.recipes import Election
from tests.children import read_line, write_line


def wait_in_threads(using, name, number):
    """Let that many threads wait for a lock."""
    for _ in range(number):
        threading.Thread(target=Lock(name, using=using).acquire, daemon=True).start()
    write_line("waiting")
    read_line()


def hold_and_want(held_in, held, wanted_in, wanted):
    """Hold a lock, and when told, wait for another one for ever."""
    Lock(held, using=held_in).acquire()
    write_line("held")
    read_line()
    write_line("wants")
    Lock(wanted, using=wanted_in).acquire()


def lead(name, candidate):
    """Lead as soon as possible, and until the process is killed."""
    Election(name, candidate).campaign()
    write_line("leads")
    read_line()
