"""MultiLock: all of its locks or none, whatever order they are given in, on any mix of backends."""

from contextlib import ExitStack

import pytest
from django.db import transaction

from distlock import (
    Lock,
    LockBusy,
    LockDeadlock,
    LockLost,
    LockNotHeld,
    LockTimeout,
    LockUnavailable,
    ReleasedInTransaction,
    locks,
)
from distlock.activity import activity
from distlock.recipes import MultiLock, RWLock, Semaphore
from distlock.signals import lock_released
from tests.contract.actors import PATIENCE, answered
from tests.contract.watch import Once, eventually, in_line, passed, steadily, waits
from tests.recipes.multilock.users import Used, is_free, lose, take


@pytest.mark.usefixtures("mixed")
class TestMixed:
    def test_all_are_held_until_they_are_left(self, both, first, second, third):
        assert both.do("acquire")
        assert both.do("held")
        assert [info.name for info in both.do("info")] == [first.name, second.name]
        assert both.do("locked")
        assert not third.tries(first.name)
        assert not third.tries(second.name, using="near")
        both.do("verify")
        both.do("release")
        assert not both.do("held")
        assert is_free(third, first)
        assert is_free(third, second)

    @pytest.mark.parametrize("busy", [0, 1], ids=["first", "second"])
    def test_none_is_held_if_one_is_busy(self, both, first, second, third, actor, busy):
        taken, other = (first, second) if busy == 0 else (second, first)
        take(third, taken)
        assert both.do("acquire", blocking=False) is False
        assert answered(lambda: both.do("acquire", timeout=0.05)) is False
        assert is_free(actor("thread"), other)
        with pytest.raises(LockNotHeld):
            both.do("check")

    def test_who_finds_one_busy_does_without(self, both, first, second, third):
        held = take(third, second)
        ran = []
        skipped = MultiLock(first, second, on_busy="skip", busy_result="later")(ran.append)
        assert skipped(1) == "later"
        with MultiLock(first, second).attempt() as acquired:
            assert not acquired
        with pytest.raises(TypeError, match="on_busy='skip'"):
            MultiLock(first, second, on_busy="skip").__enter__()
        with pytest.raises(LockBusy) as caught:
            MultiLock(first, second, on_busy="raise").__enter__()
        assert caught.value.holder is None or caught.value.holder.token == held.token
        held.release()
        with MultiLock(first, second, timeout=PATIENCE).attempt() as acquired:
            assert acquired and first.held and second.held
        assert is_free(third, first)

    def test_who_waits_gets_all(self, both, second, third):
        held = take(third, second)
        waiting = both.start("acquire")
        assert waits(waiting)
        held.release()
        assert waiting.result(PATIENCE) is True
        both.do("verify")

    def test_semaphores_and_read_write_locks_are_locks_like_others(self, name, actor, role, third):
        seats, rows = Semaphore(name, 2), RWLock(name)
        lock = Used(actor(role), MultiLock(seats, rows.writer(), name, Lock(name, using="near")))
        reading = third.call(rows.reader().acquire)
        assert reading.result(PATIENCE)
        assert lock.do("acquire", blocking=False) is False
        assert Used(third, seats).do("info").taken == 0
        third.call(rows.reader().release).result(PATIENCE)
        assert lock.do("acquire", timeout=PATIENCE)
        lock.do("verify")
        assert [len(info.holders) for info in lock.do("info")] == [1, 1, 1, 1]
        lock.do("release")
        assert [len(info.holders) for info in lock.do("info")] == [0, 0, 0, 0]

    @pytest.mark.parametrize("lost", [0, 1], ids=["first", "second"])
    def test_a_lost_one_is_named_and_the_others_are_left(self, both, first, second, third, lost):
        gone, other = (first, second) if lost == 0 else (second, first)
        assert both.do("acquire")
        lose(gone)
        with pytest.raises(LockLost, match=gone.name):
            both.do("verify")
        assert both.do("held") is False
        with pytest.raises(LockLost, match=gone.name):
            both.do("check")
        with pytest.raises(LockLost, match=gone.name):
            both.do("release")
        assert is_free(third, gone)
        assert is_free(third, other)

    def test_one_that_cannot_be_left_keeps_none_of_the_others(
        self, both, first, second, third, monkeypatch
    ):
        def fail(*args, **kwargs):
            raise LockUnavailable("not now")

        assert both.do("acquire")
        with monkeypatch.context() as patch:
            patch.setattr(locks["near"], "release", fail)
            with pytest.raises(LockUnavailable, match="not now"):
                both.do("release")
        assert is_free(third, first)
        assert is_free(third, second)  # later, by the clean-up


@pytest.mark.usefixtures("two_local")
class TestTaking:
    def test_the_order_is_that_of_alias_and_name(self, name, actor, role, sent_events):
        names = [f"{name}:{letter}" for letter in "bca"]
        lock = MultiLock(*names, Lock(f"{name}:0", using="near"))
        with lock:
            pass
        expected = [
            ("default", f"{name}:a"),
            ("default", f"{name}:b"),
            ("default", f"{name}:c"),
            ("near", f"{name}:0"),
        ]
        for word, places in (("acquired", expected), ("released", expected[::-1])):
            mine = [e for e in sent_events if e[1].startswith(name)]
            assert [(e[3], e[1]) for e in mine if e[0] == word] == places

    def test_a_lock_is_entered_again(self, both, first, third):
        def again(entered):
            return entered.held, third.tries(first.name)

        assert both.do("acquire")
        assert both.body(again) == (True, False)
        assert both.do("held")
        both.do("release")
        assert third.tries(first.name)

    def test_what_was_held_before_is_held_after_a_failure(self, both, first, second, third):
        mine = Used(both.actor, first)
        assert mine.do("acquire")
        held = take(third, second)
        assert both.do("acquire", blocking=False) is False
        mine.do("verify")
        held.release()
        assert both.do("acquire")
        both.do("release")
        mine.do("verify")
        mine.do("release")
        assert third.tries(first.name)

    def test_a_name_given_twice_is_one_lock(self, name, third):
        with MultiLock(name, name) as lock:
            assert list(lock.tokens) == [("default", name)]
        assert third.tries(name)

    def test_a_lock_object_of_a_lock_given_twice_is_refused(self, name):
        for other in (name, Lock(name)):
            with pytest.raises(ValueError, match=f"names_or_locks has lock {name!r} on 'default'"):
                MultiLock(Lock(name), other)
        MultiLock(Lock(name), Lock(name, using="near"))

    def test_the_time_limit_is_one_for_all(self, name):
        class Slow(Lock):
            def acquire(self, blocking=None, timeout=None):
                limits.append((blocking, timeout))
                passed(0.05)
                return super().acquire(blocking, timeout)

        limits = []
        lock = MultiLock(*[Slow(f"{name}:{number}", timeout=1) for number in range(3)], timeout=60)
        with lock:
            pass
        waiting = [blocking for blocking, _ in limits]
        assert waiting == [True] * 3
        seconds = [timeout for _, timeout in limits]
        assert 60 >= seconds[0] > seconds[1] + 0.04 > seconds[2] + 0.08

    def test_what_the_locks_say_about_waiting_does_not_count(self, both, name, third):
        held = take(third, Lock(name))
        lock = Used(both.actor, MultiLock(Lock(name, on_busy="raise")))
        waiting = lock.start("acquire")
        assert waits(waiting)
        held.release()
        assert waiting.result(PATIENCE)

    def test_a_busy_lock_is_named(self, both, first, second, third):
        take(third, second)
        both.lock = MultiLock(second, first, timeout=0.05)
        with pytest.raises(LockTimeout, match=rf"{second.name}' on 'near' is held by .*0\.05 s"):
            both.body(pytest.fail)

    def test_the_busy_lock_is_named_though_another_one_was_busy_for_others_since(
        self, both, first, second, third, actor
    ):
        """They ask for the same MultiLock while the lock that was taken is left."""
        other, names = actor("thread"), []

        def ask(lease, **kwargs):
            if lease.name == first.name and not names:
                names.append(lease.name)
                take(other, first)
                assert not actor("thread").call(multi.acquire, False).result(PATIENCE)

        multi = both.lock = MultiLock(second, first, on_busy="raise")
        take(third, second)
        lock_released.connect(ask)
        try:
            with pytest.raises(LockBusy, match=rf"lock '{second.name}' on 'near' is held by"):
                both.body(pytest.fail)
        finally:
            lock_released.disconnect(ask)
        assert names

    def test_an_error_in_the_middle_leaves_what_was_taken(
        self, both, first, second, third, monkeypatch
    ):
        def fail(*args, **kwargs):
            raise LockUnavailable("not now")

        with monkeypatch.context() as patch:
            for method in ("enqueue", "try_acquire"):
                patch.setattr(locks["near"], method, fail)
            with pytest.raises(LockUnavailable, match="not now"):
                both.do("acquire")
        assert is_free(third, first)
        assert is_free(third, second)

    def test_a_deadlock_in_the_middle_leaves_what_was_taken(self, name, actor):
        """One that holds a lock already when it asks for others: no order can help."""
        one, other = actor("thread"), actor("thread")
        names = [f"{name}:{number}" for number in range(3)]
        last, middle = one.take(names[2]), other.take(names[1])
        waiting = one.lock(names[1]).start("acquire")
        eventually(lambda: in_line("default", names[1]) == 2)
        with pytest.raises(LockDeadlock, match=names[2]):
            Used(other, MultiLock(names[0], names[2])).do("acquire")
        assert actor("thread").tries(names[0])
        middle.release()
        assert waiting.result(PATIENCE)
        last.release()


@pytest.mark.usefixtures("two_local")
class TestLosing:
    def test_those_taken_first_are_renewed_while_another_is_waited_for(self, both, name, third):
        def attempt(lease):
            names = f"{name}:{lease}:a", f"{name}:{lease}:b"
            held = third.take(names[1])
            lock = Used(both.actor, MultiLock(*names, lease=lease))
            waiting = lock.start("acquire")
            assert waits(waiting)
            passed(2 * lease)
            held.release()
            assert waiting.result(PATIENCE)
            lock.do("verify")

        steadily(attempt, 0.3, 1, 3)

    def test_one_that_is_lost_while_another_is_waited_for(self, both, first, second, third):
        held = take(third, second)
        waiting = both.start("acquire")
        eventually(lambda: in_line("near", second.name) == 2)
        lose(first)
        held.release()
        with pytest.raises(LockLost, match=first.name) as caught:
            waiting.result(PATIENCE)
        assert not hasattr(caught.value, "__notes__")
        assert both.do("held") is False
        assert is_free(third, first)
        assert is_free(third, second)

    def test_a_lease_that_ends_while_another_is_waited_for(self, both, name, third):
        def attempt(lease):
            names = f"{name}:{lease}:a", f"{name}:{lease}:b"
            held = third.take(names[1])
            lock = Used(both.actor, MultiLock(*names, lease=lease, renew=False))
            waiting = lock.start("acquire")
            # It is told at once if the first one has ended before it waits.
            eventually(lambda: in_line("default", names[1]) == 2 or waiting.done())
            eventually(lambda: third.tries(names[0]))
            held.release()
            with pytest.raises(LockLost, match=names[0]):
                waiting.result(PATIENCE)
            for each in names:
                assert is_free(third, Lock(each))

        steadily(attempt, 0.2, 3)

    def test_on_lost_is_called_once_for_each(self, both, name):
        names = f"{name}:a", f"{name}:b", f"{name}:c"
        called = Once()
        lock = Used(both.actor, MultiLock(*names, on_lost=called))
        assert lock.do("acquire")
        tokens = lock.do("tokens")
        for each in names[:2]:
            lose(Lock(each))
        eventually(lambda: len(called.calls) == 2)
        assert {lease.token for (lease,) in called.calls} == {
            tokens["default", each] for each in names[:2]
        }
        with pytest.raises(LockLost):
            lock.do("release")
        assert len(called.calls) == 2

    def test_tokens_are_refused_after_a_loss(self, both, second):
        assert both.do("acquire")
        assert both.do("tokens")["near", second.name] == second.info().token
        assert 0 < both.do("remaining") <= 30
        lose(second)
        for member in ("tokens", "remaining"):
            with pytest.raises(LockLost, match=second.name):
                both.do(member)

    def test_a_backend_that_does_not_answer_hides_no_loss(self, both, second, monkeypatch):
        def fail(*args, **kwargs):
            raise LockUnavailable("not now")

        assert both.do("acquire")
        monkeypatch.setattr(locks["default"], "verify", fail)
        with pytest.raises(LockUnavailable):
            both.do("verify")
        lose(second)
        with pytest.raises(LockLost, match=second.name) as caught:
            both.do("verify")
        assert "not now" in caught.value.__notes__[0]


@pytest.mark.usefixtures("two_local")
class TestLeaving:
    def test_an_error_of_the_body_is_what_the_caller_sees(self, both, first, second, third):
        def body(entered):
            lose(first)
            lose(second)
            raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError) as caught:
            both.body(body)
        notes = "\n".join(caught.value.__notes__)
        assert first.name in notes
        assert second.name in notes
        assert third.tries(first.name)

    def test_a_loss_is_told_at_the_end_of_the_body(self, both, first, second, third):
        with pytest.raises(LockLost, match=second.name):
            both.body(lambda entered: lose(second))
        assert third.tries(first.name)

    def test_no_error_of_leaving_hides_another(self, both, first, second, monkeypatch):
        def fail(*args, **kwargs):
            raise LockUnavailable("not now")

        assert both.do("acquire")
        lose(first)
        monkeypatch.setattr(locks["near"], "release", fail)
        with pytest.raises(LockLost, match=first.name) as caught:
            both.do("release")
        assert "not now" in caught.value.__notes__[0]

    def test_all_that_are_held_are_left_although_one_is_not(self, both, first, second, third):
        assert both.do("acquire")
        Used(both.actor, second).do("release")
        with pytest.raises(LockNotHeld, match=second.name):
            both.do("release")
        assert third.tries(first.name)
        with pytest.raises(LockNotHeld):
            both.do("release")

    @pytest.mark.django_db(transaction=True)
    def test_leaving_inside_an_open_transaction_warns(self, name):
        lock = MultiLock(f"{name}:a", f"{name}:b")
        with transaction.atomic(), pytest.warns(ReleasedInTransaction) as caught, lock:
            pass
        ours = [one for one in caught if one.category is ReleasedInTransaction]
        assert [warning.filename for warning in ours] == [__file__] * 2

    @pytest.mark.django_db(transaction=True)
    @pytest.mark.parametrize("changes", ["begins", "ends"])
    def test_a_piece_of_work_that_changes_inside_a_block_frees_nothing_before_the_commit(
        self, name, third, changes
    ):
        def leave(lock, look=lambda: None):
            with transaction.atomic(), ExitStack() as before, ExitStack() as inside:
                if changes == "ends":
                    before.enter_context(activity("a job"))
                with lock:
                    before.close()
                    if changes == "begins":
                        inside.enter_context(activity("a job"))
                look()

        def is_kept():
            assert not any(third.tries(part) for part in parts)
            assert Semaphore(name).info().taken == 1

        parts = f"{name}:a", f"{name}:b"
        keeping = [Lock(part, release="commit") for part in parts]
        leave(MultiLock(*keeping, Semaphore(name, 1, release="commit")), is_kept)
        assert all(third.tries(part) for part in parts)
        assert Semaphore(name).info().taken == 0
        with pytest.warns(ReleasedInTransaction) as caught:
            leave(MultiLock(f"{name}:c", f"{name}:d"))
        assert len([one for one in caught if one.category is ReleasedInTransaction]) == 2

    def test_a_generator_that_is_closed_in_another_thread_leaves_all(self, name, actor, third):
        names = f"{name}:a", f"{name}:b"

        def rows():
            with MultiLock(*names) as lock:
                yield lock.tokens

        abandoned = rows()
        actor("thread").call(next, abandoned).result(PATIENCE)
        assert not any(third.tries(each) for each in names)
        actor("thread").call(abandoned.close).result(PATIENCE)
        assert all(is_free(third, Lock(each)) for each in names)

    def test_a_generator_that_goes_on_in_another_thread_leaves_all(self, name, actor, third):
        names = f"{name}:a", f"{name}:b"

        def rows():
            with MultiLock(*names):
                yield 1

        going_on = rows()
        actor("thread").call(next, going_on).result(PATIENCE)
        assert actor("thread").call(list, going_on).result(PATIENCE) == []
        assert all(third.tries(each) for each in names)

    def test_a_named_owners_locks_are_left_in_another_thread(self, name, actor, third):
        lock = MultiLock(Lock(f"{name}:a", owner=name), Lock(f"{name}:b", owner=name))
        assert actor("thread").call(lock.acquire).result(PATIENCE)
        with pytest.raises(LockBusy):
            third.call(MultiLock(f"{name}:a", on_busy="raise").__enter__).result(PATIENCE)
        actor("thread").call(lock.release).result(PATIENCE)
        assert third.tries(f"{name}:a")
        assert third.tries(f"{name}:b")
