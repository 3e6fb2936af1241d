"""First come, first served: among the threads and tasks of a process, and among processes."""

import pytest

from distlock.clock import clock
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
    """Two processes that never pause; where the backend is fair, neither gets two in a row."""
    people = [actor("process"), actor("process")]
    started = [person.call(take_turns, using, name, 1.0) for person in people]
    turns = sorted(
        (token, number)
        for number, future in enumerate(started)
        for token in future.result(PATIENCE)
    )
    tokens = [token for token, _ in turns]
    assert len(set(tokens)) == len(tokens)
    counts = [sum(who == number for _, who in turns) for number in (0, 1)]
    assert min(counts) > 0
    if backend.supports_fairness:
        assert min(counts) >= 0.8 * max(counts)


def take_turns(using, name, seconds):
    """Take and leave the lock until the time is over, together; return the tokens."""
    from distlock import Lock

    lock = Lock(name, using=using)
    with Lock(f"{name}:ready:{using}", using=using):
        pass  # connections are open
    tokens = []
    end = clock() + seconds
    while clock() < end:
        with lock:
            tokens.append(lock.token)
    return tokens
