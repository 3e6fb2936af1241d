"""32 producers and 32 consumers: what an item costs does not grow with those who wait."""

import threading

import pytest

from distlock.recipes import Queue
from tests.contract.actors import PATIENCE
from tests.recipes.every_kind import pytest_generate_tests  # noqa: F401 - pytest calls it
from tests.recipes.test_crowds import Counter

FEW, MANY = 4, 32
ITEMS = 3


class Counted(Counter):
    """Counts the reads of queues and configuration, too."""

    def __init__(self, monkeypatch, store):
        super().__init__(monkeypatch, store)
        for name in ("peek", "look"):
            monkeypatch.setattr(type(store), name, self._counted(getattr(type(store), name)))


def work(using, name, number, maxsize):
    """Let so many produce and so many consume; return what came out, in the order of its tokens."""
    taken = []

    def produce(who):
        queue = Queue(name, maxsize, using=using)
        for item in range(ITEMS):
            queue.put([who, item], timeout=4 * PATIENCE)

    def consume(_):
        queue = Queue(name, using=using)
        for _ in range(ITEMS):
            with queue.get(timeout=4 * PATIENCE) as delivery:
                taken.append((delivery.token, delivery.id, delivery.body))

    threads = [
        threading.Thread(target=call, args=(who,), daemon=True)
        for who in range(number)
        for call in (produce, consume)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(4 * PATIENCE)
    return [(number, body) for _, number, body in sorted(taken)]


@pytest.mark.slow
@pytest.mark.usefixtures("only_hints", "nobody_is_passed_over")
@pytest.mark.parametrize("maxsize", [0, 3])
def test_an_item_costs_the_same_however_many_there_are(backend, using, name, monkeypatch, maxsize):
    counter, costs = Counted(monkeypatch, backend.store), []
    for number in (FEW, MANY):
        before = counter.count
        found = work(using, f"{name}:{number}", number, maxsize)
        assert len(found) == number * ITEMS
        assert [item for item, _ in found] == sorted(item for item, _ in found)
        for who in range(number):
            assert [item for _, (of, item) in found if of == who] == [*range(ITEMS)]
        costs.append((counter.count - before) / len(found))
        assert Queue(f"{name}:{number}", using=using).empty()
    # The few often do not meet at all: an item then costs the least that it can.
    assert max(costs) < 30, costs
