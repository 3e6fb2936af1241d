"""Consumers and producers that are killed or stopped, replies that are lost: no item is lost."""

import gc
import queue as standard
import random
import signal
import time
from functools import partial

import pytest

from distlock import LockError, LockLost, LockUnavailable, locks
from distlock.concurrency.clock import clock
from distlock.recipes import Queue, Semaphore, queue_items
from tests.children import read_line, write_line
from tests.contract.actors import PATIENCE
from tests.contract.watch import cleaned_up, eventually, passed
from tests.core.interrupting import interrupted
from tests.recipes.every_kind import pytest_generate_tests  # noqa: F401 - pytest calls it
from tests.recipes.test_seats_faults import stop
from tests.recipes.wrapping import in_thread

#: what a request says that writes the letter, where the letter itself cannot be read in it
WRITES = {"etcd": b"request_put"}


def hold(name):
    """As a child: take an item; once told to go on, acknowledge it and say what came of that."""
    taken = Queue(name).get()
    write_line(taken.body)
    read_line()
    write_line("held" if taken.held else "not held")
    try:
        taken.ack()
        write_line("acknowledged")
    except LockLost:
        write_line("lost")


def wait(name):
    """As a child: wait for an item in line."""
    write_line("waiting")
    Queue(name).get()


@pytest.mark.shared
@pytest.mark.brief
@pytest.mark.faults
class TestProcesses:
    def test_what_a_killed_consumer_had_is_delivered_again(self, child, using, long_leases, name):
        queue = Queue(name, using=using)
        queue.put_many(["one", "two"])
        consumer = child(hold, name)
        assert consumer.line() == "one"
        consumer.kill()
        long_leases()
        taken = [queue.get(timeout=PATIENCE)]
        if taken[0].body == "two":  # before the lease had ended
            taken.append(queue.get(timeout=PATIENCE))
        assert sorted((one.body, one.attempt) for one in taken) == [("one", 2), ("two", 1)]
        queue.ack_many(taken)

    def test_who_was_stopped_past_its_lease_cannot_acknowledge(
        self, child, kind, using, long_leases, name
    ):
        queue = Queue(name, using=using)
        queue.put("one")
        consumer = child(hold, name)
        consumer.line()
        stop(consumer, kind)
        long_leases()
        taken = queue.get(timeout=PATIENCE)
        assert (taken.body, taken.attempt) == ("one", 2)
        consumer.tell("go on")
        consumer.signal(signal.SIGCONT)
        assert consumer.finish() == ["not held", "lost"]
        assert queue.qsize() == 1
        taken.ack()
        assert queue.empty()


@pytest.mark.shared
@pytest.mark.brief
@pytest.mark.slow
def test_one_who_was_stopped_at_the_head_of_the_line_keeps_nobody_waiting(child, kind, using, name):
    queue = Queue(name, using=using)
    stopped = child(wait, name)
    stopped.line()
    eventually(lambda: Semaphore(f"queue:get:{name}", using=using).info().taken)
    stop(stopped, kind)
    queue.put("one")
    assert queue.get(timeout=PATIENCE).body == "one"
    stopped.signal(signal.SIGCONT)
    stopped.kill()


@pytest.mark.slow
def test_what_was_put_back_for_later_comes_no_earlier(using, name):
    queue, delay = Queue(name, using=using), 2.5
    queue.put("one")
    before = clock()
    queue.get().nack(delay)
    taken = queue.get(timeout=PATIENCE)
    assert (taken.body, taken.attempt) == ("one", 2)
    assert clock() - before >= delay
    taken.ack()


def consume(name, who):
    """As a child: take items and acknowledge most of them, again and again."""
    dice, queue = random.Random(who), Queue(name, max_deliveries=1000)
    while True:
        try:
            taken = queue.get_many(dice.choice([1, 3]), timeout=5)
            for one in taken:
                time.sleep(dice.random() * 0.01)
                if dice.random() < 0.2:
                    one.nack()
                else:
                    one.ack()
                    write_line(one.body)
        except (standard.Empty, LockLost, LockUnavailable):
            pass


def produce(name, who, most):
    """As a child: put numbers one after the other, and say which have been accepted."""
    queue, number = Queue(name, most), who * 1_000_000
    while True:
        number += 1
        try:
            queue.put(number, timeout=5)
            write_line(number)
        except (standard.Full, LockUnavailable):
            pass


@pytest.mark.shared
@pytest.mark.brief
@pytest.mark.slow
def test_a_storm_of_kills_and_stops(child, kind, using, long_leases, name):
    """What was accepted is delivered, nothing is acknowledged twice, there are never too many."""
    dice, most = random.Random(name), 20
    queue = Queue(name, most, using=using, max_deliveries=1000)
    accepted, acknowledged, numbers = [], [], iter(range(1, 1000))
    producers = [child(produce, name, next(numbers), most) for _ in range(2)]
    consumers = [child(consume, name, next(numbers)) for _ in range(3)]
    for round_number in range(8):
        time.sleep(0.5)
        everybody, said = [(producers, accepted), (consumers, acknowledged)][round_number % 2]
        victim = dice.randrange(len(everybody))
        stop(everybody[victim], kind)
        for _ in range(5):
            assert answer(queue.qsize) <= most
        if round_number % 4 < 2:
            everybody[victim].kill()
            said += map(int, everybody[victim].rest())
            work = (produce, name, next(numbers), most)
            everybody[victim] = child(*(work if everybody is producers else (consume, *work[1:3])))
        else:
            time.sleep(1.5)
            everybody[victim].signal(signal.SIGCONT)
    for everybody, said in [(producers, accepted), (consumers, acknowledged)]:
        for process in everybody:
            process.kill()
            said += map(int, process.rest())
    left = []
    long_leases()
    while answer(queue.qsize):
        with queue.get(timeout=PATIENCE) as delivery:
            left.append(delivery.body)
    assert len({*acknowledged}) == len(acknowledged)
    assert not {*acknowledged} & {*left}
    # What was killed may not have said that its last item was acknowledged.
    missing = {*accepted} - {*acknowledged} - {*left}
    assert len(missing) <= 9
    assert len(accepted) > 50


def answer(call):
    end = clock() + PATIENCE
    while True:
        try:
            return call()
        except LockError:
            if clock() > end:
                raise


@pytest.mark.slow
@pytest.mark.not_on("local", "sqlite")  # there is no reply to be lost
def test_a_put_whose_reply_is_lost_is_told_and_not_made_twice(proxy, kind, name):
    queue = Queue(name)
    queue.put("before")
    lost = proxy.lose_reply(to=WRITES.get(kind, b"the letter"))
    try:
        queue.put("the letter")
        told = False
    except LockUnavailable as error:
        assert error.maybe_applied
        told = True
    assert lost.wait(PATIENCE)
    proxy.heal()
    found = [one.body for one in answer(lambda: queue.get_many(5))]
    assert found == ["before", "the letter"] or (told and found == ["before"])


@pytest.mark.slow
@pytest.mark.not_on("local", "sqlite")
@pytest.mark.parametrize("before", [0, 2])
def test_a_get_whose_reply_is_lost_takes_nothing_away(proxy, kind, name, monkeypatch, before):
    """Also the one of many that does not read before it takes."""
    monkeypatch.setattr(queue_items, "LOOKS_EVERY", 3600)
    queue = Queue(name)
    for number in range(before):
        queue.put(number)
        queue.get().ack()
    queue.put("the letter")
    written = b"i/t/again/" if before and queue._store.moves_first else b"the letter"
    lost = proxy.lose_reply(to=WRITES.get(kind, written))
    try:
        queue.get().ack()
        told = False
    except LockUnavailable:
        told = True
    assert lost.wait(PATIENCE)
    proxy.heal()
    if told:
        taken = answer(lambda: queue.get(timeout=PATIENCE))
        assert taken.body == "the letter"
        taken.ack()
    eventually(cleaned_up)
    assert answer(queue.qsize) == 0


@pytest.mark.slow
@pytest.mark.not_on("local", "sqlite", "zookeeper")
@pytest.mark.parametrize("side", ["get", "put"])
def test_who_has_waited_for_longer_than_a_lease_outlasts_a_short_outage(
    side, kind, backend_settings, proxied, settings, name
):
    lease = 4
    settings.DISTLOCK = backend_settings(kind, LEASE=lease)
    if side == "put":
        Queue(name, 1).put("first")
    (entry,) = settings.DISTLOCK.values()
    settings.DISTLOCK = {"default": {**entry, "OPTIONS": {**entry["OPTIONS"], "timeout": 1}}}
    proxy = proxied(kind)
    queue = Queue(name, 1 if side == "put" else 0)
    result = in_thread(queue.get if side == "get" else partial(queue.put, "second"))
    for _ in range(2):
        passed(lease + 0.5)
        proxy.refuse()
        passed(lease / 3 + 0.5)  # it looks every third of a lease
        proxy.heal()
    answer(lambda: queue.put("first") if side == "get" else queue.get().ack())
    if side == "get":
        result().ack()
    else:
        assert result() == 2
    locks.close_all()


def test_who_gets_fewer_than_it_saw_remembers_nothing_of_the_others(local, wrapped, name):
    """Others took them in between. It would grow with every such get_many()."""
    apply, queue, taken = wrapped("apply"), Queue(name), []
    queue.put_many(["one", "two"])

    def be_faster(*_):
        apply.before = lambda *_: None
        taken.append(Queue(name).get(blocking=False))

    apply.before = be_faster
    taken += queue.get_many(2, blocking=False)
    assert [delivery.body for delivery in taken] == ["one", "two"]
    for delivery in taken:
        delivery.ack()
    assert not local.shared._requests.sessions


@pytest.mark.slow
def test_who_is_interrupted_while_it_acknowledges_many_keeps_none_of_them(brief, name):
    """Nobody has the deliveries any more, and other leases of the process go on."""
    queues, other = [], Queue(f"{name}:other", lease=2 * PATIENCE)
    other.put("goes on")
    kept = other.get()
    directory = other._directory
    shared = Queue(f"{name}:shared")
    shared.put("keeps the session of the others alive")
    alive = shared.get()

    def remaining():
        seen = brief.store.read(directory)
        return next(one.remaining for one in seen.records.values() if one.session)

    moment, stood_still = 1, 0
    while True:
        queue = Queue(f"{name}:{moment}:{stood_still}")
        queue.put_many(["one", "two"])
        queues.append(queue)
        taken = queue.get_many(2)
        try:
            ended = interrupted(lambda: queue.ack_many(taken), moment) is None  # noqa: B023
        except LockLost:  # the machine has stood still for as long as a lease
            stood_still += 1
            assert stood_still < 5
            continue
        taken.clear()
        if ended:
            break
        moment += 2
    assert moment > 50
    gc.collect()
    for queue in queues:
        eventually(lambda: not queue.info().deliveries)  # noqa: B023
    before = remaining()
    eventually(lambda: remaining() > before)
    kept.ack()
    del alive
