"""Threads for blocking calls."""

import threading

from distlock.threads import Workers

PATIENCE = 20.0
ROUNDS = 200


def test_no_call_waits_for_another_while_there_are_threads_left():
    for _ in range(ROUNDS):
        workers, over = Workers(2), threading.Event()
        workers.submit(lambda: "one thread is there").result(PATIENCE)
        long = workers.submit(lambda over=over: over.wait(PATIENCE))
        assert workers.submit(lambda: "short").result(PATIENCE / 4) == "short"
        over.set()
        assert long.result(PATIENCE)


def test_calls_one_after_the_other_need_one_thread():
    workers, used = Workers(8), set()
    for _ in range(100):
        used.add(workers.submit(threading.get_ident).result(PATIENCE))
    assert len(used) == 1


def test_there_are_no_more_threads_than_allowed():
    workers, over = Workers(3), threading.Event()
    before = threading.active_count()
    calls = [workers.submit(lambda: over.wait(PATIENCE)) for _ in range(20)]
    assert threading.active_count() <= before + 3
    over.set()
    assert all(call.result(PATIENCE) for call in calls)


def test_a_call_that_is_cancelled_in_line_is_never_made():
    workers, over, made = Workers(1), threading.Event(), []
    first = workers.submit(lambda: over.wait(PATIENCE))
    second = workers.submit(lambda: made.append(True))
    assert second.cancel()
    over.set()
    assert first.result(PATIENCE)
    assert workers.submit(lambda: "third").result(PATIENCE) == "third"
    assert not made
