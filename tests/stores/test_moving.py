"""The first record of a prefix is moved unread, where the store says that it can do that."""

import pytest

from distlock import locks
from distlock.backends.store import Absent, Delete, Exists, MoveFirst, Put, SessionEnded
from tests.contract.actors import PATIENCE
from tests.stores.clients import move_all, put, values
from tests.stores.conftest import MOVING

#: texts that SQL, or JSON, writes in a way of its own
TEXTS = ["plain", "it's", 'a "b"', "back\\slash", "50% %(mark)s ?", "Zoë 🔓", "a\nb", "MARK"]


@pytest.fixture
def moving(store, directory):
    """``moving(*changes, conditions=())``: move the first of "from/"; its revision, the move."""

    def move_first(*changes, conditions=()):
        move = MoveFirst("to/MARK/x", "from/", "MARK", '{"n":0,', '{"n":1,')
        return store.apply(directory, [move, *changes], conditions), move

    return move_first


def waits(text, n=0):
    return {"n": n, "text": text}


def test_who_can_do_it(store, kind):
    assert store.moves_first == (kind in MOVING)


@pytest.mark.moving
@pytest.mark.parametrize("text", TEXTS)
def test_it_is_the_first_one_by_its_key(store, directory, moving, text):
    for key in ("from/2", "from/1", "from/3", "frog", "from"):
        put(directory, key, waits(text if key == "from/1" else "another"))
    before = store.read(directory).records["from/1"]
    revision, move = moving()
    assert move.moved == before
    found = store.read(directory).records
    assert "from/1" not in found
    moved = found["to/1/x"]
    assert (moved.value, moved.created, moved.session) == (waits(text, 1), revision, None)
    assert {key for key in found if key != "to/1/x"} == {"from/2", "from/3", "frog", "from"}


@pytest.mark.moving
def test_what_is_put_with_it_names_it(store, directory, moving, session):
    put(directory, "from/7", waits("a"))
    put(directory, "gone", 1)
    said = {"what": "MARK", "about": "'MARK' of MARK"}
    revision, _ = moving(Put("of/MARK", said, session.id), Delete("gone"))
    found = store.read(directory)
    assert found.records["of/7"].session == session.id
    assert found.records["of/7"].created == revision == found.revision
    assert values(found) == {
        "to/7/x": waits("a", 1),
        "of/7": {"what": "7", "about": "'7' of 7"},
    }


@pytest.mark.moving
@pytest.mark.parametrize(
    "first", [None, waits("a", 1), waits("a", 10), {"N": 0, "text": ""}, [0], "n"], ids=repr
)
def test_nothing_is_changed_unless_the_first_one_begins_so(store, directory, moving, first):
    """The second one is not looked at. The session with the database is a new one."""
    locks["default"].close()
    if first is not None:
        put(directory, "from/1", first)
        put(directory, "from/2", waits("the second"))
    before = store.read(directory)
    revision, move = moving(Put("a", 1))
    assert (revision, move.moved) == (None, None)
    assert store.read(directory).records == before.records


@pytest.mark.moving
def test_nothing_is_changed_unless_the_conditions_hold(store, directory, moving):
    put(directory, "from/1", waits("a"))
    for condition in (Exists("missing"), Absent("from/1")):
        assert moving(conditions=[condition])[0] is None
    assert list(values(store.read(directory))) == ["from/1"]
    assert moving(conditions=[Exists("from/1"), Absent("missing")])[0]


@pytest.mark.moving
def test_nothing_is_changed_if_a_session_has_ended(store, directory, moving, session):
    put(directory, "from/1", waits("a"))
    store.end_session(session.id)
    with pytest.raises(SessionEnded):
        moving(Put("of/MARK", 1, session.id))
    assert list(values(store.read(directory))) == ["from/1"]


@pytest.mark.moving
def test_each_is_moved_once_whoever_else_moves(store, directory, moving, others):
    """Who waits for another's change moves the next one, and not what it saw before."""
    clients, each = others(4), 10
    numbers = [f"{number:03d}" for number in range(len(clients) * each)]
    for number in numbers:
        put(directory, f"from/{number}", waits(number))
    done = [client.call(move_all, directory, each) for client in clients]
    moved = [one.result(PATIENCE) for one in done]
    assert sorted(number for some in moved for number in some) == numbers
    assert all(some == sorted(some) for some in moved)
