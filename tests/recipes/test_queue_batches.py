"""Queues that take, give and acknowledge several items in one change."""

import pytest

from distlock import LockLost, LockNotHeld
from distlock.recipes import Queue
from tests.contract.actors import PATIENCE
from tests.contract.watch import eventually
from tests.recipes.every_kind import pytest_generate_tests  # noqa: F401 - pytest calls it
from tests.recipes.test_queue import bodies


def test_several_at_once_keep_their_order(letters):
    letters.put("first")
    letters.put_many(["second", "third", "fourth"])
    taken = letters.get_many(3)
    assert [one.body for one in taken] == ["first", "second", "third"]
    taken[1].nack()
    assert bodies(letters, 2) == ["second", "fourth"]
    taken[0].ack()
    taken[2].ack()
    assert letters.empty()


def test_what_was_acknowledged_with_others_is_not_held_any_more(letters):
    letters.put_many(["first", "second"])
    taken = letters.get_many(2)
    letters.ack_many(taken)
    assert [one.held for one in taken] == [False, False]


def test_deliveries_of_another_queue_are_refused_and_go_on(letters):
    other = Queue(f"{letters.name}:other", using=letters.using)
    taken = []
    for queue in letters, other:
        queue.put("goes on")
        taken.append(queue.get(timeout=PATIENCE))
    with pytest.raises(ValueError, match="deliveries must be of"):
        letters.ack_many(taken)
    assert [one.held for one in taken] == [True, True]
    for one in taken:
        one.ack()


def test_the_largest_bodies_can_be_moved_together(letters):
    letters.put_many(["x" * 64_000] * 12)
    taken = letters.get_many(20)
    assert len(taken) == 12
    letters.ack_many(taken)
    with pytest.raises(ValueError, match="bodies must be 1 to 12"):
        letters.put_many(["one too many"] * 13)
    assert letters.empty()


def test_several_are_acknowledged_at_once(letters):
    letters.put_many(["one", "two", "three"])
    letters.ack_many(letters.get_many(2))
    third, before = letters.get(), letters.qsize()
    assert (third.body, before) == ("three", 1)
    third.ack()
    with pytest.raises(LockNotHeld):
        letters.ack_many([third])
    assert letters.empty()


def test_of_several_those_that_were_lost_are_delivered_again(letters):
    letters.put_many(["one", "two", "three"])
    taken = letters.get_many(3)
    assert letters.force_release(taken[1].id, taken[1].token)
    with pytest.raises(LockLost):
        letters.ack_many(taken)
    assert bodies(letters, 1) == ["two"]
    assert letters.empty()


def test_of_several_the_others_are_acknowledged_also_when_a_loss_is_known(eager, name):
    letters = Queue(name)
    letters.put_many(["one", "two", "three"])
    taken = letters.get_many(3)
    assert letters.force_release(taken[1].id, taken[1].token)
    eventually(lambda: not taken[1].held)
    with pytest.raises(LockLost):
        letters.ack_many(taken)
    assert bodies(letters, 1) == ["two"]
    assert letters.empty()
