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


def test_a_survey_has_all_keys_and_at_least_the_records_that_are_needed(store, directory):
    assert store.read_some(directory, ["a"], lambda _: ()).keys == []
    for key in ("a", "b/1", "b/2", "c"):
        put(directory, key, key.upper())
    found = store.read_some(directory, ["a", "missing"], lambda now: [now.keys[-1], "b/2"])
    assert sorted(found.keys) == ["a", "b/1", "b/2", "c"]
    assert {"a", "b/2"} <= found.records.keys()
    whole = store.read(directory)
    assert all(whole.records[key] == record for key, record in found.records.items())
    assert found.revision == whole.revision


def test_a_survey_sees_the_own_change_before_it(store, directory):
    for number in range(5):
        put(directory, "a", number)
        assert store.read_some(directory, ["a"], lambda _: ()).records["a"].value == number


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
        found.append(values(store.read_some(directory, ["left"], lambda _: ["right"])))
    assert [pair for pair in found if pair["left"] != pair["right"]] == []
