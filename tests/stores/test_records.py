"""Records are kept as they were put, under any name, and numbered in the order of the changes."""

import itertools
import json

import pytest

from distlock.backends.store import MAX_DIRECTORY, MAX_KEY, MAX_VALUE, Absent, Delete, Put
from tests.contract.names import AWKWARD_NAMES, LOOKALIKES
from tests.stores.clients import put, values

VALUES = [
    None,
    True,
    False,
    0,
    -1,
    2**31,
    2**63,
    10**40,
    0.1,
    1.0,
    -1.5e300,
    "",
    " ",
    "trailing  ",
    "line\nbreak\r\n\ttab",
    "\x00 and \x1f",
    'quotes " \' ` \\ \\" %s %% $1 ? :a',
    "🔒 日本語 l'été \u202e \u2028 \ufeff",
    [],
    {},
    [[], {}, [None, [1, [2.5, ["🔒"]]]]],
    {"": 1, "b": [True, False, None], "a": {"é": "e\u0301"}},
]
#: MariaDB ignores trailing spaces in most comparisons
SPACED = [("a", "a "), ("a", " a"), ("a b", "a b "), (" ", "  ")]


def same(value):
    """Return what tells 1 from True and from 1.0."""
    return json.dumps(value, sort_keys=True)


def test_an_unknown_directory_is_an_empty_one(store, directory):
    snapshot = store.read(directory)
    assert (snapshot.directory, dict(snapshot.records)) == (directory, {})
    assert store.get(directory, "any") is None


def test_every_value_comes_back_as_it_was(store, directory):
    for number, value in enumerate(VALUES):
        assert store.apply(directory, [Put(f"{number}", value)])
    found = values(store.read(directory))
    for number, value in enumerate(VALUES):
        assert same(found[f"{number}"]) == same(value)
        assert same(store.get(directory, f"{number}").value) == same(value)


@pytest.mark.parametrize("fill", ["x", "🔒"], ids=["ascii", "emoji"])
def test_a_value_of_64_kib_is_kept(store, directory, fill):
    text = fill * ((MAX_VALUE - 2) // len(fill.encode()))
    text += "x" * (MAX_VALUE - 2 - len(text.encode()))
    store.apply(directory, [Put("large", text)])
    assert store.get(directory, "large").value == text


@pytest.mark.parametrize("fill", ["x", "🔒"], ids=["ascii", "emoji"])
def test_a_larger_value_is_refused_by_name(fill):
    text = fill * ((MAX_VALUE - 2) // len(fill.encode()))
    text += "x" * (MAX_VALUE - 1 - len(text.encode()))
    with pytest.raises(ValueError, match="'too large'.* 65537 bytes"):
        Put("too large", text)


@pytest.mark.parametrize("value", [float("nan"), float("-inf"), b"bytes", {1, 2}, "\ud800"])
def test_what_is_no_json_is_refused(value):
    with pytest.raises((ValueError, TypeError)):
        Put("key", value)


def test_a_directory_may_be_larger_than_a_request(store, directory):
    for number in range(20):
        store.apply(directory, [Put(f"{number}:{part}", "x" * 60_000) for part in range(2)])
    snapshot = store.read(directory)
    assert {len(record.value) for record in snapshot.records.values()} == {60_000}
    assert len(snapshot.records) == 40


def test_many_records_change_at_once(store, directory):
    keys = [f"key-{number}" for number in range(50)]
    first = store.apply(directory, [Put(key, 1) for key in keys], [Absent(key) for key in keys])
    assert {record.revision for record in store.read(directory).records.values()} == {first}
    store.apply(directory, [Delete(key) for key in keys])
    assert not store.read(directory).records


def test_revisions_grow_and_are_those_of_the_records(store, directory):
    revisions = []
    for number in range(5):
        revisions.append(store.apply(directory, [Put("a", number)]))
        assert store.get(directory, "a").revision == revisions[-1]
        assert store.read(directory).revision >= revisions[-1]
    revisions.append(store.apply(directory, [Delete("a")]))
    assert store.read(directory).revision >= revisions[-1]
    revisions.append(store.apply(directory, [Put("a", 0), Put("b", 0)]))
    snapshot = store.read(directory)
    assert {record.revision for record in snapshot.records.values()} == {revisions[-1]}
    assert all(earlier < later for earlier, later in itertools.pairwise(revisions))


def test_a_record_keeps_when_it_was_created(store, directory):
    created = put(directory, "a", 1)
    changed = put(directory, "a", 2)
    record = store.get(directory, "a")
    assert (record.created, record.revision) == (created, changed)
    store.apply(directory, [Delete("a")])
    assert store.get(directory, "a") is None
    again = put(directory, "a", 1)
    record = store.get(directory, "a")
    assert (record.created, record.revision) == (again, again)


def test_records_come_in_the_order_in_which_they_were_created(store, directory):
    order = ["m", "z", "B", "a", "10", "9", "é"]
    for key in order:
        put(directory, key, 0)
    put(directory, "z", 1)  # a change does not move it
    assert list(store.read(directory).records) == order
    store.apply(directory, [Delete("m")])
    put(directory, "m", 0)
    assert list(store.read(directory).records) == [*order[1:], "m"]


def test_one_record_is_read_as_with_the_others(store, directory, session):
    store.apply(directory, [Put("bound", [1], session.id), Put("free", {"a": 1})])
    for key, record in store.read(directory).records.items():
        alone = store.get(directory, key)
        assert alone.session == record.session
        assert (alone.key, alone.value) == (record.key, record.value)
        assert (alone.created, alone.revision) == (record.created, record.revision)


def test_deleting_what_is_not_there_does_no_harm(store, directory):
    before = put(directory, "a", 1)
    assert store.apply(directory, [Delete("other")]) > before
    assert values(store.read(directory)) == {"a": 1}


def test_a_put_binds_a_record_anew_or_sets_it_free(store, directory, session):
    store.apply(directory, [Put("a", 1, session.id), Put("b", 1)])
    store.apply(directory, [Put("a", 2), Put("b", 2, session.id)])
    bound = {key: record.session for key, record in store.read(directory).records.items()}
    assert bound == {"a": None, "b": session.id}


# Names


def test_any_key_is_a_record_of_its_own(store, directory):
    keys = list(dict.fromkeys(name[:MAX_KEY] for name in AWKWARD_NAMES))
    store.apply(directory, [Put(key, f"<{key}>") for key in keys])
    assert values(store.read(directory)) == {key: f"<{key}>" for key in keys}
    for key in keys:
        assert store.get(directory, key).value == f"<{key}>"
    store.apply(directory, [Delete(key) for key in keys[::2]])
    assert set(store.read(directory).records) == set(keys[1::2])


def test_keys_that_look_alike_are_two(store, directory):
    for number, pair in enumerate([*LOOKALIKES, *SPACED]):
        one, other = (key[-MAX_KEY:] for key in pair)
        name = f"{directory}:{number}"
        store.apply(name, [Put(one, "one")])
        assert store.get(name, other) is None
        assert store.apply(name, [Put(other, "other")], [Absent(other)])
        assert values(store.read(name)) == {one: "one", other: "other"}
        store.apply(name, [Delete(one)])
        assert values(store.read(name)) == {other: "other"}


def test_any_name_is_a_directory_of_its_own(store, directory):
    names = [f"{directory}:{name}"[:MAX_DIRECTORY] for name in AWKWARD_NAMES]
    for name in names:
        put(name, "name", name)
    for name in names:
        assert values(store.read(name)) == {"name": name}
    assert list(store.directories(directory)) == sorted(names)


def test_directories_that_look_alike_are_two(store, directory):
    for number, pair in enumerate([*LOOKALIKES, ("a", "a/b"), ("a", "aa"), ("a", "aÿ")]):
        one, other = (f"{directory[-8:]}:{number}:{end}" for end in pair)
        put(one, "a", "one")
        assert not store.read(other).records
        store.apply(other, [Put("a", "other"), Put("b", "other")])
        assert values(store.read(one)) == {"a": "one"}
        store.apply(one, [Delete("a")])
        assert values(store.read(other)) == {"a": "other", "b": "other"}


def test_a_key_belongs_to_its_directory(store, directory):
    """However names and keys are put together, no two records are one."""
    addresses = [("a", "b/c"), ("a/b", "c"), ("a/", "b/c"), ("a", "/b/c"), ("a/b/", "c")]
    for name, key in addresses:
        put(f"{directory}/{name}", key, [name, key])
    for name, key in addresses:
        assert store.get(f"{directory}/{name}", key).value == [name, key]
    counted = sum(len(store.read(f"{directory}/{name}").records) for name, _ in {*addresses[1:]})
    assert counted == len(addresses)


def test_the_longest_names_are_kept_whole(store, directory):
    for fill in ["n", "🔒", "/", " ."]:
        name = (directory + fill * MAX_DIRECTORY)[:MAX_DIRECTORY]
        key = (fill * MAX_KEY)[:MAX_KEY]
        put(name, key, fill)
        put(name, key[:-1] + "x", "another")
        assert values(store.read(name)) == {key: fill, key[:-1] + "x": "another"}
        assert name in store.directories(directory)


@pytest.mark.parametrize("prefix", ["", "b", "b ", "b%", "b_", "B", "b/", "c\\", "nothing"])
def test_directories_are_listed_by_prefix(store, directory, prefix):
    names = ["a", "b", "B", "b%", "b%c", "b_c", "bxc", "b/c", "c\\", "c\\\\d", "🔒"]
    for name in names:
        put(f"{directory}:{name}", "a", 1)
    expected = sorted(f"{directory}:{name}" for name in names if name.startswith(prefix))
    assert list(store.directories(f"{directory}:{prefix}")) == expected


def test_a_directory_without_records_is_not_in_use(store, directory):
    put(directory, "a", 1)
    assert list(store.directories(directory)) == [directory]
    store.apply(directory, [Delete("a")])
    assert list(store.directories(directory)) == []


def test_the_clock_of_the_store_is_not_ahead_of_later_revisions(store, directory):
    """Where it tells; so what was created after a moment has a greater revision than it."""
    put(directory, "a", 1)
    now = store.read(directory).now
    assert now is None or put(directory, "b", 1) >= now
