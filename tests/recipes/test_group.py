"""Who is in a group, who has come and who has gone: on backends of all kinds."""

import threading
from itertools import islice

import pytest

from distlock import LockLost, LockNotHeld
from distlock.recipes import Group
from tests.children import read_line, write_line
from tests.contract.actors import PATIENCE
from tests.contract.watch import eventually
from tests.recipes.every_kind import pytest_generate_tests  # noqa: F401 - pytest calls it


def be_there(name, member):
    """As a child: be a member until told to leave."""
    with Group(name, member) as group:
        write_line(group.token)
        read_line()


class Watcher:
    """One who watches a group on a thread; ``told`` are the changes, as words and names."""

    def __init__(self, name):
        self.told = []
        self._changes = Group(name).changes(PATIENCE)
        self._began = threading.Event()
        threading.Thread(target=self._watch, daemon=True).start()

    def _watch(self):
        for what, member in self._changes:
            self.told.append((what, member.name))

    def wait_for(self, *expected):
        """Wait for as many changes as are expected; they have to be these."""
        eventually(lambda: len(self.told) >= len(expected))
        assert self.told == [*expected]


def test_members_come_and_go(using, name):
    one, two = Group(name, "one", data={"queue": "mail"}), Group(name, "two")
    assert one.members() == ()
    token = one.join()
    with two:
        assert two.token > token
        first, second = two.members()
        assert (first.name, first.data, first.token) == ("one", {"queue": "mail"}, token)
        assert (second.name, second.data, second.token) == ("two", {}, two.token)
    assert [member.name for member in one.members()] == ["one"]
    one.update({"queue": "print"})
    assert [member.data for member in one.members()] == [{"queue": "print"}]
    assert one.join() == token
    assert one.leave() is True
    assert one.leave() is False
    assert one.members() == ()
    assert not one.joined


def test_each_change_is_told_once_in_order(using, name):
    early = Group(name, "early")
    early.join()
    watcher = Watcher(name)
    watcher.wait_for(("joined", "early"))
    with Group(name, "late") as late:
        watcher.wait_for(("joined", "early"), ("joined", "late"))
        late.update({"busy": True})
        eventually(lambda: ("updated", "late") in watcher.told)
    early.leave()
    changes = [("joined", "early"), ("joined", "late"), ("updated", "late")]
    watcher.wait_for(*changes, ("left", "late"), ("left", "early"))


@pytest.mark.shared
@pytest.mark.brief
def test_a_member_that_is_killed_is_told_to_every_watcher_as_crashed(child, using, name):
    member = child(be_there, name, "worker")
    member.line()
    watchers = [Watcher(name) for _ in range(3)]
    for watcher in watchers:
        watcher.wait_for(("joined", "worker"))
    member.kill()
    for watcher in watchers:
        watcher.wait_for(("joined", "worker"), ("crashed", "worker"))
    assert Group(name).members() == ()
    assert list(Group(name).changes(timeout=0)) == []


@pytest.mark.shared
def test_members_1_to_n_are_waited_for(child, using, name):
    group, members = Group(name), []
    assert group.wait_for(1, timeout=0) is False
    for number in (1, 2, 3):
        members.append(child(be_there, name, str(number)))
    assert group.wait_for(3, PATIENCE) is True
    assert sorted(member.name for member in group.members()) == ["1", "2", "3"]
    for member in members:
        member.tell("leave")
        member.finish()
    assert group.members() == ()


def test_an_operator_removes_a_member_that_stays_removed(using, name):
    group = Group(name, "stuck")
    token = group.join()
    assert group.remove(token + 1) is False
    assert group.remove(token) is True
    assert group.remove(token) is False
    assert group.members() == ()
    with pytest.raises(LockLost):
        group.update({})


def test_what_is_no_member_says_nothing(using, name):
    group = Group(name)
    with pytest.raises(LockNotHeld):
        group.update({})
    with pytest.raises(LockNotHeld):
        _ = group.token


async def use_group(name):
    async with Group(name, "one") as group:
        await group.aupdate({"n": 1})
        assert await group.await_for(1)
        (member,) = await group.amembers()
        found = [change async for change in group.achanges(timeout=0)]
        assert found == [("joined", member)]
        assert await group.aremove(member.token)


def test_tasks(using, name, loop):
    import asyncio

    asyncio.run_coroutine_threadsafe(use_group(name), loop.loop).result(PATIENCE)
    assert list(islice(Group(name).changes(0), 1)) == []
