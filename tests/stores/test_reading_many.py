"""Several directories can be read in few questions, and each is found as if it was read alone."""

import pytest

from distlock.backends.reading import read, together
from distlock.backends.store import KeyRange, Peek, Put
from distlock.concurrency.clock import clock
from tests.contract.watch import eventually

KEYS = ["h/1", "h/2", "i/r/1", "i/r/2", "i/r/3", "i/t/1", "tail", "Tail"]
PEEKS = [
    Peek({"i/r/": 1, "h/": 9}, ["i/r/", "h/", "x/"], KeyRange("i/t/", 9)),
    Peek({"i/r/": 2}),
    Peek({}, ["i/"], KeyRange("i/", 2)),
    Peek({}, [], KeyRange("i/", 2, "i/r/2")),
    Peek({"x/": 1}, [], KeyRange("i/", 2, "", True)),
]


@pytest.fixture
def names(store, directory, session):
    """Directories with some records, with one that is bound to a session, with none; unknown."""
    found = [f"{directory}:{number}" for number in range(5)]
    for key in KEYS:
        store.apply(found[0], [Put(key, {"of": key})])
        store.apply(found[3], [Put(key, {"of": key})])
    store.apply(found[1], [Put("h/1", "\N{OPEN LOCK}", session.id)])
    return found


def alike(one, other):
    """Whether two snapshots say the same; of a session the time that is left may differ."""

    def told(snapshot):
        found = snapshot.records.items()
        return [
            (key, record.value, record.created, record.revision, record.session)
            for key, record in found
        ]

    said = one.directory, told(one), dict(one.counts), [*one.keys]
    return said == (other.directory, told(other), dict(other.counts), [*other.keys])


def test_all_of_each(store, names):
    found = store.read_many(names)
    assert [*found] == names
    assert all(alike(found[name], store.read(name)) for name in names)
    assert found[names[0]].revision == store.read(names[0]).revision


def test_some_keys_of_each(store, names):
    found = store.read_many(names, keys=["h/1", "tail", "missing"])
    assert all(alike(found[name], store.look(name, ["h/1", "tail"])) for name in names)
    assert [*found[names[0]].records] == ["h/1", "tail"]


@pytest.mark.parametrize("peek", PEEKS)
def test_the_first_records_of_each(store, names, peek):
    found = store.read_many(names, peek=peek)
    for name in names:
        asked = store.peek(name, peek)
        assert alike(found[name], asked), (found[name], asked)


def test_none(store):
    assert store.read_many([]) == {}


def test_more_than_can_be_asked_for_at_once(store, directory):
    names = [f"{directory}:{number}" for number in range(2 * store.at_once + 1)]
    store.apply(names[-1], [Put("a", 1)])
    found = store.read_many(names)
    assert [name for name in names if found[name].records] == names[-1:]


@pytest.mark.lengthy
def test_what_was_bound_to_a_session_that_has_ended_is_left_out(store, names, seconds):
    session = store.open_session(seconds)
    store.apply(names[2], [Put("h/1", 1, session.id), Put("tail", 2)])
    peek = Peek({"h/": 9}, ["h/"])
    assert store.read_many(names, peek=peek)[names[2]].counts == {"h/": 1}
    eventually(lambda: clock() > session.deadline + 2 * seconds)
    eventually(lambda: [*store.read_many(names)[names[2]].records] == ["tail"])
    assert store.read_many(names, peek=peek)[names[2]].counts == {"h/": 0}


class TestTogether:
    """What one looks at under its name, the next ones look at under theirs."""

    def test_it_is_found_as_if_each_had_asked_by_itself(self, store, names):
        found = dict(together(names, lambda name: read(store, name, None)))
        assert [*found] == [*names]
        assert all(alike(one, store.read(name)) for name, one in found.items())

    def test_another_directory_is_read_by_itself(self, store, names):
        others = names[0], names[3]
        ((_, found),) = together(
            ["elsewhere"], lambda _: [read(store, one, None) for one in others]
        )
        assert all(alike(one, store.read(name)) for name, one in zip(others, found, strict=True))

    def test_an_error_ends_it(self, store, names):
        def fail(name):
            raise ZeroDivisionError(name)

        with pytest.raises(ZeroDivisionError):
            dict(together(names, fail))
        assert dict(together(names, len)) == {name: len(name) for name in names}
