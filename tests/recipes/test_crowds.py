"""64 wait for a semaphore of 4: all are served, in their order, and a hand-over costs the same."""

import os
import threading

import pytest

from distlock.backends.store import RecordStore
from distlock.recipes import RWLock, Semaphore
from distlock.records import shared_backend
from tests.contract.actors import PATIENCE
from tests.contract.watch import eventually
from tests.recipes.every_kind import pytest_generate_tests  # noqa: F401 - pytest calls it

VALUE = 4
FEW, MANY = 8, 64


class Counter:
    """Counts what other threads ask of a store through its public methods."""

    def __init__(self, monkeypatch, store):
        self.count = 0
        self._mutex = threading.Lock()
        names = ["read", "get", "apply", "renew", "open_session", "end_session"]
        if type(store).read_some is not RecordStore.read_some:
            names.append("read_some")
        for name in names:
            monkeypatch.setattr(type(store), name, self._counted(getattr(type(store), name)))

    def _counted(self, method):
        def call(*args, **kwargs):
            if threading.current_thread() is not threading.main_thread():
                with self._mutex:
                    self.count += 1
            return method(*args, **kwargs)

        return call


class Crowd:
    """Threads that wait for seats, and write down what came of it."""

    def __init__(self, using, name, number, new_lock, weight):
        self._new_lock, self._weight = new_lock, weight
        self._mutex = threading.Lock()
        self._inside = 0
        self.most = 0
        self.tokens = {}
        self._info = lambda: Semaphore(name, using=using).info()
        self.threads = [
            threading.Thread(target=self._wait, args=(kind,), name=f"waiter-{kind}", daemon=True)
            for kind in range(number)
        ]

    def stand_in_line(self, info):
        """Let all of them come; return their names, in the order in which they stand."""
        for thread in self.threads:
            thread.start()
        waiters = eventually(
            lambda: (found := info().waiters) and len(found) == len(self.threads) and found
        )
        return [waiting.thread for waiting in waiters]

    def served(self):
        """Wait for the end; return the names of those who were served, by their tokens."""
        for thread in self.threads:
            thread.join(2 * PATIENCE)
        return sorted(self.tokens, key=self.tokens.__getitem__)

    def _wait(self, number):
        lock = self._new_lock(number)
        with lock:
            weight = self._weight(number)
            with self._mutex:
                self._inside += weight
                self.most = max(self.most, self._inside)
                self.tokens[threading.current_thread().name] = lock.token
            with self._mutex:
                self._inside -= weight


def hand_over(using, name, number, counter):
    """Let so many wait, and then be served; return the requests for each hand-over."""
    held = Semaphore(name, VALUE, using=using, n=VALUE)
    crowd = Crowd(
        using, name, number, lambda _: Semaphore(name, VALUE, using=using), weight=lambda _: 1
    )
    held.acquire()
    in_line = crowd.stand_in_line(held.info)
    before = counter.count
    held.release()
    served = crowd.served()
    asked = counter.count - before
    assert served == in_line
    assert crowd.most <= VALUE
    info = held.info()
    assert (info.taken, info.waiters) == (0, ())
    return asked / number


@pytest.mark.usefixtures("only_hints", "nobody_is_passed_over")
@pytest.mark.every_day_on("local", "postgresql")
def test_all_are_served_and_a_hand_over_costs_the_same(backend, using, name, monkeypatch):
    counter = Counter(monkeypatch, backend.store)
    few = hand_over(using, f"{name}:few", FEW, counter)
    many = hand_over(using, f"{name}:many", MANY, counter)
    # The first ones of a few cost less. If all were woken each time, it would be 8 times as many.
    assert many < 2 * few + 2, (few, many)
    assert many < 12, (few, many)


def stand_in_line(using, name, number):
    """Wait in so many threads at once; return their tokens by their names."""
    tokens = {}

    def wait():
        with Semaphore(name, VALUE, using=using) as lock:
            tokens[f"{os.getpid()}:{threading.current_thread().name}"] = lock.token

    threads = [threading.Thread(target=wait, name=f"waiter-{one}") for one in range(number)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(shared_backend, "_PATIENCE", 2 * PATIENCE)  # nobody is passed over
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    return tokens


@pytest.mark.slow
@pytest.mark.shared
def test_those_of_several_processes_are_served_in_their_order(actor, using, name):
    with Semaphore(name, VALUE, using=using, n=VALUE) as held:
        waiting = [actor("process").call(stand_in_line, using, name, MANY // 4) for _ in range(4)]
        line = eventually(lambda: len(found := held.info().waiters) == MANY and found)
    tokens = {}
    for each in waiting:
        tokens |= each.result(4 * PATIENCE)
    assert sorted(tokens, key=tokens.__getitem__) == [f"{one.pid}:{one.thread}" for one in line]


@pytest.mark.usefixtures("nobody_is_passed_over")
@pytest.mark.slow
def test_readers_and_writers_are_served_in_their_order(using, name):
    """No writer with anyone: it counts as all seats, and one reader as one."""
    crowd = Crowd(
        using,
        name,
        MANY,
        lambda number: (
            RWLock(name, using=using).writer()
            if number % 4 == 0
            else RWLock(name, using=using).reader()
        ),
        weight=lambda number: 1000 if number % 4 == 0 else 1,
    )
    lock = RWLock(name, using=using)
    with lock.writer():
        in_line = crowd.stand_in_line(lock.info)
    assert crowd.served() == in_line
    assert crowd.most <= 1000
