"""Queues and mailboxes on every kind of backend: what is put is delivered, to one at a time."""

import asyncio
import queue as standard
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import pytest
from django.core.exceptions import SynchronousOnlyOperation

from distlock import LockError, LockLost, LockNotHeld, NotSupported, locks
from distlock.concurrency.clock import clock
from distlock.recipes import Config, Mailbox, Queue
from tests.contract.actors import PATIENCE
from tests.contract.watch import cleaned_up, eventually, passed, steadily
from tests.recipes.every_kind import (  # noqa: F401 - pytest calls it
    FAULTS_EVERY_DAY,
    ONE_LEASE,
    pytest_generate_tests,
)


def done(delivery):
    with delivery:
        return delivery.body


def bodies(queue, number):
    """Take and acknowledge so many items; return what they say."""
    return [done(queue.get(timeout=PATIENCE)) for _ in range(number)]


def wait_in_line(queue, call, side):
    """Start a call in a thread, and return it once it waits for its turn."""
    thread = threading.Thread(target=call, daemon=True)
    thread.start()
    seat = "semaphore", f"queue:{side}:{queue.name}"
    eventually(lambda: locks[queue.using].shared.inspect(":".join(seat)).taken)
    return thread


def fail(queue):
    """Take an item and fail to work on it."""
    with pytest.raises(ZeroDivisionError), queue.get(timeout=PATIENCE):
        raise ZeroDivisionError("poison")


def test_first_in_first_out(letters):
    said = ["first", {"second": [2]}, None, "last"]
    numbers = [letters.put(body) for body in said]
    assert numbers == sorted(set(numbers))
    assert letters.qsize() == 4
    assert bodies(letters, 4) == said
    assert letters.empty()


def test_the_longest_name_can_be_waited_for(using):
    for length in range(550, 600):
        try:
            longest = Queue("n" * length, using=using)
        except ValueError:
            break
    with pytest.raises(standard.Empty):
        longest.get(timeout=0.01)


def test_an_empty_queue_is_told(letters):
    with pytest.raises(standard.Empty):
        letters.get(blocking=False)
    with pytest.raises(standard.Empty):
        letters.get(timeout=0.01)


def test_ten_letters_and_a_full_mailbox(using, name):
    """Ten letters, full and empty told; then twenty, without anybody stopping."""
    mailbox = Mailbox(name, using=using)
    assert mailbox.empty()
    for number in range(10):
        mailbox.put(f"letter {number}")
    assert mailbox.full()
    with pytest.raises(standard.Full):
        mailbox.put("one too many", blocking=False)
    late = wait_in_line(mailbox, lambda: mailbox.put("letter 10"), "put")
    Mailbox(name, using=using).resize(20)
    late.join(PATIENCE)
    assert not late.is_alive()
    for number in range(11, 20):
        mailbox.put(f"letter {number}", blocking=False)
    assert mailbox.full()
    assert bodies(mailbox, 20) == [f"letter {number}" for number in range(20)]
    assert mailbox.empty()
    assert Config(f"queue:{name}", using=using).get().value == 20


def test_a_bound_that_was_set_in_the_configuration_holds_for_producers(using, name):
    queue = Queue(name, 1, using=using)
    queue.put("one")
    Config(f"queue:{name}", using=using).set(2)
    queue.put("two", timeout=PATIENCE)
    with pytest.raises(standard.Full):
        queue.put("three", blocking=False)
    assert queue.info().maxsize == 2


def test_a_lower_bound_holds_at_once_for_those_who_have_put_before(using, name):
    queue = Queue(name, 10, using=using)
    queue.put_many(["one", "two"])
    Queue(name, using=using).resize(2)
    with pytest.raises(standard.Full):
        queue.put("three", blocking=False)
    assert bodies(queue, 2) == ["one", "two"]
    queue.put("three", blocking=False)


def test_what_was_taken_is_not_delivered_again_before_it_is_put_back(letters):
    letters.put("one")
    letters.put("two")
    first, second = letters.get(), letters.get()
    with pytest.raises(standard.Empty):
        letters.get(blocking=False)
    assert (first.body, first.attempt, second.body) == ("one", 1, "two")
    token = second.token
    assert first.token < token
    second.ack()
    first.nack()
    again = letters.get(blocking=False)
    assert (again.body, again.attempt) == ("one", 2)
    assert again.token > token
    again.ack()
    for settle in (again.ack, again.nack, again.check, first.ack):
        with pytest.raises(LockNotHeld):
            settle()
    assert letters.empty()


def test_a_late_ack_is_refused(letters):
    letters.put("one")
    taken = letters.get()
    token = taken.token
    assert letters.force_release(taken.id, token)
    assert not letters.force_release(taken.id, token)
    again = letters.get(blocking=False)
    assert (again.body, again.attempt) == ("one", 2)
    with pytest.raises(LockLost):
        taken.ack()
    assert [one.token for one in letters.info().deliveries] == [again.token]
    again.ack()
    assert letters.empty()


def test_poison_is_put_aside(using, name):
    queue = Queue(name, using=using, max_deliveries=2)
    queue.put("poison")
    queue.put("good")
    fail(queue)
    fail(queue)
    assert bodies(queue, 1) == ["good"]
    assert queue.empty()
    (letter,) = queue.dead()
    assert (letter.body, letter.attempts) == ("poison", 2)
    assert letter.reason.startswith("ZeroDivisionError: poison; in fail (recipes/test_queue.py:")
    assert queue.retry(letter)
    assert not queue.retry(letter)
    assert bodies(queue, 1) == ["poison"]
    assert queue.dead() == ()


def test_what_is_purged_is_gone(using, name):
    queue = Queue(name, using=using, max_deliveries=1)
    queue.put("dead")
    fail(queue)
    queue.put_many(["one", "two", "three"])
    taken = queue.get()
    assert queue.purge() == 2
    assert queue.qsize() == 1
    assert queue.purge(dead=True) == 1
    assert queue.dead() == ()
    taken.ack()
    assert queue.empty()


@pytest.mark.not_on("etcd")  # its sessions last for whole seconds; see test_queue_faults
def test_what_was_put_back_for_later_comes_later(using, name):
    def put_back_for(delay):
        letters, early = Queue(f"{name}:{delay}", using=using), []
        letters.put("one")
        before = clock()
        letters.get().nack(delay)
        with suppress(standard.Empty):
            early.append(letters.get(blocking=False))
        info = letters.info()
        if clock() - before >= delay:
            raise LockError("the machine has stood still until it was time")
        assert not early
        assert (info.size, info.ready, info.delivered, info.delayed) == (1, 0, 0, 1)
        assert done(letters.get(timeout=PATIENCE)) == "one"
        assert clock() - before >= delay

    steadily(put_back_for, 0.3, 5.0)


def test_one_who_waits_is_woken(letters):
    taken = []
    waiting = wait_in_line(letters, lambda: taken.append(done(letters.get())), "get")
    letters.put("one")
    waiting.join(PATIENCE)
    assert taken == ["one"]


def test_a_producer_who_waits_is_woken_when_there_is_room(using, name):
    queue = Queue(name, 1, using=using)
    queue.put("one")
    taken = queue.get()
    waiting = wait_in_line(queue, lambda: queue.put("two"), "put")
    taken.ack()
    waiting.join(PATIENCE)
    assert bodies(queue, 1) == ["two"]


def test_join_waits_until_all_is_done(letters):
    letters.put("one")
    assert not letters.join(timeout=0.01)
    taken = letters.get()
    joining = ThreadPoolExecutor().submit(letters.join)
    taken.ack()
    assert joining.result(PATIENCE)


def test_never_above_its_bound(using, name):
    """Each of the producers has an object of its own, as if it were a process."""
    most = 5

    def produce(number):
        queue, put = Queue(name, most, using=using), 0
        for _ in range(3):
            try:
                queue.put(number, blocking=False)
                put += 1
            except standard.Full:
                pass
        return put

    with ThreadPoolExecutor(4) as threads:
        assert sum(threads.map(produce, range(4))) == most
    assert Queue(name, using=using).qsize() == most


def test_items_go_to_one_consumer_each_and_in_their_order(using, name):
    number, taken = 12, []
    Queue(name, using=using).put_many([*range(number)])

    def consume(_):
        queue = Queue(name, using=using)
        while True:
            try:
                with queue.get(blocking=False) as delivery:
                    taken.append((delivery.token, delivery.body))
            except standard.Empty:
                return

    with ThreadPoolExecutor(3) as threads:
        list(threads.map(consume, range(3)))
    assert [body for _, body in sorted(taken)] == [*range(number)]


def test_a_mailbox_has_one_receiver_at_a_time(using, name):
    mailbox, other = Mailbox(name, using=using), Mailbox(name, using=using)
    mailbox.put_many(["one", "two"])
    (first,) = mailbox.get_many(2)
    with pytest.raises(standard.Empty):
        other.get(blocking=False)
    first.nack()
    assert bodies(other, 2) == ["one", "two"]


def test_tasks_do_the_same(using, name):
    async def work():
        queue = Queue(name, 1, using=using)
        waiting = asyncio.create_task(queue.aget())
        await queue.aput("one")
        async with await waiting as delivery:
            assert delivery.body == "one"
            with pytest.raises(standard.Full):
                await queue.aput("two", blocking=False)
        assert await queue.ajoin()
        with pytest.raises(standard.Empty):
            await queue.aget(timeout=0.01)
        with pytest.raises(SynchronousOnlyOperation, match=r"await queue\.aput"):
            queue.put("blocks")

    asyncio.run(work())


def test_a_cancelled_get_takes_nothing_away(using, name):
    async def work():
        queue = Queue(name, using=using)
        for pause in (0, 0.001, 0.01, 0.05):
            waiting = asyncio.create_task(queue.aget())
            await asyncio.sleep(pause)
            await queue.aput(pause)
            waiting.cancel()
            (result,) = await asyncio.gather(waiting, return_exceptions=True)
            if isinstance(result, asyncio.CancelledError):
                delivery = await queue.aget(timeout=PATIENCE)
            else:
                delivery = result
            assert delivery.body == pause
            await delivery.aack()

    asyncio.run(work())
    eventually(cleaned_up)
    assert Queue(name, using=using).empty()


def test_what_is_in_the_queue_is_told(using, name):
    queue = Queue(name, 4, using=using)
    assert queue.info().oldest is None
    queue.put_many(["one", "two", "three"])
    taken = queue.get()
    info = queue.info()
    assert (info.size, info.maxsize, info.ready, info.delivered) == (3, 4, 2, 1)
    (delivery,) = info.deliveries
    assert (delivery.id, delivery.token) == (taken.id, taken.token)
    assert info.oldest is not None
    taken.ack()


class TestBadInput:
    """It is refused by name, and changes nothing."""

    @pytest.mark.parametrize(
        ("arguments", "error", "named"),
        [
            ({"maxsize": -1}, ValueError, r"^maxsize must be 0 \(no bound\) or more, got -1$"),
            ({"maxsize": 1.5}, TypeError, "maxsize"),
            ({"maxsize": False}, TypeError, "maxsize"),
            ({"lease": 0}, ValueError, "lease"),
            ({"max_deliveries": 0}, ValueError, "max_deliveries"),
            ({"using": 1}, TypeError, "using"),
        ],
    )
    def test_of_the_queue(self, arguments, error, named):
        with pytest.raises(error, match=named):
            Queue("letters", **arguments)

    @pytest.mark.parametrize(
        ("call", "error", "said"),
        [
            (lambda queue: queue.put({1}), TypeError, r"body must be JSON, got \{1\}: .+ not JSON"),
            (lambda queue: queue.put(float("nan")), ValueError, "body must be JSON, got nan: "),
            (
                lambda queue: queue.put("x" * 65_000),  # too large with what is said of it later
                ValueError,
                "body must have at most 65536 bytes in JSON, with the values beside it, got 'xx",
            ),
            (lambda queue: queue.put("one", block=False), TypeError, r"Queue\.put\(\) .*'block'$"),
            (
                lambda queue: asyncio.run(queue.aput("one", block=False)),
                TypeError,
                r"Queue\.put\(\) .*'block'$",
            ),
            (lambda queue: queue.put_many([]), ValueError, "bodies must be 1 to 12 items, got 0$"),
            (lambda queue: queue.put_many(5), TypeError, "bodies must be a sequence, not 5$"),
            (lambda queue: queue.get(timeout=-2), ValueError, "timeout must"),
            (lambda queue: queue.ack_many(5), TypeError, "deliveries must be a sequence, not 5$"),
            (lambda queue: queue.ack_many([5]), TypeError, r"deliveries must be what .*, not 5$"),
            (lambda queue: queue.resize(-1), ValueError, r"maxsize must be 0 \(no bound\) or more"),
            (
                lambda queue: queue.retry(5),
                TypeError,
                r"letter must be a QueueItem from .*, not 5$",
            ),
            (lambda queue: queue.force_release("a", 1), TypeError, "id must be an int, not 'a'$"),
            (lambda queue: queue.force_release(1, "b"), TypeError, "token must be an int, not 'b'"),
        ],
    )
    def test_of_its_methods(self, letters, call, error, said):
        with pytest.raises(error, match=f"^{said}"):
            call(letters)
        assert letters.empty()
        assert not Config(f"queue:{letters.name}", using=letters.using).get(0).value

    def test_of_a_delivery(self, letters):
        letters.put("one")
        taken = letters.get()
        with pytest.raises(ValueError, match="delay"):
            taken.nack(delay=-1)
        with pytest.raises(TypeError, match="reason"):
            taken.nack(reason=7)
        taken.ack()


def test_the_largest_body_can_be_delivered_as_often_as_any(using, name):
    queue = Queue(name, using=using, max_deliveries=1)
    queue.put("x" * 64_000)
    queue.get().nack(reason="\N{OPEN LOCK}" * 1000)
    (letter,) = queue.dead()
    assert letter.reason == "\N{OPEN LOCK}" * 300


def test_a_lease_of_its_own_where_there_is_one(kind, using, name):
    queue = Queue(name, using=using, lease=20)
    queue.put("one")
    if kind in ONE_LEASE:
        with pytest.raises(NotSupported, match="lease=20"):
            queue.get()
    else:
        done(queue.get())
    assert queue.qsize() == (kind in ONE_LEASE)


@pytest.mark.brief
@pytest.mark.faults
def test_who_keeps_a_delivery_keeps_it_beyond_its_lease(kind, short, using, name):
    def keep(lease):
        letters = Queue(f"{name}:{lease}", using=using, lease=None if kind in ONE_LEASE else lease)
        letters.put("one")
        taken, again = letters.get(), []
        passed(1.5 * lease)
        with suppress(standard.Empty):
            again.append(letters.get(blocking=False))
        taken.ack()
        assert not again

    steadily(
        keep,
        1.2 if kind in FAULTS_EVERY_DAY else short,
        short + 1 if kind in ONE_LEASE else 4 * short,
    )


@pytest.mark.brief
@pytest.mark.faults
def test_a_delivery_that_nobody_keeps_is_made_again(kind, using, letters):
    letters.put("one")
    letters.get()  # dropped
    lease = None if kind in ONE_LEASE else 2 * PATIENCE
    again = Queue(letters.name, using=using, lease=lease).get(timeout=PATIENCE)
    assert (again.body, again.attempt) == ("one", 2)
    again.ack()
