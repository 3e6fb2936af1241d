"""Items that are put and taken through different nodes at once."""

from concurrent.futures import ThreadPoolExecutor

from distlock.recipes import Queue
from tests.galera.conftest import NODES

ITEMS = 100


def test_each_item_is_delivered_once_whichever_nodes_are_used(nodes, name):
    def produce(number):
        queue = Queue(name, using=NODES[number])
        for item in range(ITEMS):
            queue.put([number, item], timeout=60)
        return number

    def consume(number):
        queue, taken = Queue(name, using=NODES[number]), []
        for _ in range(ITEMS):
            with queue.get(timeout=60) as delivery:
                taken.append((delivery.token, delivery.body))
        return taken

    numbers = range(len(NODES))
    with ThreadPoolExecutor(2 * len(NODES)) as threads:
        puts, gets = threads.map(produce, numbers), threads.map(consume, numbers)
        assert list(puts) == list(numbers)
        taken = sorted(sum(gets, []))
    assert len({token for token, _ in taken}) == len(taken)
    assert sorted(body for _, body in taken) == [
        [number, item] for number in numbers for item in range(ITEMS)
    ]
