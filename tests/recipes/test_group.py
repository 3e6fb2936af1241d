"""Who is in a group, who has come and who has gone: on backends of all kinds."""

import random
import re
import signal
import time
from contextlib import ExitStack, suppress
from dataclasses import replace
from itertools import islice
from threading import Barrier

import pytest

from distlock import LockLost, LockNotHeld, LockUnavailable
from distlock.backends.store import Delete
from distlock.recipes import Group
from tests.children import read_line, write_line
from tests.contract.actors import PATIENCE
from tests.contract.watch import eventually, passed
from tests.recipes.every_kind import pytest_generate_tests  # noqa: F401 - pytest calls it
from tests.recipes.test_seats_faults import answer, stop
from tests.recipes.wrapping import in_thread


def be_there(name, member):
    """As a child: be a member until told to leave."""
    with Group(name, member) as group:
        write_line(group.token)
        read_line()


class Watcher:
    """One who watches a group; ``told`` are the changes, as words and names."""

    def __init__(self, name):
        self.changes = []
        self.watch = Group(name).watch(self.changes.append)

    @property
    def told(self):
        return [(what, member.name) for what, member in self.changes.copy()]

    def wait_for(self, *expected):
        """Wait for as many changes as are expected; they have to be these."""
        eventually(lambda: len(self.changes) >= len(expected))
        assert self.told == [*expected]


@pytest.fixture
def watcher(name):
    """``watcher()``: one who watches the group, until the test ends."""
    with ExitStack() as after:

        def make():
            made = Watcher(name)
            after.enter_context(made.watch)
            return made

        yield make


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


def test_each_change_is_told_once_in_order(using, name, watcher):
    early = Group(name, "early")
    early.join()
    told = watcher()
    told.wait_for(("joined", "early"))
    with Group(name, "late") as late:
        told.wait_for(("joined", "early"), ("joined", "late"))
        late.update({"busy": True})
        eventually(lambda: ("updated", "late") in told.told)
    early.leave()
    changes = [("joined", "early"), ("joined", "late"), ("updated", "late")]
    told.wait_for(*changes, ("left", "late"), ("left", "early"))


@pytest.mark.shared
@pytest.mark.brief
@pytest.mark.faults
def test_a_member_that_is_killed_is_told_to_every_watcher_as_crashed(child, using, name, watcher):
    member = child(be_there, name, "worker")
    member.line()
    watchers = [watcher() for _ in range(3)]
    for one in watchers:
        one.wait_for(("joined", "worker"))
    member.kill()
    for one in watchers:
        one.wait_for(("joined", "worker"), ("crashed", "worker"))
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


class TestOneProcess:
    """What it costs, and what is told to who looks late: on the store of one process."""

    @pytest.fixture
    def kind(self):
        return "local"

    @pytest.fixture
    def requests(self, wrapped, name):
        """``requests()``: how many there were for the group since the last call, by method."""
        methods = {method: wrapped(method) for method in ("read", "look", "apply")}

        def count():
            counted = {
                method: len([call for call in one.calls if call[0] == f"group:{name}"])
                for method, one in methods.items()
            }
            for one in methods.values():
                one.calls.clear()
            return {method: number for method, number in counted.items() if number}

        return count

    def test_what_a_member_asks(self, local, name, requests):
        group = Group(name)
        group.join()
        assert requests() == {"read": 1, "apply": 1}
        group.update({"n": 1})
        assert requests() == {"read": 1, "apply": 1}
        group.members()
        assert requests() == {"read": 1}
        group.leave()
        assert requests() == {"apply": 1}

    def test_32_joining_at_once_ask_no_more_than_one_each(self, local, name, requests):
        """Each writes records of its own only, so nobody has to try again."""
        groups, together = [Group(name, str(number)) for number in range(32)], Barrier(32)

        def join(group):
            together.wait(PATIENCE)
            return group.join()

        for joining in [in_thread(join, group) for group in groups]:
            assert joining() > 0
        assert requests() == {"read": 32, "apply": 32}
        assert len(groups[0].members()) == 32

    def test_a_change_costs_32_watchers_a_look_each(self, brief, name, watcher, requests):
        watchers = [watcher() for _ in range(32)]
        eventually(lambda: all(one.watch._follower._seen for one in watchers))
        requests()
        group = Group(name, "one")
        group.join()
        for one in watchers:
            one.wait_for(("joined", "one"))
        assert requests() == {"read": 1 + 32, "apply": 1}
        (held,) = [key for key in brief.store.read(f"group:{name}").records if key[:2] == "h/"]
        requests()
        brief.store.apply(f"group:{name}", [Delete(held)])
        for one in watchers:
            eventually(lambda: ("crashed", "one") in one.told)  # noqa: B023
        counted = requests()
        assert counted["apply"] <= 1 + 32 + 1  # one of them notes it; and it joins again
        assert counted["read"] <= 4 * 32 + 1

    def test_two_who_find_a_crash_at_the_same_moment_note_it_once(
        self, local, wrapped, name, watcher
    ):
        group, both, apply = Group(name, "one"), Barrier(2), wrapped("apply")
        group.join()
        watchers = [watcher(), watcher()]
        for one in watchers:
            one.wait_for(("joined", "one"))

        def wait_for_the_other(known, directory, changes, *_):
            if any(change.key[:2] == "g/" for change in changes):
                both.wait(PATIENCE)

        (held,) = [key for key in local.store.read(f"group:{name}").records if key[:2] == "h/"]
        apply.before = wait_for_the_other
        local.store.apply(f"group:{name}", [Delete(held)])
        for one in watchers:
            one.wait_for(("joined", "one"), ("crashed", "one"))
        records = local.store.read(f"group:{name}").records.values()
        (noted,) = (record for record in records if record.key[:2] == "g/")
        assert noted.revision == noted.created

    def test_who_looks_late_is_told_all_that_is_kept(self, local, name):
        """Those that both came and went meanwhile, too."""
        watching = Group(name).changes(PATIENCE)
        with Group(name, "stays"):
            assert next(watching).what == "joined"
            for number in range(40):
                with Group(name, str(number)):
                    pass
            told = [(what, member.name) for what, member in islice(watching, 80)]
        each = [[("joined", str(number)), ("left", str(number))] for number in range(40)]
        assert told == [change for changes in each for change in changes]
        assert next(watching).what == "left"

    def test_who_looks_too_late_is_told_who_is_gone(self, local, name):
        watching, early = Group(name).changes(PATIENCE), Group(name, "early")
        early.join()
        assert next(watching).what == "joined"
        early.leave()
        for number in range(200):
            with Group(name, str(number)):
                pass
        assert len(local.store.read(f"group:{name}").records) <= 2 * 76
        what, member = next(watching)
        assert (what, member.name) == ("gone", "early")
        told = [next(watching)]
        while told[-1][0] != "left" or told[-1].member.name != "199":
            told.append(next(watching))
        names = [str(number) for number in range(200 - len(told) // 2, 200)]
        assert len(names) >= 50
        assert [(what, member.name) for what, member in told] == [
            (what, name) for name in names for what in ("joined", "left")
        ]

    def test_crashes_that_nobody_sees_are_forgotten_in_time(self, local, name):
        for number in range(200):
            group = Group(name, str(number))
            group.join()
            (held,) = (key for key in local.store.read(f"group:{name}").records if key[:2] == "h/")
            local.store.apply(f"group:{name}", [Delete(held)])
            group.leave()
        assert len(local.store.read(f"group:{name}").records) <= 76
        assert list(Group(name).changes(0)) == []
        assert len(local.store.read(f"group:{name}").records) <= 2 * 76

    def test_updates_between_two_looks_are_one(self, local, name):
        group = Group(name, "one")
        group.join()
        watching = group.changes(PATIENCE)
        assert next(watching).member.data == {}
        for number in range(5):
            group.update({"n": number})
        what, member = next(watching)
        assert (what, member.data, member.token) == ("updated", {"n": 4}, group.token)
        group.update({"n": 5})
        group.leave()
        assert next(watching) == ("left", replace(member, data={"n": 5}))

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

    def test_one_who_was_removed_does_not_join_again_by_itself(self, brief, name, caplog):
        group, watching = Group(name, "one"), Group(name).changes(PATIENCE)
        token = group.join()
        member = next(watching).member
        assert group.remove(token)
        assert next(watching) == ("removed", member)
        eventually(lambda: "was removed, and does not join again" in caplog.text)
        assert not group.joined
        assert group.join() > token  # it may if it is told to
        assert group.joined

    def test_all_watchers_are_told_the_same(self, brief, name, watcher):
        """Members that come, go, are removed and vanish; watchers of which some come late."""
        dice, watchers = random.Random(name), [watcher() for _ in range(3)]
        eventually(lambda: all(one.watch._follower._seen for one in watchers))

        def live(number):
            for turn in range(12):
                group = Group(name, f"{number}.{turn}")
                token = group.join()
                end = dice.choice(["leave", "remove", "vanish"])
                if end == "remove":
                    group.remove(token)
                elif end == "vanish":
                    nonce = group._membership.lease.nonce
                    brief.store.apply(f"group:{name}", [Delete(f"h/{nonce}")])
                group.leave()

        for living in [in_thread(live, number) for number in range(4)]:
            assert living() is None
        eventually(lambda: all(len(one.changes) >= 2 * 48 for one in watchers))
        first, *others = watchers
        assert all(one.told == first.told for one in others)
        joined = [member for what, member in first.changes if what == "joined"]
        departed = [member for what, member in first.changes if what != "joined"]
        assert len({member.token for member in joined}) == len(joined) == 48
        assert {member.token for member in departed} == {member.token for member in joined}
        assert [member.token for member in joined] == sorted(member.token for member in joined)

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
            lambda: group.remove("1"),
            lambda: group.watch(None),
            lambda: group.changes("soon"),
        ):
            with pytest.raises((TypeError, ValueError)):
                call()
        assert [member.data for member in group.members()] == [{"a": 1}]


@pytest.mark.shared
@pytest.mark.faults
def test_watchers_go_on_through_outages_and_never_back(kind, proxy, name, watcher):
    """What has changed meanwhile is told in order, and nothing twice."""
    if proxy is None:
        return
    one, two = Group(name, "one"), Group(name, "two")
    answer(one.join)
    watchers = [watcher() for _ in range(2)]
    for each in watchers:
        each.wait_for(("joined", "one"))
    for outage in (proxy.refuse, proxy.cut, proxy.silence):
        outage()
        proxy.heal()
        answer(two.join)
        answer(two.leave)
    names = [("joined", "two"), ("left", "two")]
    for each in watchers:
        eventually(lambda: each.told.count(("left", "two")) == 3)  # noqa: B023
        assert [change for change in each.told if change[1] == "two"] == names * 3
    answer(one.leave)


def come_and_go(name, who):
    """As a child: be a member again and again, for a moment each time."""
    dice, turns = random.Random(who), 0
    while True:
        turns += 1
        with suppress(LockUnavailable), Group(name, f"{who}.{turns}") as group:
            with suppress(LockLost, LockUnavailable):
                group.update({"turn": turns})
            time.sleep(dice.random() * 0.05)
        write_line(turns)


@pytest.mark.shared
@pytest.mark.brief
@pytest.mark.slow
def test_a_storm_of_joins_kills_and_stops_is_told_the_same_to_all(
    child, kind, using, name, watcher
):
    """Each join and each departure once; at the end nobody is there."""
    dice, watchers = random.Random(name), [watcher() for _ in range(3)]
    with Group(name, "the first"):  # all begin to watch before the storm
        eventually(lambda: all(one.told for one in watchers))
    members = [child(come_and_go, name, f"{who}") for who in range(4)]
    for turn in range(8):
        for member in members:
            member.line()
        victim = dice.randrange(len(members))
        if turn % 2:
            stop(members[victim], kind)
            passed(0.5)
            members[victim].signal(signal.SIGCONT)
        else:
            members[victim].kill()
            members[victim] = child(come_and_go, name, f"{4 + turn}")
    for member in members:
        member.kill()
    eventually(lambda: Group(name).members() == ())

    def told_to(one):
        return [(what, member.token) for what, member in one.changes.copy() if what != "updated"]

    def all_gone(one):
        joined = [token for what, token in told_to(one) if what == "joined"]
        return len(told_to(one)) == 2 * len(joined)

    eventually(lambda: all(map(all_gone, watchers)))
    told, *others = map(told_to, watchers)
    assert others == [told, told]
    joined = [token for what, token in told if what == "joined"]
    assert len(set(joined)) == len(joined) > 8
    assert joined == sorted(joined)
    assert sorted(token for what, token in told if what != "joined") == joined
    assert {what for what, _ in told} >= {"joined", "left"}
