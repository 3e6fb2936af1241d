"""Processes that take turns under a lock while leaders of the cluster that keeps it are killed."""

import os
import time

from distlock import Lock, LockError
from tests.contract.actors import PATIENCE
from tests.contract.watch import eventually
from tests.faults.checker import Log, check


def take_turns(using, name, path):
    """Enter and leave for ever, noting both; start over after every error."""
    log = Log(path)
    while True:
        try:
            with Lock(name, using=using) as lock:
                token = lock.token
                log.write("enter", token, os.getpid())
                time.sleep(0.002)
                log.write("leave", token, os.getpid())
        except LockError:
            time.sleep(0.01)


def kill_leaders_while_turns_are_taken(using, ensemble, child, name, path):
    """Kill two leaders one after the other: nobody is inside with another, and turns go on."""
    log = Log(path)
    workers = [child(take_turns, using, name, log.path) for _ in range(3)]

    def turns():
        return sum(event[0] == "enter" for event in log.events())

    eventually(lambda: len({event[2] for event in log.events()}) == len(workers))
    for _ in range(2):
        leader = ensemble.leader
        leader.kill()
        assert ensemble.leader is not leader
        before = turns()
        eventually(lambda before=before: turns() > before + 10, 3 * PATIENCE)
        leader.start()
    for worker in workers:
        log.write("kill", worker.pid)
        worker.kill()
    assert check(log.events()) > 20
    log.close()
