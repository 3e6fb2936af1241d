"""What a process keeps of itself in a directory: it is there while it lives, and no longer.

Told with groups, whose members are nothing else. What has to come at a certain moment is told on
the store of one process, whose methods are wrapped for that.
"""

import gc
import os
import signal
import threading
from contextlib import suppress

import pytest

from distlock import LockLost, LockNotHeld, LockUnavailable, locks
from distlock.backends.store import Exists, Put
from distlock.concurrency.steps import run
from distlock.recipes import Group
from distlock.recipes.membership import Membership
from distlock.records.recipe_records import Plan
from distlock.runtime.renewal import RenewalSteps
from distlock.types.lease import Kind
from tests.children import read_line, write_line
from tests.contract.actors import PATIENCE
from tests.contract.forks import WAYS
from tests.contract.watch import Once, eventually
from tests.recipes.every_kind import RENEWED, pytest_generate_tests  # noqa: F401 - pytest calls it
from tests.recipes.test_seats_faults import answer, stop

#: seconds; much less than the lease of the backends that are not brief
SOON = 8.0


def names(group):
    return [member.name for member in group.members()]


def is_empty(group):
    return not group.members()


def joins(changes):
    return any(isinstance(change, Put) and change.key.startswith("h/") for change in changes)


def held_records(name):
    """Return the keys of the records that say that a member is there."""
    snapshot = locks["default"].store.read(f"{Kind.GROUP}:{name}")
    return [key for key in snapshot.records if key.startswith("h/")]


def end_sessions(backend, name):
    """Let the sessions end to which members of a group are bound."""
    records = backend.store.read(f"group:{name}").records.values()
    for session in {record.session for record in records} - {None}:
        backend.store.end_session(session)


def be_there(name):
    """As a child: be a member until told to end, and then end as a process does."""
    group = Group(name, "child")
    write_line(group.join())
    read_line()


def be_there_again(name):
    """As a child: be a member; once told to go on, say when it is one again."""
    group = Group(name, "child")
    token = group.join()
    write_line(token)
    read_line()
    eventually(lambda: group.joined and group.token > token)
    write_line(group.token)
    read_line()
    group.leave()


def fork_a_child(name, way):
    """As a child: join and fork; the child says what it is, and joins on its own."""
    group = Group(name, "parent")
    token = group.join()
    pid = WAYS[way]()
    if pid == 0:
        write_line(group.joined, group.leave())
        with suppress(LockNotHeld):
            group.update({})
            write_line("updated")
        with Group(name, "child"):
            write_line(sorted(names(group)))
        write_line(names(group))
        os._exit(0)
    os.waitpid(pid, 0)
    write_line(group.joined and group.token == token, names(group))


class TestProcesses:
    def test_two_objects_of_one_process_are_two_members(self, using, name):
        one, two = Group(name, "one"), Group(name, "two")
        one.join()
        two.join()
        assert names(one) == ["one", "two"]
        two.leave()
        assert names(one) == ["one"]
        assert one.joined
        one.leave()

    def test_a_join_that_is_carried_out_late_makes_no_member(self, using, name, monkeypatch):
        """Where a request can be under way for long: elsewhere it is carried out at once."""
        backend, kept = locks[using], []
        apply = backend.store.apply

        def keep_back(directory, *request):
            if directory != f"group:{name}":  # of another test, which is taken back by and by
                return apply(directory, *request)
            monkeypatch.setattr(backend.store, "apply", apply)
            kept.extend([directory, *request])
            raise LockUnavailable("no answer")

        monkeypatch.setattr(backend.store, "apply", keep_back)
        group = Group(name, using=using)
        with pytest.raises(LockUnavailable):
            group.join()
        eventually(lambda: not backend.shared.cleanup.pending)
        if backend.capabilities.late_requests:
            assert apply(*kept) is None
        assert is_empty(group)

    @pytest.mark.shared
    @pytest.mark.brief
    @pytest.mark.faults
    def test_who_ends_without_leaving_is_gone_within_a_lease(self, child, using, name):
        member, group = child(be_there, name), Group(name)
        member.line()
        member.tell("end")
        member.finish()
        eventually(lambda: is_empty(group))

    @pytest.mark.shared
    @pytest.mark.faults
    def test_the_child_of_a_fork_is_no_member(self, child, using, name, way):
        assert child(fork_a_child, name, way).finish() == [
            "False False",
            "['child', 'parent']",
            "['parent']",
            "True ['parent']",
        ]

    @pytest.mark.shared
    @pytest.mark.brief
    @pytest.mark.faults
    def test_one_who_was_stopped_is_gone_and_joins_again_as_a_new_member(
        self, child, kind, using, name
    ):
        """It knows that it was lost, and takes nothing away from what it is now."""
        member, group = child(be_there_again, name), Group(name)
        changes = group.changes(PATIENCE)
        token = int(member.line())
        assert next(changes).what == "joined"
        stop(member, kind)
        crashed = next(changes)
        assert (crashed.what, crashed.member.token) == ("crashed", token)
        member.tell("go on")
        member.signal(signal.SIGCONT)
        again = int(member.line())
        assert again > token
        joined = next(changes)
        assert (joined.what, joined.member.token) == ("joined", again)
        assert [one.token for one in group.members()] == [again]
        member.tell("leave")
        member.finish()
        assert next(changes) == ("left", joined.member)


@pytest.mark.shared
@pytest.mark.faults
class TestNetwork:
    def test_a_member_joins_again_after_an_outage_of_a_lease(
        self, request, kind, proxy, settings, name
    ):
        """kazoo's Party is created once, and is no member any more after its session has ended."""
        if proxy is None:
            return
        (entry,) = settings.DISTLOCK.values()
        if kind == "zookeeper":
            entry = {**entry, "OPTIONS": {**entry["OPTIONS"], "session_timeout": 4.0}}
        else:
            entry = {**entry, "LEASE": 3, "RENEW": RENEWED}
        settings.DISTLOCK = {"default": entry}
        group = Group(name, "member")
        token = answer(group.join)
        proxy.refuse()
        eventually(lambda: not group.joined)
        with pytest.raises(LockLost):
            _ = group.token
        proxy.heal()
        eventually(lambda: group.joined and group.token > token)
        tokens = [member.token for member in answer(group.members)]
        assert group.token in tokens
        eventually(lambda: [one.token for one in answer(group.members)] == [group.token])
        answer(group.leave)

    def test_lost_replies_leave_no_member_behind(self, kind, proxy, name):
        if proxy is None:
            return
        group = Group(name, "member")
        answer(group.members)
        for _ in range(3):
            lost = proxy.lose_reply()
            with suppress(LockUnavailable):
                group.join()
            assert kind == "zookeeper" or lost.wait(PATIENCE)
            proxy.heal()
            joined = group.joined
            eventually(lambda: len(answer(group.members)) == joined)  # noqa: B023
            answer(group.join)  # who is no member asks nobody when it leaves
            lost = proxy.lose_reply()
            with suppress(LockUnavailable):
                group.leave()
            assert kind == "zookeeper" or lost.wait(PATIENCE)
            proxy.heal()
            assert not group.joined
            eventually(lambda: answer(group.members) == ())


class TestOneProcess:
    """On the store of one process."""

    @pytest.fixture
    def kind(self):
        return "local"

    def test_a_reply_to_joining_that_was_lost_is_taken_back(self, local, wrapped, name):
        apply, group = wrapped("apply"), Group(name)

        def lose_the_reply(known, directory, changes, *rest):
            if joins(changes):
                apply.before = lambda *_: None
                assert apply.original(known, directory, changes, *rest)
                raise LockUnavailable("the reply was lost")

        apply.before = lose_the_reply
        with pytest.raises(LockUnavailable):
            group.join()
        assert not group.joined
        eventually(lambda: is_empty(group), SOON)
        assert group.join()
        assert group.leave()

    def test_what_was_certainly_not_asked_leaves_nothing_to_do(self, local, wrapped, name):
        apply, group = wrapped("apply"), Group(name)

        def refuse(*_):
            error = LockUnavailable("refused")
            error.maybe_applied = False
            raise error

        apply.before = refuse
        for _ in range(3):
            with pytest.raises(LockUnavailable):
                group.join()
        assert not local.shared.cleanup.pending
        assert not local.shared._requests.sessions  # it would grow with every attempt
        assert not held_records(name)

    def test_one_that_was_paused_while_it_was_due_is_renewed_when_it_goes_on(
        self, eager, name, monkeypatch
    ):
        member = Membership(Group(name), lambda _: Plan(members=[{}]))
        lease, add = run(member.joining()).lease, RenewalSteps.add

        def pause(steps, backend, apart, batch):
            if all(hold.lease.nonce != lease.nonce for hold in batch):
                add(steps, backend, apart, batch)
                return
            monkeypatch.setattr(RenewalSteps, "add", add)
            member.pause_renewal()
            steps._renew(backend, batch)
            member.resume_renewal()

        monkeypatch.setattr(RenewalSteps, "add", pause)
        eventually(lambda: RenewalSteps.add is add and member.lease.deadline > lease.deadline)
        assert run(member.leaving())

    def test_one_whose_object_is_garbage_is_gone_within_a_lease(self, brief, name):
        """The session of the process goes on for another one."""
        kept, dropped = Group(name, "kept"), Group(name, "dropped")
        kept.join()
        dropped.join()
        del dropped
        gc.collect()
        eventually(lambda: names(kept) == ["kept"])
        assert kept.joined

    def test_the_loss_is_told_before_others_see_it(self, eager, name):
        """And then it joins again by itself."""
        group = Group(name, "member")
        token = group.join()
        end_sessions(eager, name)
        eventually(lambda: group.joined and group.token > token)
        assert [member.token for member in group.members()] == [group.token]

    def test_it_joins_again_however_often_that_fails(self, eager, wrapped, name):
        """Also if no thread, or no memory, can be had for a time."""
        group, apply = Group(name, "member"), wrapped("apply")
        token, failures = group.join(), []

        def fail(known, directory, changes, *_):
            if joins(changes) and len(failures) < 3:
                failures.append(changes)
                raise [RuntimeError("can't start new thread"), MemoryError(), LockUnavailable()][
                    len(failures) - 1
                ]

        apply.before = fail
        end_sessions(eager, name)
        eventually(lambda: group.joined and group.token > token)
        assert len(failures) == 3
        eventually(lambda: len(held_records(name)) == 1)

    def test_it_joins_again_where_no_thread_can_be_had(self, eager, refuse, name):
        group = Group(name, "member")
        token = group.join()
        refuse("distlock-rejoin", 1)
        end_sessions(eager, name)
        eventually(lambda: group.joined and group.token > token)

    def test_one_who_leaves_while_it_is_lost_does_not_come_back(self, eager, wrapped, name):
        group, apply = Group(name, "member"), wrapped("apply")
        group.join()
        tried = threading.Event()

        def fail(known, directory, changes, *_):
            if joins(changes):
                tried.set()
                raise LockUnavailable("not now")

        apply.before = fail
        end_sessions(eager, name)
        assert tried.wait(PATIENCE)
        assert group.leave() is False
        apply.before = lambda *_: None
        eventually(lambda: not [one for one in threading.enumerate() if "rejoin" in one.name])
        eventually(lambda: is_empty(group))
        assert not group.joined

    def test_one_who_leaves_in_the_middle_of_joining_again_has_left(self, eager, wrapped, name):
        """The session of the process goes on for another one."""
        group, apply, left = Group(name, "member"), wrapped("apply"), []

        def leave(known, directory, changes, *_):
            if joins(changes) and directory == f"group:{name}":
                apply.before = lambda *_: None
                left.append(group.leave())

        with Group(f"{name}:other"):
            group.join()
            apply.before = leave
            end_sessions(eager, name)
            eventually(lambda: left == [False])
            eventually(lambda: not held_records(name), SOON)
            assert not group.joined

    @pytest.mark.parametrize("late", ["before", "after"])
    def test_a_late_update_does_not_undo_a_later_one(self, local, wrapped, name, late):
        """Its answer was lost; it is carried out before the next one, or after it."""
        member = Membership(Group(name), lambda _: Plan(members=[{"n": 0}]))
        token, apply, kept = run(member.joining()).lease.token, wrapped("apply"), []

        def delay(known, *args):
            apply.before = lambda *_: None
            kept.append((known, *args))
            raise LockUnavailable("no answer")

        apply.before = delay
        with pytest.raises(LockUnavailable):
            run(member.updating({"n": 1}))
        if late == "before":
            assert apply.original(*kept[0])
        assert run(member.updating({"n": 2})) > token
        if late == "after":
            assert apply.original(*kept[0]) is None
        (record,) = local.store.read(f"group:{name}").records.values()
        assert record.value["data"] == {"n": 2}
        assert run(member.updating({"n": 3}, Plan(conditions=[Exists("nothing")]))) is None
        assert run(member.updating({"n": 4})) > record.revision
        assert run(member.leaving())
        with pytest.raises(LockNotHeld):
            run(member.updating({"n": 5}))

    def test_one_who_leaves_just_when_it_has_joined_again_has_left(self, eager, name):
        class Losing(Group):
            """A member of it joins again in the middle of leaving."""

            loses = False

            @property
            def _backend(self):
                if self.loses:
                    self.loses = False
                    end_sessions(eager, name)
                    eventually(lambda: member.held and member.check().token > token)
                return super()._backend

        member = Membership(group := Losing(name), lambda _: Plan(members=[{}]), rejoins=True)
        token = run(member.joining()).lease.token
        group.loses = True
        assert run(member.leaving()) is True
        assert not member.held
        assert held_records(name) == []

    def test_without_rejoining_it_can_be_joined_again(self, eager, name):
        told = Once()
        member = Membership(Group(name), lambda _: Plan(members=[{}]), on_lost=told)
        lease = run(member.joining()).lease
        assert run(member.joining()).lease is None
        end_sessions(eager, name)
        assert told.wait()[0].nonce == lease.nonce
        assert not member.held
        with pytest.raises(LockLost):
            member.check()
        again = run(member.joining()).lease
        assert again.token > lease.token
        assert member.check().token == again.token
