"""First come, first served: among the threads and tasks of a process, and among processes."""

from itertools import groupby

import pytest

from distlock import Lock
from distlock.concurrency.clock import clock
from tests.contract.actors import PATIENCE
from tests.contract.watch import eventually, in_line


def test_threads_and_tasks_are_served_in_the_order_they_came(actor, using, name):
    held = actor("thread").take(name)
    served = []
    queue = []
    for number, what in enumerate(["thread", "task", "task", "thread", "task", "thread"]):
        lock = actor(what).lock(name)
        future = lock.start("acquire")
        future.add_done_callback(lambda _, number=number: served.append(number))
        queue.append((lock, future))
        eventually(lambda: in_line(using, name) == len(queue) + 1)
    held.release()
    for lock, future in queue:
        assert future.result(PATIENCE)
        lock.release()
    assert served == list(range(6))


def test_a_newcomer_does_not_overtake_those_in_line(actor, using, name):
    """Whoever leaves and comes again is behind the one that waited."""
    one, two = actor("thread"), actor("thread")
    hers, his = one.take(name), two.lock(name)
    for _ in range(10):
        waiting = his.start("acquire")
        eventually(lambda: in_line(using, name) == 2)
        hers.release()
        assert hers.acquire(blocking=False) is False
        assert waiting.result(PATIENCE)
        hers, his = his, hers


@pytest.mark.shared
def test_processes_get_their_turns_as_the_backend_says(actor, backend, using, name):
    """Two processes that never pause; where the backend is fair, they take turns."""
    people = [actor("process"), actor("process")]
    # they are connected
    assert all(eventually(lambda person=person: person.tries(name)) for person in people)

    def compete(seconds):
        started = [person.call(take_turns, using, name, seconds) for person in people]
        tokens = [future.result(PATIENCE) for future in started]
        assert not set(tokens[0]) & set(tokens[1])
        return runs(tokens)

    def mostly_one(seconds):
        lengths = compete(seconds)
        return len(lengths) > 10 and lengths.count(1) > 0.75 * len(lengths)

    if backend.capabilities.fair:
        # Not all, because one that the system keeps from running does not stand in line; and not
        # every time, because it may do that for as long as they compete.
        assert any(mostly_one(seconds) for seconds in (0.5, 0.5, 1, 2, 4))
    else:
        compete(0.5)  # whoever waits gets in at last, when the other one has stopped


def runs(tokens):
    """Return how often in a row each of them had its turn, while both were there."""
    order = sorted((token, number) for number in (0, 1) for token in tokens[number])
    first = max(each[0] for each in tokens)
    last = min(each[-1] for each in tokens)
    turns = (number for token, number in order if first <= token <= last)
    return [len(list(run)) for _, run in groupby(turns)]


def take_turns(using, name, seconds):
    """Take and leave the lock until the time is over, but once at least; return the tokens."""
    lock = Lock(name, using=using)
    tokens = []
    end = clock() + seconds
    while not tokens or clock() < end:
        with lock:
            tokens.append(lock.token)
    return tokens
