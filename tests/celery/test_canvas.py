"""Chains, groups and chords stay whole when one of their tasks is skipped or queued already."""

import pytest
from celery import chain, chord, group
from celery.exceptions import ChordError

from distlock.celery import AlreadyQueued
from tests.celery.stage import LIMIT, cue, published
from tests.celery.tasks import echo, gather
from tests.contract.watch import eventually

pytestmark = [
    pytest.mark.once,
    pytest.mark.filterwarnings("ignore:Call to deprecated setex:DeprecationWarning"),
]

NOWHERE = "nowhere"


@pytest.fixture
def queued(tasks, key):
    """A task that is queued already."""
    return tasks.queued.apply_async((key,), queue=NOWHERE)


def refused(result, queued):
    with pytest.raises(AlreadyQueued) as caught:
        result.get(timeout=LIMIT)
    assert queued.id in str(caught.value)


def value(result):
    """Wait for a result that is stored meanwhile, after a later one of its chain.

    It is read and not subscribed to, since it may be published in this very moment.
    """
    assert eventually(result.ready)
    return result.result


def test_the_last_of_a_chain_is_queued_already(tasks, key, queued):
    result = chain(echo.s(1), tasks.queued.si(key))()
    refused(result, queued)
    assert value(result.parent) == 1


def test_one_in_a_chain_is_queued_already(tasks, key, queued):
    result = chain(echo.s(1), tasks.queued.si(key), echo.s())()
    refused(result, queued)
    assert value(result.parent.parent) == 1


def test_the_first_of_a_chain_is_queued_already(tasks, key, queued):
    refused(chain(tasks.queued.si(key), echo.s())(), queued)


def test_one_of_a_group_is_queued_already(tasks, key, queued):
    result = group(echo.s(1), tasks.queued.si(key), echo.s(3))()
    assert [result[0].get(timeout=LIMIT), result[2].get(timeout=LIMIT)] == [1, 3]
    refused(result[1], queued)


def test_one_of_a_chord_is_queued_already(tasks, key, queued):
    with pytest.raises((ChordError, AlreadyQueued), match="queued already"):
        chord([echo.s(1), tasks.queued.si(key), echo.s(3)])(gather.s()).get(timeout=LIMIT)


def test_the_body_of_a_chord_is_queued_already(tasks, key, queued):
    refused(chord([echo.s(1), echo.s(2)])(tasks.queued.si(key)), queued)


def test_a_linked_task_is_queued_already(tasks, key, queued):
    assert echo.apply_async((1,), link=tasks.queued.si(key)).get(timeout=LIMIT) == 1


def test_a_known_id_is_answered(tasks, key, queued):
    assert tasks.queued.apply_async((key,), task_id=f"my-{key}").id == queued.id
    refused(tasks.queued.AsyncResult(f"my-{key}"), queued)


def test_a_skipped_task_is_no_gap(tasks, key):
    first = tasks.skip.delay(key)
    published(f"{key}:started")
    in_chain = chain(tasks.skip_given.si(key), echo.s())()
    in_chord = chord([echo.s(1), tasks.skip.si(key), tasks.skip_given.si(key)])(gather.s())
    assert in_chain.get(timeout=LIMIT) == {"skipped": True}
    assert in_chord.get(timeout=LIMIT) == [1, None, {"skipped": True}]
    cue(f"{key}:end")
    first.get(timeout=LIMIT)


def test_busy_tasks_of_a_chord_come_in_the_end(tasks, key):
    cue(f"{key}:end", 3)
    result = chord([tasks.retry.si(key) for _ in range(3)])(gather.s())
    assert result.get(timeout=LIMIT) == [key] * 3


def test_a_chain_of_queueing_locks(tasks, key):
    cue(f"{key}:end", 2)
    assert chain(tasks.both.si(key), tasks.both.si(key))().get(timeout=LIMIT) == key
