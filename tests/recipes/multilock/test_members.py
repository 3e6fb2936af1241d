"""What a MultiLock is made of: names, templates of names, locks and recipes that are like locks."""

import asyncio

import pytest
from django.core.exceptions import SynchronousOnlyOperation

from distlock import Lock, LockLost, LockTimeout
from distlock.recipes import MultiLock, RWLock, Semaphore
from tests.contract.actors import PATIENCE
from tests.recipes.multilock.users import Used


@pytest.mark.usefixtures("two_local")
class TestOtherKinds:
    """Semaphores and both sides of read/write locks are locks like others."""

    def test_all_or_none(self, name, actor, role, third):
        def parts(side):
            return Semaphore(name, 2, n=2, using="near"), getattr(RWLock(name), side)(), name

        reading, writing = (Used(actor(role), MultiLock(*parts(s))) for s in ("reader", "writer"))
        assert reading.do("acquire")
        assert set(reading.do("tokens")) == {
            ("default", name),
            ("default", name, "rwlock"),
            ("near", name, "semaphore"),
        }
        assert writing.do("acquire", blocking=False) is False
        assert reading.do("held")
        reading.do("release")
        assert writing.do("acquire", blocking=False)
        writing.do("verify")
        assert reading.do("acquire", blocking=False) is False
        writing.do("release")
        assert third.tries(name)
        assert not Semaphore(name, using="near").info().taken

    def test_seats_that_were_taken_before_stay_taken(self, name, actor, role, third):
        seat = Used(actor(role), Semaphore(name, 3))
        lock = Used(seat.actor, MultiLock(Semaphore(name, 3), f"{name}:z"))
        assert seat.do("acquire")
        assert lock.do("acquire")
        assert seat.do("info").taken == 2
        lock.do("release")
        assert seat.do("info").taken == 1
        third.take(f"{name}:z")
        assert lock.do("acquire", blocking=False) is False
        assert seat.do("info").taken == 1
        seat.do("release")
        assert seat.do("info").taken == 0

    def test_a_lost_seat_is_named(self, name, actor, role, third):
        seats = Semaphore(name, 2)
        lock = Used(actor(role), MultiLock(seats, f"{name}:z"))
        assert lock.do("acquire")
        assert seats.force_release(lock.do("tokens")["default", name, "semaphore"])
        with pytest.raises(LockLost, match=name):
            lock.do("verify")
        with pytest.raises(LockLost, match=name):
            lock.do("release")
        assert third.tries(f"{name}:z")

    def test_one_lock_is_refused_as_reader_and_writer(self, name):
        lock = RWLock(name)
        with pytest.raises(ValueError, match=f"names_or_locks has lock {name!r} on 'default' twic"):
            MultiLock(lock.reader(), lock.writer())

    def test_one_that_is_no_side_is_refused(self, name):
        with pytest.raises(TypeError, match=f"names and locks, not <RWLock {name!r} .*reader"):
            MultiLock(RWLock(name))

    def test_a_busy_semaphore_is_named(self, name, actor):
        seats, holder = Semaphore(name, 1), actor("thread")
        assert holder.call(seats.acquire).result(PATIENCE)
        with pytest.raises(LockTimeout, match=f"semaphore {name!r} on 'default'.*waited for 0.05"):
            MultiLock(seats, "z", timeout=0.05).__enter__()
        holder.call(seats.release).result(PATIENCE)


@pytest.mark.usefixtures("two_local")
class TestDecorating:
    def test_the_names_are_filled_in_for_each_call(self, both, name):
        both_of_them = MultiLock(name + ":{payer}", Lock(name + ":{payee}", using="near"))

        def held(payer, payee=7):
            return [Lock(f"{name}:{payer}").held, Lock(f"{name}:{payee}", using="near").held]

        @both_of_them
        def transfer(payer, payee=7):
            return held(payer, payee)

        @both_of_them
        async def atransfer(payer, payee=7):
            return held(payer, payee)

        chosen = atransfer if hasattr(both.actor, "task") else transfer
        assert both.actor.call(lambda: chosen(3)).result(PATIENCE) == [True, True]
        assert not Lock(f"{name}:3").locked()
        assert not Lock(f"{name}:7", using="near").locked()

    def test_two_names_may_turn_out_to_be_one(self, name):
        @MultiLock(name + ":{payer}", name + ":{payee}")
        def transfer(payer, payee):
            return Lock(f"{name}:{payer}").held

        assert transfer(1, 1)

    def test_calls_of_many_threads_share_no_state(self, name, actor):
        @MultiLock(name + ":{payer}", name + ":{payee}")
        def transfer(payer, payee):
            return Lock(f"{name}:{payer}").held and Lock(f"{name}:{payee}").held

        people = [actor("thread") for _ in range(4)]
        calls = [
            person.call(transfer, (turn + place) % 3, turn % 3)
            for place, person in enumerate(people)
            for turn in range(10)
        ]
        assert all(call.result(PATIENCE) for call in calls)

    def test_what_no_call_can_fill_in_is_refused(self):
        with pytest.raises(ValueError, match="mentions 'payee'"):

            @MultiLock("{payer}", "{payee}")
            def transfer(payer):
                pass


class TestArguments:
    @pytest.mark.parametrize(
        ("parts", "error", "message"),
        [
            ([], ValueError, r"names_or_locks must not be empty, got \(\)"),
            ([3], TypeError, "names_or_locks must be names and locks, not 3"),
            ([["a", "b"]], TypeError, r"names and locks, not \['a', 'b'\]"),
            ([""], ValueError, "name must not be empty, got ''"),
            (["a", "b\n"], ValueError, "'b"),
        ],
    )
    def test_what_is_no_lock_is_refused(self, parts, error, message):
        with pytest.raises(error, match=message):
            MultiLock(*parts)

    @pytest.mark.parametrize(
        ("options", "error"),
        [
            ({"timeout": -3}, ValueError),
            ({"on_busy": "later"}, ValueError),
            ({"lease": 0}, ValueError),
            ({"renew": "yes"}, TypeError),
            ({"description": 3}, TypeError),
            ({"on_lost": 3}, TypeError),
            ({"using": 3}, TypeError),
        ],
    )
    def test_wrong_options_are_refused_by_name(self, options, error):
        *_, argument = options
        with pytest.raises(error, match=argument):
            MultiLock("a", **options)

    @pytest.mark.parametrize(
        "options",
        [
            {"using": "near"},
            {"lease": 3},
            {"renew": False},
            {"description": "x"},
            {"on_lost": print},
        ],
    )
    def test_options_that_would_be_for_no_lock_are_refused(self, options):
        (argument,) = options
        with pytest.raises(ValueError, match=f"^{argument}="):
            MultiLock(Lock("a"), **options)

    def test_a_loss_that_would_not_be_told_is_refused(self):
        with pytest.raises(ValueError, match=r"^on_lost=.* give it to <Lock 'a'"):
            MultiLock(Lock("a"), "b", on_lost=print)

    def test_waiting_must_not_block_an_event_loop(self, loop, local):
        async def main():
            MultiLock("a").acquire()

        with pytest.raises(SynchronousOnlyOperation, match=r"MultiLock\.acquire\(\).*lock\.aacq"):
            asyncio.run(main())

    def test_it_says_what_it_is(self, local):
        lock = MultiLock("b", "a")
        assert repr(lock) == "<MultiLock 'a' using='default', 'b' using='default': not held>"
        with lock:
            assert repr(lock).endswith(": held>")
