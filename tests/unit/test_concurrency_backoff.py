"""Pauses grow up to the longest, and end at the deadline."""

from itertools import islice

import pytest

from distlock.concurrency.backoff import Backoff
from distlock.concurrency.clock import clock, left


def test_pauses_grow_up_to_the_longest():
    backoff = Backoff(1.0, 10.0, factor=2.0, jitter=False)
    assert list(islice(backoff, 6)) == [1.0, 2.0, 4.0, 8.0, 10.0, 10.0]


def test_the_first_pause_is_not_longer_than_the_longest():
    assert next(Backoff(5.0, 1.0, jitter=False)) == 1.0


def test_jitter_cuts_a_pause_by_up_to_a_half():
    pauses = list(islice(Backoff(1.0, 1.0), 100))
    assert all(0.5 <= pause <= 1.0 for pause in pauses)
    assert len(set(pauses)) > 1


def test_without_a_deadline_pauses_do_not_end():
    assert len(list(islice(Backoff(0.1, 1.0).pauses(None), 50))) == 50


@pytest.mark.parametrize("jitter", [True, False])
def test_the_last_attempt_is_made_at_the_deadline(jitter, monkeypatch):
    now = 100.0
    monkeypatch.setattr("distlock.concurrency.clock.clock", lambda: now)
    attempts = []
    for pause in Backoff(0.1, 1.0, jitter=jitter).pauses(105.0):
        attempts.append(now)
        now += pause
    assert attempts[0] == 100.0
    assert attempts[-1] == 105.0
    assert len(attempts) == len(set(attempts))


def test_a_deadline_that_has_passed_leaves_one_attempt():
    assert list(Backoff(0.1, 1.0).pauses(clock() - 1)) == [0.0]


def test_the_time_left_is_never_negative_and_never_too_long():
    assert left(None, 3.0) == 3.0
    assert left(clock() - 1, 3.0) == 0.0
    assert left(clock() + 100, 3.0) == 3.0
    assert 0 < left(clock() + 1, 3.0) <= 1
