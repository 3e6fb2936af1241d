"""Who is in a group, and what each says of itself: on backends of all kinds."""

import re
from itertools import islice
from threading import Barrier

import pytest

from distlock import LockLost, LockNotHeld, LockUnavailable
from distlock.recipes import Group
from distlock.recipes.membership import Membership
from tests.children import read_line, write_line
from tests.contract.actors import PATIENCE
from tests.contract.watch import eventually
from tests.recipes.every_kind import pytest_generate_tests  # noqa: F401 - pytest calls it
from tests.recipes.test_membership import end_sessions, joins
from tests.recipes.wrapping import in_thread


def be_there(name, member):
    """As a child: be a member until told to leave."""
    with Group(name, member) as group:
        write_line(group.token)
        read_line()


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


def test_tasks(using, name, loop):
    import asyncio

    asyncio.run_coroutine_threadsafe(use_group(name), loop.loop).result(PATIENCE)
    assert list(islice(Group(name).changes(0), 1)) == []


class TestOneProcess:
    """What it costs, and what is refused: on the store of one process."""

    @pytest.fixture
    def kind(self):
        return "local"

    def test_what_a_member_asks(self, local, name, group_requests):
        group = Group(name)
        group.join()
        assert group_requests() == {"peek": 1, "apply": 1}
        group.update({"n": 1})
        assert group_requests() == {"look": 1, "read": 1, "apply": 1}  # here look() reads
        group.members()
        assert group_requests() == {"read": 1}
        group.leave()
        assert group_requests() == {"apply": 1}

    def test_32_joining_at_once_ask_no_more_than_one_each(self, local, name, group_requests):
        """Each writes records of its own only, so nobody has to try again."""
        groups, together = [Group(name, str(number)) for number in range(32)], Barrier(32)

        def join(group):
            together.wait(PATIENCE)
            return group.join()

        for joining in [in_thread(join, group) for group in groups]:
            assert joining() > 0
        assert group_requests() == {"peek": 32, "apply": 32}
        assert len(groups[0].members()) == 32

    def test_a_late_update_does_not_undo_a_later_one(self, local, wrapped, name):
        """Its answer was lost; the server carries it out when the next one has been."""
        group, apply, late = Group(name), wrapped("apply"), []
        group.join()

        def delay(known, *args):
            apply.before = lambda *_: None
            late.append((known, *args))
            raise LockUnavailable("no answer")

        apply.before = delay
        with pytest.raises(LockUnavailable):
            group.update({"n": 1})
        group.update({"n": 2})
        apply.original(*late[0])
        assert [member.data for member in group.members()] == [{"n": 2}]

    def test_what_is_said_while_it_is_lost_is_said_when_it_is_back(self, eager, name, wrapped):
        group, apply = Group(name), wrapped("apply")
        group.join()

        def fail(known, directory, changes, *_):
            if joins(changes):
                raise LockUnavailable("not now")

        apply.before = fail
        end_sessions(eager, name)
        eventually(lambda: not group.joined)
        with pytest.raises(LockLost):
            group.update({"n": 1})
        apply.before = lambda *_: None
        eventually(lambda: group.joined)
        assert [member.data for member in group.members()] == [{"n": 1}]

    def test_an_update_of_a_member_that_is_lost_just_then_is_that_of_no_other(
        self, eager, name, monkeypatch
    ):
        """It has joined again, with the new data, before anything is asked."""
        group, updating = Group(name), Membership.updating
        token = group.join()

        def lose_it_first(membership, *args):
            end_sessions(eager, name)
            eventually(lambda: group.joined and group.token > token)
            return (yield from updating(membership, *args))

        monkeypatch.setattr(Membership, "updating", lose_it_first)
        with pytest.raises(LockLost):
            group.update({"n": 1})
        assert [member.data for member in group.members()] == [{"n": 1}]

    @pytest.mark.parametrize(
        ("arguments", "error"),
        [
            ({"name": ""}, "name must not be empty"),
            ({"member": ""}, "member must not be empty"),
            ({"member": 5}, "member must be a str, not 5"),
            ({"data": [1]}, "data must be a mapping, not [1]"),
            ({"data": {"a": {1}}}, "data must be JSON, got {'a': {1}}"),
            ({"data": {"a": float("nan")}}, "data must be JSON"),
            ({"data": {"a": "x" * 5000}}, "data must have at most 4096 bytes of JSON, got 50"),
            ({"using": None}, "using must be an alias"),
        ],
    )
    def test_wrong_arguments_are_named(self, local, name, arguments, error):
        with pytest.raises((TypeError, ValueError), match=re.escape(error)):
            Group(**{"name": name, **arguments})

    def test_wrong_use_changes_nothing(self, local, name):
        group = Group(name, data={"a": 1})
        group.join()
        for call in (
            lambda: group.wait_for(0),
            lambda: group.wait_for("2"),
            lambda: group.wait_for(1, -2),
            lambda: group.update({"a": {1}}),
            lambda: group.watch(None),
            lambda: group.changes("soon"),
        ):
            with pytest.raises((TypeError, ValueError)):
                call()
        assert [member.data for member in group.members()] == [{"a": 1}]
