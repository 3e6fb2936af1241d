"""What the lock is for: three clients, a shared counter, many workers of one process."""

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import pytest

from distlock import Lock
from tests.contract.actors import PATIENCE
from tests.contract.watch import eventually, steadily, waits

WORKERS, TIMES = 5, 20


class Counter:
    """A number in a file: reading and writing it are two steps, between which anything happens."""

    def __init__(self, path):
        self.path = str(path)

    def set(self, value):
        with open(self.path, "w") as file:
            file.write(str(value))

    def get(self):
        with open(self.path) as file:
            return int(file.read() or 0)

    def add_one(self, between=lambda: None):
        value = self.get()
        between()
        self.set(value + 1)


@pytest.fixture
def counter(tmp_path):
    counter = Counter(tmp_path / "counter")
    counter.set(0)
    return counter


@pytest.mark.every_day_on("local", "postgresql")
def test_threads_that_add_under_the_lock_count_exactly(using, name, counter):
    """Five workers add one, twenty times each: exactly a hundred."""

    def work(worker):
        for _ in range(TIMES):
            with Lock(name, using=using):
                counter.add_one()

    with ThreadPoolExecutor(WORKERS) as pool:
        list(pool.map(work, range(WORKERS)))
    assert counter.get() == WORKERS * TIMES


@pytest.mark.every_day_on("local", "mariadb")
def test_tasks_that_add_under_the_lock_count_exactly(using, name, counter):
    async def work():
        for _ in range(TIMES):
            async with Lock(name, using=using):
                value = counter.get()
                await asyncio.sleep(0)
                counter.set(value + 1)

    async def all_of():
        await asyncio.gather(*[work() for _ in range(WORKERS)])

    asyncio.run(all_of())
    assert counter.get() == WORKERS * TIMES


def test_threads_and_tasks_that_add_under_the_lock_count_exactly(using, name, counter):
    async def work():
        for _ in range(TIMES):
            async with Lock(name, using=using):
                counter.add_one()

    def many():
        for _ in range(TIMES):
            with Lock(name, using=using):
                counter.add_one()

    with ThreadPoolExecutor(4) as pool:
        done = [pool.submit(many), pool.submit(many)]
        done += [pool.submit(lambda: asyncio.run(work())) for _ in range(2)]
        for future in done:
            future.result(2 * PATIENCE)
    assert counter.get() == 4 * TIMES


@pytest.mark.slow
@pytest.mark.shared
def test_processes_that_add_under_the_lock_count_exactly(actor, using, name, counter):
    people = [actor("process") for _ in range(WORKERS)]
    working = [person.call(add_under_lock, using, name, counter.path, TIMES) for person in people]
    for future in working:
        future.result(2 * PATIENCE)
    assert counter.get() == WORKERS * TIMES


def add_under_lock(using, name, path, times):
    counter = Counter(path)
    for _ in range(times):
        with Lock(name, using=using):
            counter.add_one()


def test_without_the_lock_the_count_is_wrong(counter):
    """The control: two that read before either writes lose an addition."""
    both = threading.Barrier(2)

    def work():
        for _ in range(TIMES):
            counter.add_one(lambda: both.wait(PATIENCE))
            both.wait(PATIENCE)

    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
    assert counter.get() == TIMES


@pytest.mark.shared
@pytest.mark.every_day_on("postgresql", "zookeeper", "etcd")
def test_three_clients_of_which_the_first_goes_away(actor, name):
    """A holds; A's process is killed; B gets it, then C: one after the other, by their tokens."""

    def attempt(lease):
        a, b, c = (actor("process") for _ in range(3))
        first = a.take(f"{name}:{lease}", lease=lease)
        token = first.token
        second, third = b.lock(f"{name}:{lease}"), c.lock(f"{name}:{lease}")
        waiting = {second: second.start("acquire"), third: third.start("acquire")}
        with suppress(TimeoutError):
            next(iter(waiting.values())).result(0.05)
        got = any(each.done() for each in waiting.values())
        first.check()
        assert not got
        a.end()
        next_one = eventually(lambda: next((k for k, f in waiting.items() if f.done()), None))
        assert waiting.pop(next_one).result() is True
        assert next_one.token > token
        (last_one, last) = waiting.popitem()
        assert waits(last)
        middle = next_one.token
        next_one.release()
        assert last.result(PATIENCE) is True
        assert last_one.token > middle

    steadily(attempt, 2, 6)


def test_threads_of_one_process_contend_once_for_all_of_them(using, backend, name, monkeypatch):
    """While one waits at the backend the others stand in line in the process and ask nothing."""
    asking, most = [], []
    enqueue = backend.enqueue

    def counted(claim, deadline):
        if claim.name != name:
            return (yield from enqueue(claim, deadline))
        asking.append(claim)
        most.append(len(asking))
        try:
            return (yield from enqueue(claim, deadline))
        finally:
            asking.pop()

    monkeypatch.setattr(backend, "enqueue", counted)

    def work(number):
        with Lock(name, using=using):
            pass

    with ThreadPoolExecutor(16) as pool:
        list(pool.map(work, range(48)))
    assert len(most) == 48
    assert max(most) == 1
