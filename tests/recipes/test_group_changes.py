"""What is told of a group to all who watch it: on backends of all kinds."""

import random
import signal
import time
from contextlib import ExitStack, suppress
from dataclasses import replace
from itertools import islice
from threading import Barrier

import pytest

from distlock import LockLost, LockUnavailable, locks
from distlock.backends.store import Delete, Put
from distlock.recipes import Group
from distlock.recipes import group as group_module
from tests.children import write_line
from tests.contract.actors import PATIENCE
from tests.contract.watch import eventually, passed
from tests.recipes.every_kind import pytest_generate_tests  # noqa: F401 - pytest calls it
from tests.recipes.test_group import be_there
from tests.recipes.test_seats_faults import answer, stop
from tests.recipes.wrapping import in_thread


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


def test_many_that_crash_at_once_are_told(using, name, watcher):
    """More than a server takes as parts of one change."""
    group, told, store = Group(name, "stays"), watcher(), locks[using].store
    group.join()
    told.wait_for(("joined", "stays"))
    (said,) = (one for one in store.read(f"group:{name}").records.values() if one.key[:2] == "m/")
    numbers = sorted(map(str, range(70)))
    gone = [Put(f"m/{number}", {**said.value, "member": number}) for number in numbers]
    store.apply(f"group:{name}", gone)
    eventually(lambda: len(told.changes) == 1 + 2 * len(numbers))
    for what in ("joined", "crashed"):
        assert sorted(one for how, one in told.told[1:] if how == what) == numbers


class TestOneProcess:
    """On the store of one process: what it costs, and what is told to who looks late."""

    @pytest.fixture
    def kind(self):
        return "local"

    @pytest.mark.usefixtures("only_hints")
    def test_a_change_costs_32_watchers_a_look_each(self, local, name, watcher, group_requests):
        watchers = [watcher() for _ in range(32)]
        eventually(lambda: all(one.watch._follower._seen for one in watchers))
        group_requests()
        group = Group(name, "one")
        group.join()
        for one in watchers:
            one.wait_for(("joined", "one"))
        counted = group_requests()
        assert counted["apply"] == 1
        assert counted["read"] <= 1 + 32
        (held,) = [key for key in local.store.read(f"group:{name}").records if key[:2] == "h/"]
        group_requests()
        local.store.apply(f"group:{name}", [Delete(held)])
        for one in watchers:
            eventually(lambda: ("crashed", "one") in one.told)  # noqa: B023
        counted = group_requests()
        assert counted["apply"] <= 1 + 32  # one of them notes it
        assert counted["read"] <= 2 * 32

    def test_two_who_find_a_crash_at_the_same_moment_note_it_once(
        self, local, wrapped, name, watcher
    ):
        group, both, apply, noted = Group(name, "one"), Barrier(2), wrapped("apply"), []
        group.join()
        watchers = [watcher(), watcher()]
        for one in watchers:
            one.wait_for(("joined", "one"))

        def wait_for_the_other(known, directory, changes, *rest):
            if any(isinstance(change, Put) and "went" in change.value for change in changes):
                both.wait(PATIENCE)
                noted.append(apply.original(known, directory, changes, *rest))

        (held,) = [key for key in local.store.read(f"group:{name}").records if key[:2] == "h/"]
        apply.before = wait_for_the_other
        local.store.apply(f"group:{name}", [Delete(held)])
        for one in watchers:
            one.wait_for(("joined", "one"), ("crashed", "one"))
        assert len(noted) == 2
        assert None in noted
        assert any(noted)

    def test_who_looks_late_is_told_all_that_is_kept(self, local, name):
        """Those that both came and went meanwhile, too."""
        watching = Group(name).changes(10 * PATIENCE)
        with Group(name, "stays"):
            assert next(watching).what == "joined"
            for number in range(40):
                with Group(name, str(number)):
                    pass
            told = [(what, member.name) for what, member in islice(watching, 80)]
        each = [[("joined", str(number)), ("left", str(number))] for number in range(40)]
        assert told == [change for changes in each for change in changes]
        assert next(watching).what == "left"

    def test_who_looks_too_late_is_told_that_those_it_knew_crashed(self, local, name):
        watching, early = Group(name).changes(10 * PATIENCE), Group(name, "early")
        early.join()
        assert next(watching).what == "joined"
        early.leave()
        for number in range(200):
            with Group(name, str(number)):
                pass
        assert len(local.store.read(f"group:{name}").records) <= 51
        what, member = next(watching)
        assert (what, member.name) == ("crashed", "early")
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
        assert len(local.store.read(f"group:{name}").records) <= 51
        assert list(Group(name).changes(0)) == []
        assert len(local.store.read(f"group:{name}").records) <= 51

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

    def test_all_watchers_are_told_the_same(self, local, name, watcher):
        """Members that come, go and vanish."""
        dice, watchers = random.Random(name), [watcher() for _ in range(3)]
        eventually(lambda: all(one.watch._follower._seen for one in watchers))

        def live(number):
            for turn in range(12):
                group = Group(name, f"{number}.{turn}")
                group.join()
                if dice.choice(["leave", "vanish"]) == "vanish":
                    nonce = group._membership.lease.nonce
                    local.store.apply(f"group:{name}", [Delete(f"h/{nonce}")])
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
    tokens = []  # of the joins that were answered; another one may have been carried out, too
    for outage in (proxy.refuse, proxy.cut, proxy.silence):
        outage()
        proxy.heal()
        tokens.append(answer(two.join))
        answer(two.leave)

    def of_two(watcher):
        changes = watcher.changes.copy()
        return [(what, member.token) for what, member in changes if member.token in tokens]

    expected = [(what, token) for token in tokens for what in ("joined", "left")]
    for each in watchers:
        eventually(lambda: len(of_two(each)) >= len(expected))  # noqa: B023
        assert of_two(each) == expected
        assert len(set(each.changes)) == len(each.changes)
    answer(one.leave)


def come_and_go(name, who):
    """As a child: be a member again and again, for a moment each time."""
    # Those who watch may stand still while there are more departures than are usually kept.
    group_module._KEPT = 10_000
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

    def are_told_the_same():
        told, *others = map(told_to, watchers)
        return others == [told, told] and told

    def all_have_left():
        told = are_told_the_same()
        return told and len(told) == 2 * sum(what == "joined" for what, _ in told) and told

    told = eventually(all_have_left)
    joined = [token for what, token in told if what == "joined"]
    assert len(set(joined)) == len(joined) > 8
    assert joined == sorted(joined)
    assert sorted(token for what, token in told if what != "joined") == joined
    assert {what for what, _ in told} >= {"joined", "left"}
