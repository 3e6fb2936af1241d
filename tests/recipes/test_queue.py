"""Queues and mailboxes on every kind of backend: what is put is delivered, once at a time."""

import queue as standard
import threading

import pytest

from distlock import LockNotHeld
from distlock.recipes import Config, Mailbox, Queue
from tests.contract.actors import PATIENCE
from tests.recipes.every_kind import pytest_generate_tests  # noqa: F401 - pytest calls it


@pytest.fixture
def letters(using, name):
    """A queue without a bound."""
    return Queue(name, using=using)


def bodies(queue, number):
    """Take and acknowledge so many items; return what they say."""
    return [done(queue.get(timeout=PATIENCE)) for _ in range(number)]


def done(delivery):
    with delivery:
        return delivery.body


def test_first_in_first_out(letters):
    bodies_in = ["first", {"second": [2]}, None, "last"]
    numbers = [letters.put(body) for body in bodies_in]
    assert numbers == sorted(set(numbers))
    assert letters.qsize() == 4
    assert bodies(letters, 4) == bodies_in
    assert letters.empty()


def test_an_empty_queue_is_told(letters):
    with pytest.raises(standard.Empty):
        letters.get(blocking=False)
    with pytest.raises(standard.Empty):
        letters.get(timeout=0)


def test_ten_letters_and_a_full_mailbox(using, name):
    """Ten letters, full and empty told; then twenty, without anybody stopping."""
    mailbox = Mailbox(name, using=using)
    assert mailbox.empty()
    for number in range(10):
        mailbox.put(f"letter {number}")
    assert mailbox.full()
    with pytest.raises(standard.Full):
        mailbox.put("one too many", blocking=False)
    late = threading.Thread(target=mailbox.put, args=("letter 10",), kwargs={"timeout": PATIENCE})
    late.start()
    Mailbox(name, using=using).resize(20)
    late.join(PATIENCE)
    assert not late.is_alive()
    for number in range(11, 20):
        mailbox.put(f"letter {number}", blocking=False)
    assert mailbox.full()
    assert bodies(mailbox, 20) == [f"letter {number}" for number in range(20)]
    assert mailbox.empty()
    assert Config(f"queue:{name}", using=using).get().value == 20


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
    with pytest.raises(LockNotHeld):
        again.ack()
    assert letters.empty()
