"""Pauses grow up to the longest, and end at the deadline."""

from itertools import islice

from distlock.concurrency.clock import backoff, backoff_until, clock, left


def test_pauses_grow_up_to_the_longest_each_cut_by_up_to_a_half():
    pauses = list(islice(backoff(1.0, 3.0), 5))
    for pause, full in zip(pauses, [1.0, 1.5, 2.25, 3.0, 3.0], strict=True):
        assert full / 2 <= pause <= full


def test_the_first_pause_is_not_longer_than_the_longest():
    assert next(backoff(5.0, 1.0)) <= 1.0


def test_pauses_differ():
    assert len(set(islice(backoff(1.0, 1.0), 100))) > 1


def test_without_a_deadline_pauses_do_not_end():
    assert len(list(islice(backoff_until(None, 0.1, 1.0), 50))) == 50


def test_the_last_attempt_is_made_at_the_deadline(monkeypatch):
    now = 100.0
    monkeypatch.setattr("distlock.concurrency.clock.clock", lambda: now)
    attempts = []
    for pause in backoff_until(105.0, 0.1, 1.0):
        attempts.append(now)
        now += pause
    assert attempts[0] == 100.0
    assert attempts[-1] == 105.0
    assert len(attempts) == len(set(attempts))


def test_a_deadline_that_has_passed_leaves_one_attempt():
    assert list(backoff_until(clock() - 1, 0.1, 1.0)) == [0.0]


def test_the_time_left_is_never_negative_and_never_too_long():
    assert left(None, 3.0) == 3.0
    assert left(clock() - 1, 3.0) == 0.0
    assert left(clock() + 100, 3.0) == 3.0
    assert 0 < left(clock() + 100, 300.0) <= 100
