"""Tasks that are cancelled, and interrupts, while a process joins or leaves: no record stays."""

import asyncio
import gc
import threading
from contextlib import suppress

import pytest

from distlock import LockUnavailable
from distlock.recipes import Group
from tests.contract.actors import PATIENCE
from tests.contract.watch import eventually
from tests.core.interrupting import interrupted
from tests.recipes.test_membership import SOON, held_records, joins
from tests.recipes.wrapping import cancel_while_asking


class TestTasks:
    """On the store of one process."""

    def test_a_task_that_is_cancelled_while_it_joins_is_no_member(self, local, wrapped, name):
        """The request goes on, on another thread, after the claim has been cancelled."""
        apply, group = wrapped("apply"), Group(name)
        cancel_while_asking(apply, joins, group.ajoin, local)
        eventually(lambda: any(joins(call[1]) for call in apply.calls))
        eventually(lambda: len(apply.calls) >= 3)
        eventually(lambda: not held_records(name))
        assert not group.joined

    def test_a_task_that_is_cancelled_while_it_leaves_has_left(self, local, wrapped, name):
        apply, asked, go_on = wrapped("apply"), threading.Event(), threading.Event()
        group = Group(name)
        group.join()

        def hold_back(*_):
            asked.set()
            go_on.wait(PATIENCE)

        async def cancelled():
            task = asyncio.create_task(group.aleave())
            await asyncio.to_thread(asked.wait, PATIENCE)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            go_on.set()

        apply.before = hold_back
        asyncio.run(cancelled())
        eventually(lambda: not held_records(name))
        assert not group.joined
        (_, left) = [*Group(name).changes(0)] or (None, None)
        assert left is None

    def test_a_coroutine_that_is_closed_leaves_no_member(self, local, name):
        group = Group(name)

        async def be_in():
            async with group:
                await asyncio.Future()

        loop = asyncio.new_event_loop()
        task = loop.create_task(be_in())
        while not group.joined:
            loop.run_until_complete(asyncio.sleep(0.01))
        loop.close()
        del task
        gc.collect()
        eventually(lambda: not held_records(name))
        assert not group.joined


class TestInterrupts:
    """At each moment at which Python would deliver a signal."""

    @pytest.fixture
    def kind(self):
        return "local"

    def test_while_joining(self, local, name):
        groups, moment = [], 0
        while True:
            moment += 1
            group = Group(f"{name}:{moment}")
            groups.append(group)
            if interrupted(group.join, moment) is None:
                break
            if group.joined:  # it came after that
                assert len(held_records(group.name)) == 1
                group.leave()
        assert moment > 50
        group.leave()
        for group in groups:
            eventually(lambda: not held_records(group.name), SOON)  # noqa: B023

    def test_while_leaving(self, local, name):
        groups, moment = [], 0
        while True:
            moment += 1
            group = Group(f"{name}:{moment}")
            groups.append(group)
            group.join()
            if interrupted(group.leave, moment) is None:
                break
            with suppress(LockUnavailable):
                group.leave()  # what the interrupt came before
            assert not group.joined
        assert moment > 30
        for group in groups:
            eventually(lambda: not held_records(group.name), SOON)  # noqa: B023
