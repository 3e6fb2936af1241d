"""Others who are faster, at the one moment at which it matters; and those who give up then."""

import asyncio
import queue as standard
import threading

import pytest

from distlock import LockUnavailable, locks
from distlock.backends.background import MOST_THREADS
from distlock.recipes import Mailbox, Queue, Semaphore
from distlock.records import shared_backend
from tests.contract.actors import PATIENCE
from tests.contract.watch import cleaned_up, eventually, passed
from tests.recipes.test_queue_abandoned import abandon
from tests.recipes.wrapping import Wrapped, grants, in_thread, is_unused


@pytest.fixture
def using(local):
    """One backend, in this process: what happens at a moment can be said."""
    return "default"


@pytest.fixture
def meanwhile(using, monkeypatch):
    """``meanwhile(call)``: call it once, between the next look at a queue and what follows it."""
    changes = Wrapped(monkeypatch, "apply")

    def wait_for(call):
        def once(*_):
            changes.before = lambda *_: None
            call()

        changes.before = once

    return wait_for


def test_another_producer_is_faster_and_there_is_no_room_left(using, name, meanwhile):
    queue, other = Queue(name, 1, using=using), Queue(name, 1, using=using)
    meanwhile(lambda: other.put("other"))
    with pytest.raises(standard.Full):
        queue.put("late", blocking=False)
    assert [one.body for one in other.get_many(5)] == ["other"]


def test_another_producer_is_faster_and_comes_first(using, name, meanwhile):
    queue, other = Queue(name, using=using), Queue(name, using=using)
    meanwhile(lambda: other.put("other"))
    queue.put("late")
    assert [one.body for one in queue.get_many(5)] == ["other", "late"]


def test_another_consumer_is_faster(using, name, meanwhile):
    queue, other, taken = Queue(name, using=using), Queue(name, using=using), []
    queue.put("one")
    meanwhile(lambda: taken.append(other.get()))
    with pytest.raises(standard.Empty):
        queue.get(blocking=False)
    assert [one.body for one in taken] == ["one"]
    taken[0].ack()
    assert queue.empty()


def test_the_last_attempt_of_one_who_has_waited_is_not_lost_to_others(using, name, monkeypatch):
    queue, other, faster = Queue(name, using=using), Queue(name, using=using), []
    queue.put_many(range(3))
    apply = Wrapped(monkeypatch, "apply")

    def be_faster(store, directory, *_):
        if directory == f"queue:{name}" and threading.current_thread() is me and len(faster) < 2:
            faster.append(directory)
            in_thread(lambda: other.get().ack())()

    me = threading.current_thread()
    released = threading.Event()

    def hold():
        with Semaphore(f"queue:get:{name}", 1, using=using):
            held.set()
            released.wait(PATIENCE)

    held = threading.Event()
    threading.Thread(target=hold).start()
    try:
        assert held.wait(PATIENCE)
        apply.before = be_faster
        assert queue.get(timeout=0.2).body == 2
        assert len(faster) == 2
    finally:
        released.set()


def test_one_whose_time_is_over_when_others_were_faster_gets_the_next_item(
    using, name, monkeypatch
):
    queue, other, faster = Queue(name, using=using), Queue(name, using=using), []
    queue.put_many(range(2))
    apply = Wrapped(monkeypatch, "apply")

    def be_faster(store, directory, *_):
        if directory == f"queue:{name}" and threading.current_thread() is me and not faster:
            faster.append(directory)
            in_thread(lambda: other.get().ack())()
            passed(0.05)

    me = threading.current_thread()
    apply.before = be_faster
    assert queue.get(timeout=0.05).body == 1
    assert faster


def test_a_purge_that_is_cancelled_removes_nothing_that_comes_later(using, name, monkeypatch):
    queue, apply = Queue(name, using=using), Wrapped(monkeypatch, "apply")
    for _ in range(9):
        queue.put_many(range(12))
    asked, go_on = threading.Event(), threading.Event()

    def hold_back(*_):
        apply.before = lambda *_: None
        asked.set()
        go_on.wait(PATIENCE)

    async def purge_and_cancel():
        task = asyncio.create_task(queue.apurge())
        assert await asyncio.to_thread(asked.wait, PATIENCE)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    apply.before = hold_back
    asyncio.run(purge_and_cancel())
    queue.put("later")
    go_on.set()
    eventually(lambda: queue.qsize() < 109)
    passed(0.5)
    assert queue.qsize() == 9


@pytest.mark.parametrize("items", [1, 2])
def test_a_consumer_for_whom_others_were_faster_leaves_no_session(
    using, name, meanwhile, monkeypatch, items
):
    """Each delivery with a lease of its own length has a session of its own."""
    queue, other = Queue(name, lease=600, using=using), Queue(name, using=using)
    queue.put_many(range(items))
    other.get().nack()  # this process has the session for others now
    opened, ended = Wrapped(monkeypatch, "open_session"), Wrapped(monkeypatch, "end_session")
    meanwhile(lambda: other.get().ack())
    if items == 1:
        with pytest.raises(standard.Empty):
            queue.get(blocking=False)
    else:
        queue.get(blocking=False).ack()
    assert len(opened.calls) == len(ended.calls) == 1


def test_the_bound_is_lowered_while_somebody_puts(using, name, meanwhile):
    queue = Queue(name, 2, using=using)
    queue.put("one")
    meanwhile(lambda: Queue(name, using=using).resize(1))
    with pytest.raises(standard.Full):
        queue.put("late", blocking=False)


def test_the_bound_is_lowered_between_two_looks_of_a_producer(using, name, monkeypatch):
    """It looks at the queue, and for the bound; whichever comes second sees the new one."""
    queue, looks = Queue(name, 2, using=using), []
    queue.put("one")
    producer = Queue(name, 2, using=using)

    def look(store, directory, *_):
        if threading.current_thread() is me:
            looks.append(directory)
            if len(looks) == 2:
                in_thread(Queue(name, using=using).resize, 1)()

    me = threading.current_thread()
    for method in ("peek", "read"):
        Wrapped(monkeypatch, method).before = look
    with pytest.raises(standard.Full):
        producer.put("late", blocking=False)
    assert {f"queue:{name}", f"config:queue:{name}"} <= {*looks}


def test_who_cannot_learn_the_bound_puts_nothing(using, name, monkeypatch):
    """What this process has seen of the bound may have been changed by others."""

    def fail(*_):
        raise LockUnavailable("away")

    queue = Queue(name, using=using)
    queue.resize(5)
    Wrapped(monkeypatch, "look").before = fail
    with pytest.raises(LockUnavailable, match="away") as caught:
        queue.put("late", blocking=False)
    assert not caught.value.maybe_applied
    assert queue.dead() == ()
    with pytest.raises(standard.Empty):
        queue.get(blocking=False)


def test_one_who_waits_waits_an_outage_out(using, name, monkeypatch):
    """What was surely not done is tried again; what may have been done is told."""
    queue = Queue(name, 1, using=using)
    queue.put("one")
    looks, failed = Wrapped(monkeypatch, "peek"), threading.Event()

    def fail(*_):
        if threading.current_thread() is not me:
            looks.before = lambda *_: None
            failed.set()
            raise LockUnavailable("an outage")

    me = threading.current_thread()
    waiting = in_thread(queue.put, "two", timeout=PATIENCE)
    seat = f"semaphore:queue:put:{name}"
    eventually(lambda: locks[using].shared.inspect(seat).taken)
    looks.before = fail
    taken = queue.get()
    taken.ack()
    waiting()
    assert failed.is_set()
    assert queue.get().body == "two"


def test_a_put_in_line_whose_answer_is_lost_is_told_and_not_made_twice(using, name, monkeypatch):
    queue = Queue(name, 1, using=using)
    queue.put("one")
    changes = Wrapped(monkeypatch, "apply")

    def lose_answer(store, directory, *rest):
        if directory == f"queue:{name}" and threading.current_thread() is not me:
            changes.original(store, directory, *rest)
            raise LockUnavailable("the answer was lost")

    me = threading.current_thread()
    waiting = in_thread(queue.put, "two", timeout=PATIENCE)
    seat = f"semaphore:queue:put:{name}"
    eventually(lambda: locks[using].shared.inspect(seat).taken)
    changes.before = lose_answer
    queue.get().ack()
    assert isinstance(error := waiting(), LockUnavailable)
    assert error.maybe_applied
    assert [one.body for one in queue.get_many(5)] == ["two"]


@pytest.mark.usefixtures("soon_given_up")
def test_a_put_in_line_counts_though_no_thread_is_free_to_leave_the_line(using, name, monkeypatch):
    """One that is not the first in line looks for itself, and has to give up its place then."""
    monkeypatch.setattr(shared_backend.SharedBackend, "pause", 0.01)
    queue, busy, others = Queue(name, 1, using=using), Queue(f"{name}:busy", using=using), []
    queue.put("one")
    line = Semaphore(f"queue:put:{name}", 1, using=using)
    looks, changes = Wrapped(monkeypatch, "peek"), Wrapped(monkeypatch, "apply")
    asked, go_on = threading.Semaphore(0), threading.Event()

    async def put():
        loop = asyncio.get_running_loop()

        def begin():
            others.extend(loop.create_task(busy.aput(1)) for _ in range(MOST_THREADS))

        def take_all_threads(store, directory, *_):
            if directory == f"queue:{name}:busy":
                asked.release()
                go_on.wait(PATIENCE)
            elif directory == f"queue:{name}" and not others:
                loop.call_soon_threadsafe(begin)
                assert all(asked.acquire(timeout=PATIENCE) for _ in range(MOST_THREADS - 1))

        def make_room(store, directory, *_):
            if directory == f"queue:{name}" and line.info().waiters:
                looks.before = lambda *_: None
                in_thread(lambda: queue.get().ack())()
                changes.before = take_all_threads

        looks.before = make_room
        try:
            await Queue(name, 1, using=using).aput("two", timeout=0.5)
        finally:
            go_on.set()
            await asyncio.gather(*others)

    with line:
        asyncio.run(put())
    assert others
    assert [one.body for one in queue.get_many(5)] == ["two"]
    eventually(lambda: is_unused(line))


def test_only_what_was_abandoned_is_put_back(using, name):
    queue = Queue(name, using=using)
    queue.put_many(["one", "two"])
    first, second = queue.get(), queue.get()
    assert queue.force_release(first.id, first.token)
    assert queue.get(blocking=False).body == "one"
    with pytest.raises(standard.Empty):
        queue.get(blocking=False)
    second.ack()


@pytest.mark.parametrize("most_deliveries", [1, 5])
def test_a_letter_is_put_back_and_taken_between_two_looks_of_another_receiver(
    using, name, monkeypatch, most_deliveries
):
    """It has seen who had the letter, and then that this one has gone."""
    mailbox = Mailbox(name, max_deliveries=most_deliveries, using=using)
    mailbox.put_many(["one", "two"])
    first, looks, taken = mailbox.get(), Wrapped(monkeypatch, "missing"), []

    def put_back_and_take(*_):
        looks.before = lambda *_: None
        first.give_up()
        taken.append(in_thread(Mailbox(name, using=using).get, timeout=PATIENCE)())

    looks.before = put_back_and_take
    with pytest.raises(standard.Empty):
        mailbox.get(blocking=False)
    assert [one.body for one in taken] == ["one"]
    taken[0].ack()
    assert mailbox.get().body == "two"


def test_an_abandoned_item_is_taken_between_two_looks_of_another_consumer(using, name, monkeypatch):
    """The next one was abandoned, too, and comes before what is ready."""
    queue, looks, taken = Queue(name, using=using), Wrapped(monkeypatch, "missing"), []
    queue.put_many(["one", "two", "three"])
    abandon(queue, queue.get_many(2))

    def be_faster(*_):
        looks.before = lambda *_: None
        taken.append(in_thread(Queue(name, using=using).get, timeout=PATIENCE)())

    looks.before = be_faster
    taken.append(Queue(name, using=using).get())
    assert [one.body for one in taken] == ["one", "two"]


def test_an_item_that_was_acknowledged_is_not_put_back(using, name, meanwhile):
    """Somebody has seen what was abandoned; by then it has been taken, and is done."""
    queue, other = Queue(name, using=using), Queue(name, using=using)
    queue.put("one")
    taken = queue.get()
    queue.force_release(taken.id, taken.token)
    meanwhile(lambda: other.get().ack())
    with pytest.raises(standard.Empty):
        queue.get(blocking=False)
    assert other.empty()


def test_a_task_that_is_cancelled_while_its_request_is_under_way_takes_nothing(
    using, name, monkeypatch
):
    queue, asked, go_on = Queue(name, using=using), threading.Event(), threading.Event()
    queue.put("one")
    looks = Wrapped(monkeypatch, "peek")

    def wait(*_):
        looks.before = lambda *_: None
        asked.set()
        assert go_on.wait(PATIENCE)

    looks.before = wait

    async def give_up():
        taking = asyncio.create_task(queue.aget())
        await asyncio.to_thread(asked.wait, PATIENCE)
        taking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await taking
        eventually(cleaned_up)
        go_on.set()

    asyncio.run(give_up())
    taken = queue.get(timeout=PATIENCE)
    assert taken.body == "one"
    taken.ack()


def test_what_is_there_costs_a_look_at_few_records(using, name, monkeypatch):
    """However long the queue is, nobody reads all of it."""
    queue = Queue(name, using=using)
    for _ in range(10):
        queue.put_many([*range(10)])
    reads = Wrapped(monkeypatch, "read")
    queue.put("last")
    queue.get().ack()
    assert queue.qsize() == 100
    assert queue.info().ready == 100
    assert [call for call in reads.calls if call[0] == f"queue:{name}"] == []
    assert len(locks[using].store.read(f"queue:{name}").records) == 101


def test_a_get_that_is_granted_while_it_is_cancelled_counts_as_no_attempt(using, name, monkeypatch):
    """Its cancellation has looked before that, and has found nothing to put back."""
    queue, gets = Queue(name, using=using, max_deliveries=1), Wrapped(monkeypatch, "apply")
    queue.put("one")
    asked, go_on, granted = threading.Event(), threading.Event(), threading.Event()

    def hold_back(store, directory, changes, *_):
        if grants(changes):
            asked.set()
            assert go_on.wait(PATIENCE)
        elif asked.is_set() and directory == f"queue:{name}":
            gets.before = lambda *_: None
            go_on.set()
            assert granted.wait(PATIENCE)

    async def cancel():
        taking = asyncio.create_task(queue.aget())
        assert await asyncio.to_thread(asked.wait, PATIENCE)
        taking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await taking
        while not (await queue.ainfo()).delivered:
            await asyncio.sleep(0.005)
        granted.set()

    gets.before = hold_back
    asyncio.run(cancel())
    eventually(lambda: queue.info().ready)
    taken = queue.get(timeout=PATIENCE)
    assert (taken.body, taken.attempt) == ("one", 1)
    taken.ack()


@pytest.mark.parametrize("most", [1, 2])
def test_others_who_are_faster_all_the_time_are_no_outage(
    backend_settings, configured, monkeypatch, name, most
):
    ((_, entry),) = backend_settings("sqlite").items()
    entry["OPTIONS"]["timeout"] = 1
    configured({"default": entry})
    queue, apply = Queue(name), type(locks["default"].store).apply
    queue.put_many(range(2))
    refused = []

    def be_slower(store, directory, changes, *rest):
        if grants(changes) and directory == f"queue:{name}" and len(refused) < most_refused:
            refused.append(directory)
            return None
        return apply(store, directory, changes, *rest)

    monkeypatch.setattr(type(locks["default"].store), "apply", be_slower)
    most_refused = 10**9
    for arguments in ({"blocking": False}, {"timeout": 1}):
        with pytest.raises(standard.Empty):
            queue.get_many(most, **arguments)
    most_refused = len(refused) + 100
    taken = queue.get_many(most, timeout=PATIENCE)
    assert [one.body for one in taken] == [*range(most)]
    queue.ack_many(taken)
