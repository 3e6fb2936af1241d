"""The first records of a directory, and how many there are, without reading all of them."""

import pytest

from distlock.backends.store import Delete, KeyRange, Peek, Put, SessionEnded
from distlock.concurrency.clock import clock
from tests.contract.watch import eventually, steadily


def fill(store, directory, keys):
    for key in keys:
        store.apply(directory, [Put(key, {"key": key})])


def test_the_first_ones_come_in_the_order_of_their_keys(store, directory):
    fill(store, directory, ["i/03", "i/01", "j", "i/02", "h/9", "i", "i0"])
    found = store.peek(directory, Peek({"i/": 2, "h/": 5}))
    assert [*found.records] == ["h/9", "i/01", "i/02"]
    assert [one.value for one in found.records.values()] == [{"key": key} for key in found.records]
    whole = store.read(directory)
    assert all(whole.records[key] == one for key, one in found.records.items())
    assert found.revision == whole.revision


def test_records_are_counted_by_the_beginning_of_their_keys(store, directory, session):
    fill(store, directory, ["i/r/1", "i/r/2", "i/t/3", "tail"])
    store.apply(directory, [Put("h/a", 1, session.id)])
    found = store.peek(directory, Peek({"tail": 1}, ["i/", "i/t/", "h/", "x/"]))
    assert found.counts == {"i/": 3, "i/t/": 1, "h/": 1, "x/": 0}
    assert [*found.records] == ["tail"]


def test_an_unknown_directory_has_none(store, directory):
    found = store.peek(directory, Peek({"i/": 3}, ["i/"]))
    assert (found.revision, dict(found.records), found.counts) == (0, {}, {"i/": 0}) or (
        store.read(directory).revision == found.revision and not found.records
    )


@pytest.mark.parametrize("first", ["/", "%", "_", "é", "日", "A", "a "])
def test_any_prefix_is_meant_literally(store, directory, first):
    keys = [f"{first}1", f"{first}2", "x1", "X1", "e1", "a1"]
    fill(store, directory, keys)
    found = store.peek(directory, Peek({first: 9}, [first]))
    assert ([*found.records], found.counts) == (keys[:2], {first: 2})


def test_keys_are_listed_in_their_order_after_a_text(store, directory):
    keys = ["i/", "i/01", "i/02", "i/é", "i/日"]
    fill(store, directory, [*reversed(keys), "i", "i0", "h/9"])

    def listed(*which):
        return [*store.peek(directory, Peek({"h/": 1}, ["i/"], listed=KeyRange(*which))).keys]

    assert listed("i/", 9) == keys
    assert listed("i/", 2) == keys[:2]
    assert listed("i/", 2, "i/01") == keys[2:4]
    assert listed("i/", 9, "i/日") == []
    assert listed("x/", 9) == []
    found = store.peek(directory, Peek({"h/": 1}, ["i/"], listed=KeyRange("i/", 1)))
    assert ([*found.records], found.counts, [*found.keys]) == (["h/9"], {"i/": 5}, ["i/"])


def test_keys_are_listed_backwards_before_a_text(store, directory):
    keys = ["i/", "i/01", "i/02", "i/é", "i/日"]
    fill(store, directory, [*keys, "i", "i0", "h/9"])

    def listed(*which):
        return [*store.peek(directory, Peek({}, listed=KeyRange(*which, reverse=True))).keys]

    assert listed("i/", 9) == keys[::-1]
    assert listed("i/", 2) == keys[:2:-1]
    assert listed("i/", 2, "i/02") == ["i/01", "i/"]
    assert listed("i/", 9, "i/") == []
    assert listed("x/", 9) == []


def test_what_is_missing_is_told(store, directory, session):
    fill(store, directory, ["i/1", "i/2"])
    store.apply(directory, [Put("h/a", 1, session.id)])
    keys = ["i/1", "h/a", "h/b", *(f"x/{number}" for number in range(97))]
    assert {*store.missing(directory, keys)} == {*keys[2:]}
    assert not store.missing(directory, [])


def test_what_was_deleted_is_not_counted(store, directory):
    fill(store, directory, ["i/1", "i/2"])
    store.apply(directory, [Delete("i/1")])
    found = store.peek(directory, Peek({"i/": 1}, ["i/"]))
    assert ([*found.records], found.counts) == (["i/2"], {"i/": 1})


@pytest.mark.lengthy
def test_what_was_bound_to_a_session_that_has_ended_is_gone(store, name, seconds):
    def end(length):
        directory = f"{name}:{length}"
        fill(store, directory, ["i/1"])
        session = store.open_session(length)
        store.apply(directory, [Put("h/1", 1, session.id)])
        counts = store.peek(directory, Peek({"i/": 1}, ["h/"])).counts
        if clock() >= session.deadline:
            raise SessionEnded("the machine has stood still")
        assert counts == {"h/": 1}
        eventually(lambda: store.peek(directory, Peek({"i/": 1}, ["h/"])).counts == {"h/": 0})
        assert [*store.missing(directory, ["h/1", "i/1"])] == ["h/1"]
        assert not store.renew([session.id], [(directory, "h/1")]).alive
        assert [*store.peek(directory, Peek({"h/": 1, "i/": 1})).records] == ["i/1"]

    steadily(end, seconds, seconds + 4)
