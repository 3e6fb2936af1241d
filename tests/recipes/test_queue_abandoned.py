"""Items whose consumers have gone: what they cost, and that every method goes by one rule."""

import asyncio
import queue as standard
import threading
from contextlib import contextmanager

import pytest

from distlock import locks
from distlock.backends.database.statements import Statement
from distlock.backends.store import Delete, Peek
from distlock.concurrency.steps import Nested
from distlock.recipes import Mailbox, Queue, queue_items
from tests.children import write_line
from tests.contract.actors import PATIENCE
from tests.contract.watch import eventually
from tests.recipes.every_kind import pytest_generate_tests  # noqa: F401 - pytest calls it
from tests.recipes.test_queue import bodies
from tests.recipes.test_queue_faults import answer

#: of an item that is taken: questions, and records that are read
REQUESTS, RECORDS = 6, 70


def fill(queue, number):
    for start in range(0, number, 12):
        queue.put_many([*range(start, min(start + 12, number))])


def take(queue, number):
    taken = []
    while len(taken) < number:
        taken += queue.get_many(min(12, number - len(taken)), blocking=False)
    return taken


def abandon(queue, taken):
    """Let these deliveries be gone, as at the end of their consumer's session."""
    store, directory = locks[queue.using].store, queue._directory
    wanted = {one.id for one in taken}
    seen = store.peek(directory, Peek({"h/": 100_000})).records.values()
    keys = [one.key for one in seen if int(one.value["data"]["item"]) in wanted]
    for start in range(0, len(keys), 100):
        store.apply(directory, [Delete(key) for key in keys[start : start + 100]])


class Cost:
    """Counts what this thread asks of a store, and the records that it reads."""

    def __init__(self, monkeypatch, store):
        self._store, self._me = store, threading.current_thread()
        self.requests = self.records = 0
        for name in ("read", "peek", "look", "get", "missing", "apply"):
            monkeypatch.setattr(type(store), name, self._counted(getattr(type(store), name)))
        self._inside = False

    def _counted(self, method):
        def call(*args, **kwargs):
            if self._inside or threading.current_thread() is not self._me:
                return method(*args, **kwargs)
            self._inside = True
            try:
                found = method(*args, **kwargs)
            finally:
                self._inside = False
            self.requests += 1
            self.records += len(getattr(found, "records", ()))
            return found

        return call

    @contextmanager
    def counted(self):
        """What is asked in this block."""
        self.requests = self.records = 0
        yield self


@pytest.fixture
def cost(backend, monkeypatch):
    return Cost(monkeypatch, backend.store)


@pytest.mark.parametrize(
    ("few", "many"), [(100, 300), pytest.param(100, 1500, marks=pytest.mark.slow)]
)
def test_taking_costs_the_same_however_many_were_abandoned(using, name, cost, few, many):
    costs = []
    for number in (few, many):
        queue = Queue(f"{name}:{number}", using=using)
        fill(queue, 50 + number)
        living = take(queue, 50)
        abandon(queue, take(queue, number))
        consumer, spent = Queue(queue.name, using=using), []
        for place in range(3):
            with cost.counted():
                delivery = consumer.get(timeout=PATIENCE)
            assert delivery.body == 50 + place
            spent.append((cost.requests, cost.records))
            delivery.ack()
        costs.append(spent)
        assert all(one.held for one in living)
        assert queue.info().ready == number - 3
    assert costs[0] == costs[1]
    assert max(costs[1]) <= (REQUESTS, RECORDS)


@pytest.mark.parametrize(
    ("few", "many"), [(30, 150), pytest.param(100, 600, marks=pytest.mark.slow)]
)
def test_taking_costs_the_same_however_many_are_delayed(using, name, cost, monkeypatch, few, many):
    monkeypatch.setattr(queue_items, "LOOKS_EVERY", 3600)
    costs = []
    for number in (few, many):
        queue = Queue(f"{name}:{number}", using=using)
        fill(queue, number)
        for one in take(queue, number):
            one.nack(delay=3600)
        assert queue.info().delayed == number
        queue.put_many(["ready"] * 3)
        consumer, spent = Queue(queue.name, using=using), []
        for _ in range(3):
            with cost.counted():
                assert consumer.get(timeout=PATIENCE).body == "ready"
            spent.append((cost.requests, cost.records))
        assert max(spent) <= (REQUESTS, 2 * RECORDS)
        costs.append(spent[1:])  # the first one looks for what was abandoned
    assert costs[0] == costs[1]


def test_what_was_abandoned_is_found_behind_many_that_go_on(using, name):
    """Also by one who does not wait, and by one whose last look ended in the middle."""
    queue = Queue(name, using=using)
    fill(queue, 250)
    taken = take(queue, 250)
    with pytest.raises(standard.Empty):
        queue.get(blocking=False)
    abandon(queue, [taken[240]])
    assert queue.get(blocking=False).body == 240
    abandon(queue, [taken[3]])
    assert queue.get(blocking=False).body == 3
    with pytest.raises(standard.Empty):
        queue.get(blocking=False)


def test_what_was_abandoned_keeps_its_order_wherever_the_last_look_ended(using, name):
    queue = Queue(name, using=using)
    fill(queue, 130)
    taken = take(queue, 130)
    abandon(queue, [taken[120]])
    assert bodies(queue, 1) == [120]
    abandon(queue, taken)
    assert bodies(queue, 12) == [*range(12)]


def test_what_was_abandoned_comes_before_what_was_put_later(using, name):
    queue = Queue(name, using=using)
    fill(queue, 30)
    abandon(queue, take(queue, 25))
    assert bodies(Queue(name, using=using), 30) == [*range(30)]


def test_what_was_abandoned_is_found_while_others_are_ready_all_the_time(using, name):
    """Twelve that go on, and were put before it, do not hide it."""
    queue = Queue(name, using=using)
    fill(queue, 150)
    taken = take(queue, 150)
    consumer = Queue(name, using=using)

    def next_one():
        queue.put("ready")
        with consumer.get(timeout=PATIENCE) as delivery:
            return delivery.body

    assert next_one() == "ready"
    abandon(queue, [taken[140]])
    eventually(lambda: next_one() == 140)


def test_many_at_once_take_ready_and_abandoned_ones_in_their_order(using, name):
    queue = Queue(name, using=using)
    fill(queue, 6)
    taken = take(queue, 4)
    abandon(queue, taken[1::2])
    found = Queue(name, using=using).get_many(12)
    assert [one.body for one in found] == [1, 3, 4, 5]


def test_a_mailbox_keeps_its_order(using, name):
    mailbox = Mailbox(name, using=using)
    mailbox.put_many(["one", "two", "three"])
    first = mailbox.get()
    with pytest.raises(standard.Empty):
        Mailbox(name, using=using).get(blocking=False)
    abandon(mailbox, [first])
    again = mailbox.get(blocking=False)
    assert (again.body, again.attempt) == ("one", 2)
    again.nack(delay=3600)
    with pytest.raises(standard.Empty):  # it is to come first, later
        mailbox.get(blocking=False)


def test_a_mailbox_goes_on_after_the_last_attempt_of_a_letter(using, name):
    mailbox = Mailbox(name, using=using, max_deliveries=1)
    mailbox.put_many(["poison", "good"])
    abandon(mailbox, [mailbox.get()])
    assert bodies(mailbox, 1) == ["good"]
    assert [one.body for one in mailbox.dead()] == ["poison"]


class TestOneRule:
    """What info() says is what every method does."""

    def test_what_is_ready_is_purged(self, using, name):
        queue = Queue(name, using=using)
        fill(queue, 5)
        taken = take(queue, 4)
        taken[3].nack(delay=3600)
        abandon(queue, taken[:2])
        info = queue.info()
        assert (info.size, info.ready, info.delivered, info.delayed, info.dead) == (5, 3, 1, 1, 0)
        assert info.oldest is not None
        assert queue.purge() == 3
        info = queue.info()
        assert (info.size, info.ready, info.delivered, info.delayed, info.dead) == (2, 0, 1, 1, 0)
        with pytest.raises(standard.Empty):
            queue.get(blocking=False)
        taken[2].ack()
        assert queue.qsize() == 1

    def test_the_oldest_ready_one_is_told_wherever_it_is(self, using, name):
        queue = Queue(name, using=using)
        queue.put("one")
        oldest = queue.info().oldest
        abandon(queue, [queue.get()])
        queue.put("two")
        assert queue.info().oldest == oldest

    def test_after_its_last_attempt_it_is_dead(self, using, name):
        """Whatever ``max_deliveries`` the one who looks has been given."""
        consumer = Queue(name, 2, using=using, max_deliveries=1)
        consumer.put_many(["poison", "more poison"])
        queue = Queue(name, 2, using=using)
        abandon(queue, [consumer.get(), consumer.get()])
        info = queue.info()
        assert (info.size, info.ready, info.delivered, info.dead) == (0, 0, 0, 2)
        assert queue.empty()
        assert not queue.full()
        assert queue.join(timeout=0)
        with pytest.raises(standard.Empty):
            queue.get(blocking=False)
        assert queue.purge() == 0
        letter, other = queue.dead()
        assert (letter.body, letter.attempts, other.body) == ("poison", 1, "more poison")
        assert queue.dead(1) == (letter,)
        assert queue.retry(letter)
        assert not queue.retry(letter)
        assert queue.info().dead == 1
        queue.put("there is room", blocking=False)
        with pytest.raises(standard.Full):
            queue.put("one too many", blocking=False)
        assert bodies(queue, 2) == ["poison", "there is room"]
        assert queue.purge(dead=True) == 1
        assert queue.dead() == ()

    def test_a_delivery_at_its_last_attempt_is_no_dead_letter(self, using, name):
        """The control: while its consumer has it, it is being delivered."""
        queue = Queue(name, using=using, max_deliveries=1)
        queue.put("one")
        taken = queue.get()
        info = queue.info()
        assert (info.size, info.ready, info.delivered, info.dead) == (1, 0, 1, 0)
        assert queue.dead() == ()
        assert queue.purge(dead=True) == queue.purge() == 0
        assert not queue.join(timeout=0)
        taken.ack()
        assert queue.empty()

    def test_who_waits_for_room_is_let_in_when_an_item_dies(self, using, name):
        queue = Queue(name, 1, using=using, max_deliveries=1)
        queue.put("poison")
        taken = queue.get()
        abandon(queue, [taken])
        queue.put("next", timeout=PATIENCE)
        assert bodies(queue, 1) == ["next"]


def test_a_purge_removes_thousands_in_few_requests(using, name, cost):
    queue = Queue(name, using=using)
    fill(queue, 1200)
    abandon(queue, take(queue, 150))
    with cost.counted():
        assert queue.purge() == 1200
    assert cost.requests <= 40
    assert cost.records == 0
    assert queue.empty()


def test_a_purge_counts_only_what_it_has_removed(using, name, monkeypatch):
    """Consumers take some of the items while it runs."""
    queue, store, others = Queue(name, using=using), type(locks[using].store), []
    fill(queue, 30)
    apply = store.apply

    def be_faster(known, directory, changes, *rest):
        if len(changes) == 30 and not others:
            Nested(lambda: others.extend(take(Queue(name, using=using), 3)), asyncio.Event).run()
        return apply(known, directory, changes, *rest)

    monkeypatch.setattr(store, "apply", be_faster)
    assert queue.purge() == 27
    assert queue.info().delivered == 3
    queue.ack_many(others)


def hold_many(name, number):
    """As a child: take and begin so many items."""
    taken = take(Queue(name), number)
    taken[0].begin()
    write_line(len(taken))
    threading.Event().wait()


@pytest.mark.shared
@pytest.mark.brief
@pytest.mark.faults
def test_after_a_fleet_was_killed_its_items_come_one_after_the_other(
    child, using, long_leases, name
):
    queue = Queue(name, using=using)
    fill(queue, 120)
    fleet = [child(hold_many, name, 40) for _ in range(3)]
    assert [one.line() for one in fleet] == ["40"] * 3
    for one in fleet:
        one.kill()
    long_leases()
    eventually(lambda: answer(queue.info).ready == 120)
    found = []
    for _ in range(120):
        with queue.get(timeout=PATIENCE) as delivery:
            found.append((delivery.body, delivery.attempt))
    assert [body for body, _ in found] == [*range(120)]
    assert [attempt for _, attempt in found].count(2) == 3
    assert queue.empty()


@pytest.mark.not_on("local", "zookeeper", "etcd")  # these clear sessions by themselves
def test_sessions_that_have_ended_are_cleared_in_bounded_steps(using, name, backend):
    queue = Queue(name, using=using)
    fill(queue, 360)
    for one in take(queue, 360):
        one.nack(delay=3600)
    seen = backend.store.peek(queue._directory, Peek({"h/": 1000})).records.values()
    these = ", ".join(f"'{one.session}'" for one in seen)
    backend.pool.run(
        Statement(f"UPDATE database_lock_session SET expires_at = 1 WHERE id IN ({these})")
    )
    assert queue.get().body == 0
    assert backend.store.sweep().expired >= 150
