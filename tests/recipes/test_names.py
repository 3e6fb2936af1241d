"""Names and numbers that nobody else has: on backends of all kinds."""

import asyncio
import gc
import re
import threading

import pytest

from distlock import LockBusy, LockLost, LockNotHeld, LockTimeout, ValueNotAgreed, locks
from distlock.recipes import Names
from distlock.records.shared_backend import shared_locks
from tests.children import read_line, write_line
from tests.contract.actors import PATIENCE, answered
from tests.contract.forks import forked
from tests.contract.watch import Once, eventually
from tests.recipes.every_kind import pytest_generate_tests  # noqa: F401 - pytest calls it
from tests.recipes.wrapping import in_thread


def serve(namespace, name, address):
    """As a child: have a name until told to leave."""
    with Names(namespace).register(name, address, timeout=PATIENCE) as registration:
        write_line(registration.token)
        read_line()


def take_number_and_path(namespace, count):
    """As a child: take numbers, and a directory that nobody else has."""
    names = Names(namespace)
    read_line()
    for _ in range(count):
        write_line(names.unique_number())
    free = (f"/spool/{place}" for place in range(100))
    with next(taken for path in free if (taken := _try(names, path))) as registration:
        write_line(registration.name)
        read_line()


def _try(names, path):
    try:
        return answered(lambda: names.register(path, "worker"))
    except LockBusy:
        return None


def lose(names, token):
    """Let the process that has this token have lost the name."""
    assert shared_locks(locks["default"]).force_release(f"names:{names.name}", token)


@pytest.fixture
def names(using, name):
    return Names(name)


def addresses(names, name):
    return [found.address for found in names.resolve_all(name)]


def test_a_name_has_one_owner_until_it_is_unregistered(names):
    assert names.resolve("front") is None
    data = {"dpi": 600}
    registration = names.register("front", "10.0.0.7:631", data=data)
    found = names.resolve("front")
    assert (found.name, found.address, found.data) == ("front", "10.0.0.7:631", data)
    assert found.token == registration.token
    with pytest.raises(LockBusy, match=re.escape("'front' is registered for '10.0.0.7:631' by")):
        names.register("front", "10.0.0.8:631")
    with names.register("back", "10.0.0.8:631"):
        assert {one.name for one in names.resolve_all()} == {"front", "back"}
    assert registration.unregister() is True
    assert registration.unregister() is False
    assert names.resolve("front") is None
    with pytest.raises(LockNotHeld):
        registration.check()
    assert names.register("front", "elsewhere").token > found.token


def test_a_late_unregister_leaves_its_successor_alone(names):
    first = names.register("front", "1")
    token = first.token
    lose(names, token)
    second = names.register("front", "2")
    assert first.unregister() is False
    assert names.resolve("front").address == "2"
    assert second.held
    assert second.unregister() is True


def test_a_service_has_several_addresses(names):
    one = names.register("mail", "10.0.0.1", unique=False)
    with names.register("mail", "10.0.0.2", unique=False):
        assert addresses(names, "mail") == ["10.0.0.1", "10.0.0.2"]
        assert names.resolve("mail").address == "10.0.0.1"
        with pytest.raises(ValueNotAgreed, match="unique=True"):
            names.register("mail", "10.0.0.3")
    assert addresses(names, "mail") == ["10.0.0.1"]
    one.unregister()
    with names.register("mail", "10.0.0.3"), pytest.raises(ValueNotAgreed, match="unique=False"):
        names.register("mail", "10.0.0.4", unique=False)


def test_a_name_is_waited_for(names):
    first = names.register("front", "1")
    with pytest.raises(LockTimeout):
        names.register("front", "2", timeout=0.1)
    second = in_thread(names.register, "front", "2", timeout=PATIENCE)
    first.unregister()
    assert names.wait_for("back", timeout=0) is None
    assert second().token > names.resolve("front").token - 1
    waiting = in_thread(names.wait_for, "back", PATIENCE)
    with names.register("back", "3") as third:
        assert waiting().token == third.token


def test_a_name_is_handed_over_and_never_free_meanwhile(names):
    first = names.register("front", "old")
    assert first.hand_over("new", timeout=0) is False
    with pytest.raises(LockBusy):
        names.register("front", "new")
    handing = in_thread(first.hand_over, "new", PATIENCE)
    second = names.register("front", "new", timeout=PATIENCE)
    assert handing() is True
    assert not first.held
    assert first.unregister() is False
    assert names.resolve("front").token == second.token
    with pytest.raises(LockBusy):
        names.register("front", "old")


def test_nobody_else_takes_what_is_handed_over(names):
    first = names.register("front", "old")
    handing = in_thread(first.hand_over, "new", PATIENCE)
    eventually(lambda: names.resolve("front").promised == "new")
    with pytest.raises(LockBusy):
        names.register("front", "third")
    assert names.resolve("front").address == "old"
    names.register("front", "new")
    assert handing() is True


def records_read(monkeypatch, store):
    """Return a list that grows by the number of records that each look at the store has found."""
    numbers, inside = [], threading.local()

    def counted(method):
        def look(*args, **kwargs):
            if getattr(inside, "look", False):  # of the local store, in its memory
                return method(*args, **kwargs)
            inside.look = True
            try:
                found = method(*args, **kwargs)
            finally:
                inside.look = False
            numbers.append(len(found.records))
            return found

        return look

    for name in ("read", "look", "peek"):
        monkeypatch.setattr(type(store), name, counted(getattr(type(store), name)))
    return numbers


@pytest.mark.every_day_on("local", "postgresql")
def test_nothing_reads_the_records_of_other_names(names, monkeypatch):
    """But what asks for all of them: a control."""
    kept = [names.register(f"other {number}", "1", unique=number % 2 == 0) for number in range(40)]
    numbers = records_read(monkeypatch, names._store)
    for unique in (True, False):
        first = names.register("front", "1", unique=unique)
        assert names.resolve("front").address == "1"
        assert addresses(names, "front") == ["1"]
        if unique:
            with pytest.raises(LockTimeout):
                names.register("front", "2", timeout=0.1)
            handing = in_thread(first.hand_over, "2", PATIENCE)
            first = names.register("front", "2", timeout=PATIENCE)
            assert handing() is True
        first.unregister()
    assert names.wait_for("front", 0.1) is None
    names.unique_number()
    assert max(numbers) <= 3
    assert len(names.resolve_all()) == len(kept)
    assert max(numbers) > len(kept)


def test_numbers_grow_and_none_is_given_twice(names):
    taken = [names.unique_number() for _ in range(3)]
    with names.register("front", "1"):
        taken.append(names.unique_number())
    locks["default"].sweep()
    taken.append(Names(names.name).unique_number())
    assert taken == sorted(set(taken))
    assert names.resolve_all() == ()


@pytest.mark.shared
@pytest.mark.faults
def test_a_unique_number_and_a_unique_path_for_each_process(child, names):
    """The mission's name service: a path or number that no one else has."""
    count = 5
    workers = [child(take_number_and_path, names.name, count) for _ in range(3)]
    for one in workers:
        one.tell("go")
    given = [int(one.line()) for one in workers for _ in range(count)]
    assert len(set(given)) == 3 * count
    assert len({one.line() for one in workers}) == 3
    for one in workers:
        one.tell("leave")
        one.finish()
    assert names.resolve_all() == ()


@pytest.mark.shared
@pytest.mark.brief
@pytest.mark.slow
def test_the_name_of_one_that_is_killed_can_be_had_within_a_lease(child, names):
    owner = child(serve, names.name, "front", "1")
    token = int(owner.line())
    assert names.resolve("front").token == token
    owner.kill()
    with names.register("front", "2", timeout=PATIENCE) as successor:
        assert successor.token > token
        assert addresses(names, "front") == ["2"]


class TestHere:
    """What has nothing to do with the kind of backend."""

    def test_who_wants_a_name_at_the_same_time_gets_it_once(self, eager, name, wrapped):
        names = Names(name)
        apply, faster = wrapped("apply"), []

        def come_first(store, directory, *rest):
            apply.before = lambda *_: None
            faster.append(names.register("front", "faster"))

        apply.before = come_first
        with pytest.raises(LockBusy, match="'faster'"):
            names.register("front", "slower")
        assert names.resolve("front").token == faster[0].token

    def test_a_lost_name_is_not_taken_back(self, eager, name):
        names = Names(name)
        first = names.register("front", "1", on_lost=(lost := Once()))
        lose(names, first.token)
        lost.wait()
        with pytest.raises(LockLost):
            first.check()
        with names.register("front", "2"):
            assert not first.held
        assert names.resolve("front") is None
        with pytest.raises(LockLost), names.register("front", "1") as third:
            lose(names, third.token)

    def test_the_address_of_a_service_comes_back(self, eager, name):
        names = Names(name)
        first = names.register("mail", "1", unique=False)
        token = first.token
        lose(names, token)
        eventually(lambda: first.held and first.token > token)
        assert addresses(names, "mail") == ["1"]
        first.unregister()

    def test_a_registration_that_nobody_has_ends_with_its_lease(self, brief, name):
        names = Names(name)
        names.register("front", "1")
        gc.collect()
        assert names.register("front", "2", timeout=PATIENCE).address == "2"

    def test_the_child_of_a_fork_has_no_name(self, eager, name, way):
        registration = Names(name).register("front", "1")
        assert forked(lambda: registration.held, way=way) is False
        assert forked(registration.unregister, way=way) is False
        assert registration.held

    @pytest.mark.parametrize(
        "arguments",
        [
            {"name": ""},
            {"name": 7},
            {"address": ""},
            {"address": b"10.0.0.1"},
            {"unique": "yes"},
            {"data": ["list"]},
            {"data": {"big": "x" * 5000}},
            {"timeout": -2},
            {"on_lost": 7},
        ],
        ids=str,
    )
    def test_what_is_wrong_is_refused_by_name(self, eager, name, arguments):
        (argument,) = arguments
        names = Names(name)
        with pytest.raises((TypeError, ValueError), match=argument):
            names.register(**{"name": "front", "address": "1", **arguments})
        assert names.resolve_all() == ()

    def test_requests(self, eager, name, wrapped):
        names = Names(name)
        names.register("other", "1").__enter__()  # opens the session
        reads, changes = wrapped("peek"), wrapped("apply")
        registration = names.register("front", "1")
        assert (len(reads.calls), len(changes.calls)) == (1, 1)
        names.resolve("front")
        names.unique_number()
        registration.unregister()
        assert (len(reads.calls), len(changes.calls)) == (2, 3)

    def test_a_stale_name_of_a_process_that_lives_is_taken_over(self, eager, name):
        names = Names(name)
        first = names.register("front", "1")
        lose(names, first.token)
        key = first._key
        assert key in names._store.read(f"names:{name}").records
        with names.register("front", "2"):
            pass
        assert key not in names._store.read(f"names:{name}").records


async def use_names(name):
    names = Names(name)
    async with await names.aregister("front", "1") as registration:
        assert (await names.aresolve("front")).token == registration.token
        assert await names.await_for("front")
        handing = asyncio.create_task(registration.ahand_over("2", PATIENCE))
        second = await names.aregister("front", "2", timeout=PATIENCE)
        assert await handing
    assert await second.aunregister()
    assert await names.aunique_number() < await names.aunique_number()
    assert await names.aresolve_all() == ()


def test_tasks(using, name, loop):
    asyncio.run_coroutine_threadsafe(use_names(name), loop.loop).result(PATIENCE)
    assert threading.current_thread() is not loop.thread
