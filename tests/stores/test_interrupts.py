"""Ctrl-C at any moment leaves a store in order, whole, and able to go on."""

import os
import signal
import threading

import pytest

from distlock.backends.store import Put
from distlock.concurrency.clock import clock
from tests.contract.actors import PATIENCE
from tests.stores.clients import put, store_of


def interrupt_changes(directory, rounds):
    """As the main thread of a process: change, renew, watch and look under a rain of SIGINTs.

    Returns how many came through.
    """
    store = store_of()
    session = store.open_session(600)
    store.apply(directory, [Put("mine", 1, session.id), Put("left", -1), Put("right", -1)])
    caught = 0
    for number in range(rounds):
        timer = threading.Timer(0.0003 * number, os.kill, (os.getpid(), signal.SIGINT))
        late = clock() + 1
        try:
            timer.start()
            while True:
                store.apply(directory, [Put("left", number), Put("right", number)])
                watch = store.watch(directory, store.read(directory).revision, "left")
                store.renew([session.id], [(directory, "mine")])
                watch.abandon()
                # Python drops what is raised where a weak reference's callback runs.
                if clock() > late and not timer.is_alive():
                    os.kill(os.getpid(), signal.SIGINT)
        except KeyboardInterrupt:
            caught += 1
        timer.join()
        snapshot = store.read(directory, clock() + PATIENCE)
        assert snapshot.records["left"].value == snapshot.records["right"].value
    renewal = store.renew([session.id], [(directory, "mine")], clock() + PATIENCE)
    assert (renewal.alive, renewal.present) == ({session.id}, {(directory, "mine")})
    store.end_session(session.id, clock() + PATIENCE)
    return caught


@pytest.mark.parametrize("rounds", [20, pytest.param(150, marks=pytest.mark.slow)])
def test_interrupts_leave_a_store_in_order(store, directory, actor, rounds):
    client = actor("new process")
    assert client.call(interrupt_changes, directory, rounds).result(4 * PATIENCE) == rounds
    assert "mine" not in store.read(directory).records
    assert put(directory, "left", "usable")
