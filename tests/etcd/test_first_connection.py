"""Python prepares itself to look up a host when it does that first: an interrupt may come then."""

import sys
import threading
import time
from contextlib import suppress

import pytest

from distlock import Lock
from tests.children import write_line
from tests.contract.actors import PATIENCE

pytestmark = pytest.mark.once


class Interrupts:
    """Interrupts the import of a module once, when another thread waits for its importer."""

    def __init__(self, module, wait):
        self._module, self._wait = module, wait

    def find_spec(self, name, path=None, target=None):
        if name == self._module:
            sys.meta_path.remove(self)
            threading.Thread(target=self._wait).start()
            time.sleep(0.5)  # it is known to wait when nothing else happens
            raise KeyboardInterrupt


def interrupted_at_first(name):
    def take(lock):
        try:
            outcomes.append(lock.acquire(timeout=PATIENCE))
        except BaseException as error:
            outcomes.append(repr(error))

    outcomes = []
    # Of Python's own, and imported by its codec for the names of hosts.
    for module in ("encodings.idna", "stringprep"):
        sys.modules.pop(module, None)
    sys.meta_path.insert(0, Interrupts("stringprep", lambda: take(Lock(f"{name}:other"))))
    with suppress(KeyboardInterrupt):
        Lock(f"{name}:interrupted").acquire()
    take(Lock(f"{name}:later"))
    while len(outcomes) < 2:
        time.sleep(0.01)
    write_line(outcomes)


def test_an_interrupt_of_the_first_look_up_of_a_host_spoils_no_later_one(
    child, backend_settings, settings, name
):
    settings.DISTLOCK = backend_settings("etcd")
    taker = child(interrupted_at_first, name, env={"PYTHONFAULTHANDLER": "1"})
    assert taker.line() == "[True, True]"
    taker.finish()
