"""The demo's judge believes only what the log proves."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from locksite.demo.analysis import (
    count_overlaps,
    first_time,
    holds,
    most_at_once,
    tokens_grow,
)
from locksite.demo.models import Entry


def log(*lines: str) -> list[Entry]:
    """Entries such as "A enter 1", in the order of the server's clock."""
    words = [line.split() for line in lines]
    return [Entry(client=client, what=what, token=int(token)) for client, what, token in words]


IN_TURN = log("A enter 1", "A work 1", "A dead 1", "B enter 2", "B leave 2", "C enter 3")


def test_clients_in_turn_are_in_order() -> None:
    assert [hold.client for hold in holds(IN_TURN)] == ["A", "B", "C"]
    assert not count_overlaps(IN_TURN)
    assert tokens_grow(IN_TURN)


def test_as_many_at_once_as_have_not_left() -> None:
    entries = log("A enter 1", "B enter 2", "A leave 1", "C enter 3", "B leave 2", "C leave 3")
    assert most_at_once(entries) == 2
    assert most_at_once(IN_TURN) == 1
    assert most_at_once([]) == 0


def test_one_who_enters_before_another_has_left_is_noticed() -> None:
    assert count_overlaps(log("A enter 1", "B enter 2", "A leave 1", "B leave 2")) == 1


def test_one_who_works_on_after_another_has_entered_is_noticed() -> None:
    entries = log("A enter 1", "A leave 1", "B enter 2", "C enter 3", "C leave 3", "B work 2")
    assert count_overlaps(entries) == 1


def test_a_client_seen_dead_late_was_not_there_until_then() -> None:
    assert not count_overlaps(log("A enter 1", "B enter 2", "A dead 1"))


@pytest.mark.parametrize("second", [0, 1])
def test_a_token_that_does_not_grow_is_noticed(second: int) -> None:
    assert not tokens_grow(log("A enter 1", "A leave 1", f"B enter {second}"))


def test_the_same_client_may_come_twice() -> None:
    entries = log("A enter 1", "A leave 1", "B enter 2", "B leave 2", "A enter 3", "A leave 3")
    assert [hold.client for hold in holds(entries)] == ["A", "B", "A"]
    assert not count_overlaps(entries)


def test_what_never_began_is_an_error() -> None:
    entry = Entry(client="A", what="enter", token=1, at=datetime(2026, 1, 1, tzinfo=UTC))
    assert first_time([entry], "A", "enter") == entry.at
    with pytest.raises(LookupError):
        first_time([entry], "B", "enter")
