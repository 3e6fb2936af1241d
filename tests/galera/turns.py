"""Processes that take turns through different nodes, and note each one."""

import os
import random
import threading
import time

from distlock import Lock, LockError
from distlock.recipes import Semaphore
from tests.children import read_line, write_line
from tests.contract.actors import PATIENCE
from tests.contract.watch import eventually
from tests.faults.checker import Log
from tests.galera.conftest import NODES

#: processes at each node
EACH = 2


def take_turns(node, name, path, lease, timeout, seats):
    """Enter and leave, whatever fails, until told to end; says then how many turns it has had.

    With ``seats`` it is a semaphore of one seat.
    """
    log, turns = Log(path), 0
    told = threading.Thread(target=read_line, daemon=True)
    told.start()
    while told.is_alive():
        options = {"using": node, "lease": lease, "timeout": timeout}
        lock = Semaphore(name, 1, **options) if seats else Lock(name, **options)
        try:
            if lock.acquire():
                log.write("enter", lock.token, os.getpid())
                time.sleep(random.uniform(0, 0.004))
                log.write("leave", lock.token, os.getpid())
                lock.release()
                turns += 1
        except LockError as error:
            write_line("error", type(error).__name__, str(error).replace("\n", " "))
            time.sleep(0.1)
    write_line("turns", turns)


def crowd(child, name, log, lease=30.0, timeout=PATIENCE, *, seats=False):
    """Start processes at all nodes; each wait for a turn ends after ``timeout`` seconds."""
    arguments = name, log.path, lease, timeout, seats
    return [child(take_turns, node, *arguments) for node in NODES * EACH]


def all_take_part(people, log):
    """Wait until every process has had a turn from now on."""
    before = len(log.events())
    pids = {str(one.pid) for one in people}
    # A node that has been away comes back slowly.
    eventually(lambda: {event[2] for event in log.events()[before:]} == pids, 4 * PATIENCE)


def outcomes(people):
    """End the processes; return of each how many turns it has had, and what errors it has met."""
    for one in people:
        one.tell("end")
    found = []
    for one in people:
        errors = []
        while (words := one.line(2 * PATIENCE).split(maxsplit=1))[0] == "error":
            errors.append(words[1])
        found.append((int(words[1]), errors))
    return found
