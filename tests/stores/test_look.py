"""Some records of a directory can be looked at without reading all of them."""

import threading

from distlock.backends.store import MOST_KEYS, Put, Unchanged
from tests.stores.clients import put, values, write_pairs


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


def test_what_is_read_is_of_one_moment(store, directory):
    """Two records that are always written together are found with the same value."""
    put(directory, "left", ["first", 0])
    put(directory, "right", ["first", 0])
    writing = threading.Thread(target=write_pairs, args=[directory, "writer", 60], daemon=True)
    between = [f"{number}" for number in range(MOST_KEYS - 2)]  # so that it takes longer
    found = [values(store.look(directory, ["left", *between, "right"]))]
    writing.start()
    while writing.is_alive():
        found.append(values(store.look(directory, ["left", *between, "right"])))
    assert [pair for pair in found if pair["left"] != pair["right"]] == []
