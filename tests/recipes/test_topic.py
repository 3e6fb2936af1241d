"""Topic: every subscriber gets each message once and in order, on every backend."""

import asyncio
import threading

import pytest

from distlock.recipes import Topic
from tests.contract.actors import PATIENCE
from tests.contract.watch import eventually
from tests.recipes.every_kind import pytest_generate_tests  # noqa: F401 - pytest calls it
from tests.recipes.test_config import SUBSCRIBERS, at_once

PUBLISHERS, EACH = 4, 6


@pytest.fixture
def topic(using, name):
    return Topic(name, using=using)


def numbers(messages):
    return [(message.number, message.missed) for message in messages]


def publish(name, number):
    return [Topic(name).publish([number, one]) for one in range(EACH)]


def listen(name, since, last):
    """Return the messages after a number, up to another."""
    heard = []
    for message in Topic(name).subscribe(since, timeout=PATIENCE):
        heard.append((message.number, message.message))
        if message.number >= last:
            break
    return heard


def test_messages_are_numbered_in_the_order_in_which_they_come(topic):
    messages = topic.subscribe(timeout=PATIENCE)
    assert [topic.publish(word) for word in ("one", "two", {"three": 3})] == [1, 2, 3]
    found = [next(messages) for _ in range(3)]
    assert [message.message for message in found] == ["one", "two", {"three": 3}]
    assert numbers(found) == [(1, 0), (2, 0), (3, 0)]


def test_a_subscriber_gets_what_is_published_from_its_call_on_or_after_a_number(topic):
    for number in (1, 2, 3):
        topic.publish(number)
    later = topic.subscribe(timeout=0)
    topic.publish(4)
    assert numbers(later) == [(4, 0)]
    assert numbers(topic.subscribe(2, timeout=0)) == [(3, 0), (4, 0)]
    assert numbers(topic.subscribe(0, timeout=0)) == [(1, 0), (2, 0), (3, 0), (4, 0)]
    assert numbers(topic.subscribe(4, timeout=0)) == []


def test_what_is_kept_can_be_looked_at(using, name):
    topic = Topic(name, keep=20, using=using)
    assert topic.history() == ()
    for number in range(1, 23):
        topic.publish(number)
    assert [one.number for one in topic.history()] == [*range(22, 2, -1)]
    assert topic.history()[0].message == 22
    assert numbers(topic.subscribe(3, timeout=0)) == [(number, 0) for number in range(4, 23)]


def test_who_fell_behind_is_told_how_many_were_missed(using, name):
    topic = Topic(name, keep=3, using=using)
    topic.publish(1)
    behind, never = topic.subscribe(timeout=PATIENCE), topic.subscribe(0, timeout=0)
    for number in range(2, 9):
        topic.publish(number)
    assert numbers(never) == [(6, 5), (7, 0), (8, 0)]
    assert numbers([next(behind)]) == [(6, 4)]
    for number in range(9, 31):
        Topic(name, keep=1, using=using).publish(number)
    assert numbers(topic.subscribe(0, timeout=0)) == [(30, 29)]


def test_everybody_gets_the_same_of_many_publishers(actor, topic, other, name):
    """Threads publish at once; processes listen, where there can be some."""
    last = PUBLISHERS * EACH
    listening = [actor(other).call(listen, name, 0, last) for _ in range(2)]
    given = at_once(*[lambda n=n: publish(name, n) for n in range(PUBLISHERS)])
    assert sorted(sum(given, [])) == list(range(1, last + 1))
    expected = sorted(
        (number, [who, one]) for who, own in enumerate(given) for one, number in enumerate(own)
    )
    for future in listening:
        assert future.result(PATIENCE) == expected


def test_a_slow_subscriber_delays_no_other(topic):
    slow = topic.subscribe(timeout=PATIENCE)
    quick = topic.subscribe(timeout=PATIENCE)
    for number in range(1, 19):
        assert topic.publish(number) == number
        assert next(quick).number == number
    assert [next(slow).number for _ in range(18)] == list(range(1, 19))


@pytest.mark.usefixtures("only_hints")
def test_what_is_kept_is_not_read_again_for_each_message(using, backend, name, monkeypatch):
    """One look of each of many subscribers for one message, and few records in it."""
    topic, asked, heard = Topic(name, using=using), [], []
    for number in range(5):
        topic.publish(number)
    look = type(backend.store).look

    def counted(store, directory, keys, deadline=None):
        if directory == f"topic:{name}":
            asked.append(len(keys))
        return look(store, directory, keys, deadline)

    def wait(messages):
        heard.append(next(messages).number)

    iterators = [topic.subscribe(timeout=PATIENCE) for _ in range(SUBSCRIBERS)]
    threads = [threading.Thread(target=wait, args=[each]) for each in iterators]
    for thread in threads:
        thread.start()
    monkeypatch.setattr(type(backend.store), "look", counted)
    topic.publish("last")
    for thread in threads:
        thread.join(PATIENCE)
    monkeypatch.undo()
    assert heard == [6] * SUBSCRIBERS
    assert len(asked) <= 3 * SUBSCRIBERS + 2  # some may just have begun, or be woken for nothing
    assert max(asked) < 20


@pytest.mark.parametrize(
    ("message", "error"),
    [(object(), TypeError), (float("inf"), ValueError), ("x" * 65536, ValueError)],
    ids=["no JSON", "no number", "too large"],
)
def test_what_cannot_be_kept_is_refused_by_name(topic, message, error):
    with pytest.raises(error, match="^message must"):
        topic.publish(message)
    assert topic.publish("first") == 1


@pytest.mark.parametrize(
    ("since", "error"), [("1", TypeError), (True, TypeError), (-1, ValueError), (2, ValueError)]
)
def test_a_place_that_is_none_is_refused(topic, since, error):
    topic.publish("first")
    with pytest.raises(error, match="^since must"):
        topic.subscribe(since)


def test_a_task_does_the_same(topic, loop):
    async def use():
        messages = await topic.asubscribe(timeout=PATIENCE)
        assert await topic.apublish("one", who="task") == 1
        found = await anext(messages)
        waiting = asyncio.ensure_future(anext(await topic.asubscribe(timeout=PATIENCE)))
        await asyncio.sleep(0)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert await topic.apublish("two") == 2
        return found, await anext(messages)

    one, two = asyncio.run_coroutine_threadsafe(use(), loop.loop).result(PATIENCE)
    assert (one.message, one.who, two.number) == ("one", "task", 2)


def test_a_message_is_waited_for(topic):
    messages, heard = topic.subscribe(timeout=PATIENCE), []
    thread = threading.Thread(target=lambda: heard.append(next(messages).message))
    thread.start()
    topic.publish("at last")
    thread.join(PATIENCE)
    eventually(lambda: heard == ["at last"])
