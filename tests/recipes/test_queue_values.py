"""Which values are kept, as they were written, and which are refused where they are written."""

import datetime
import queue as standard

import pytest
from django.core.serializers.json import DjangoJSONEncoder

from distlock import locks
from distlock.backends.store import MAX_VALUE, Put
from distlock.recipes import Config, Group, Queue, Topic, queue_items
from distlock.types.values import MAX_DEPTH
from tests.recipes.every_kind import pytest_generate_tests  # noqa: F401 - pytest calls it
from tests.recipes.test_queue import bodies


def nested(depth, make=lambda value: [value]):
    value = 1
    for _ in range(depth):
        value = make(value)
    return value


@pytest.mark.parametrize(
    "value",
    [
        nested(MAX_DEPTH),
        nested(MAX_DEPTH, lambda value: {"in": value}),
        [[] for _ in range(500)],
        "[{" * 1000,
        {"b": 1, "a": {"d": 2, "c": 3}},
        "\0 \u2028 \N{OPEN LOCK}",
        2**70,
        -0.0,
        None,
    ],
    ids=["deep", "deep-dict", "wide", "brackets", "order", "text", "int", "zero", "none"],
)
def test_it_is_kept_as_it_was_written(letters, value):
    letters.put(value)
    (found,) = bodies(letters, 1)
    assert repr(found) == repr(value)


@pytest.mark.parametrize(
    ("value", "kept"),
    [
        ({1: "a", 2: "b"}, {"1": "a", "2": "b"}),
        ({1: "a", "b": 2}, {"1": "a", "b": 2}),
        ({True: 1, None: 2, 1.5: 3}, {"true": 1, "null": 2, "1.5": 3}),
        ((1, (2,)), [1, [2]]),
    ],
    ids=["ints", "mixed", "others", "tuple"],
)
def test_what_json_takes_is_taken(letters, value, kept):
    letters.put(value)
    assert bodies(letters, 1) == [kept]


REFUSED = {
    "deep": (nested(MAX_DEPTH + 1), f"nested more than {MAX_DEPTH} deep"),
    "very-deep": (nested(300, lambda value: {"in": [value]}), "nested more than"),
    "deepest": (nested(20_000), ""),
    "digits": (10**5000, ""),
    "tuples": (nested(MAX_DEPTH + 1, lambda value: (value,)), "nested more than"),
    "surrogate": ("half \ud800", "surrogates not allowed"),
    "same-keys": ({1: "a", "1": "b"}, "the same in JSON"),
    "same-keys-inside": ([{"x": [{None: 1, "null": 2}]}], "the same in JSON"),
}


@pytest.mark.parametrize(("value", "said"), REFUSED.values(), ids=REFUSED)
def test_what_could_not_be_read_again_is_refused(letters, value, said):
    with pytest.raises(ValueError, match=rf"^body must be JSON, got .*{said}"):
        letters.put(value)
    with pytest.raises(ValueError, match=r"^body must be JSON"):
        letters.put_many(["good", value])
    assert letters.empty()


@pytest.mark.parametrize(("value", "said"), REFUSED.values(), ids=REFUSED)
def test_every_recipe_refuses_it_by_its_argument(local, name, value, said):
    with pytest.raises(ValueError, match=rf"^value must be JSON, .*{said}"):
        Config(name).set(value)
    with pytest.raises(ValueError, match=rf"^message must be JSON, .*{said}"):
        Topic(name).publish(value)
    with pytest.raises(ValueError, match=rf"^data must be JSON, .*{said}"):
        Group(name, data={"in": value})
    assert Config(name).get("nothing").value == "nothing"


@pytest.fixture
def write(using):
    """``write(queue, number, text)``: put a record as an earlier version may have."""

    def put(queue, number, text):
        record = Put(f"i/r/{number:020d}", None)
        object.__setattr__(record, "text", text)
        locks[using].store.apply(queue._directory, [record])

    return put


DEEP = "[" * 2000 + "]" * 2000
WRONG = {
    "deep": f'{{"attempts":0,"at":"2026-01-01T00:00:00+00:00","reason":"","body":{DEEP}}}',
    "deepest": "[" * (MAX_VALUE // 2) + "]" * (MAX_VALUE // 2),
    "no-item": '{"some":"thing"}',
    "no-object": "5",
}


@pytest.mark.parametrize("text", WRONG.values(), ids=WRONG)
def test_what_cannot_be_read_goes_aside_with_the_reason(using, name, write, text, monkeypatch):
    monkeypatch.setattr(queue_items, "LOOKS_EVERY", 3600)  # so it is taken unread, if possible
    queue = Queue(name, using=using)
    queue.put_many(["first", "replaced", "replaced", "last"])
    write(queue, 2, text)
    write(queue, 3, text)
    info = queue.info()
    assert (info.size, info.ready, queue.qsize()) == (4, 4, 4)
    assert bodies(queue, 1) == ["first"]
    assert queue.info().ready == 3
    assert bodies(queue, 1) == ["last"]
    with pytest.raises(standard.Empty):
        queue.get(blocking=False)
    letter, _ = queue.dead()
    assert letter.reason.startswith("it cannot be read: ")
    assert letter.body == text[: len(letter.body)]
    info = queue.info()
    assert (info.size, info.dead) == (0, 2)
    assert queue.purge(dead=True) == 2


def test_what_cannot_be_read_is_purged(using, name, write):
    queue = Queue(name, using=using)
    queue.put_many(["replaced", "good"])
    write(queue, 1, DEEP)
    assert queue.purge() == 2
    assert queue.empty()


def test_an_encoder_writes_what_json_cannot_say(using, name):
    queue = Queue(name, using=using, encoder=DjangoJSONEncoder)
    queue.put({"due": datetime.date(2026, 1, 31)})
    with queue.get(blocking=False) as delivery:
        assert delivery.body == {"due": "2026-01-31"}


def test_an_item_is_put_at_once_where_no_transaction_is_open(using, name):
    queue = Queue(name, using=using)
    queue.put_on_commit("one")
    with queue.get(blocking=False) as delivery:
        assert delivery.body == "one"
