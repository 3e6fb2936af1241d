"""Some records of a directory can be looked at without reading all of them."""

from distlock.backends.store import MOST_KEYS, Put, Unchanged
from tests.stores.clients import put


def test_only_the_records_asked_for_are_read(store, directory):
    for key in ("a", "b", "c"):
        put(directory, key, key.upper())
    found = store.look(directory, ["c", "a", "missing"])
    assert {key: record.value for key, record in found.records.items()} == {"a": "A", "c": "C"}
    assert list(found.records) == ["a", "c"]
    assert found.records["a"] == store.read(directory).records["a"]


def test_its_revision_is_that_of_the_directory(store, directory):
    assert not store.look(directory, ["a"]).records
    put(directory, "a", 1)
    seen = store.look(directory, ["a"])
    put(directory, "b", 2)
    assert store.apply(directory, [Put("a", 3)], [Unchanged(seen.revision)]) is None
    seen = store.look(directory, ["a"])
    assert store.apply(directory, [Put("a", 3)], [Unchanged(seen.revision)])


def test_as_many_can_be_asked_for_as_is_said(store, directory):
    keys = [f"{number}" for number in range(MOST_KEYS)]
    put(directory, "7", "seven")
    assert list(store.look(directory, keys).records) == ["7"]
