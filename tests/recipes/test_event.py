"""Event: one sets it, all others see it, on every backend."""

import asyncio
from concurrent.futures import ThreadPoolExecutor

import pytest

from distlock import locks
from distlock.recipes import Event
from distlock.records.shared_backend import sweep_every_kind
from tests.contract.actors import PATIENCE
from tests.recipes.every_kind import pytest_generate_tests  # noqa: F401 - pytest calls it
from tests.recipes.wrapping import in_thread


@pytest.fixture
def event(using, name):
    return Event(name, using=using)


def set_event(using, name):
    Event(name, using=using).set()


def test_it_is_set_and_cleared(event):
    assert not event.is_set()
    event.set()
    event.set()
    assert event.is_set()
    assert event.wait(0)
    event.clear()
    assert not event.is_set()
    assert not event.wait(0)


def test_it_outlives_who_has_set_it_and_a_sweep(event, actor, other, using, name):
    actor(other).call(set_event, using, name).result(PATIENCE)
    sweep_every_kind(locks[using])
    assert event.is_set()
    info = event.info()
    assert info.by
    assert info.token


def test_all_who_wait_are_woken(event, using, name):
    with ThreadPoolExecutor(8) as threads:
        there = [threads.submit(Event(name, using=using).wait, PATIENCE) for _ in range(8)]
        event.set()
        assert all(future.result(PATIENCE) for future in there)


def test_who_waits_does_not_miss_one_that_is_cleared_at_once(event, using, name, monkeypatch):
    """Both changes come before the waiter looks again."""
    store = locks[using].store
    watch, watched = store.watch, []

    def watch_late(directory, *args):
        if directory == f"event:{name}" and not watched:
            watched.append(True)
            in_thread(lambda: (event.set(), event.clear()))()
        return watch(directory, *args)

    monkeypatch.setattr(store, "watch", watch_late)
    assert Event(name, using=using).wait(PATIENCE)
    assert not event.is_set()


def test_tasks_wait(using, name):
    async def both():
        event = Event(name, using=using)
        waiting = asyncio.create_task(event.await_(PATIENCE))
        await event.aset()
        return await waiting, await event.ais_set()

    assert asyncio.run(both()) == (True, True)


@pytest.mark.usefixtures("only_hints")
def test_waiters_ask_once_for_each_change(event, using, name, monkeypatch):
    store, looks = locks[using].store, []
    read = store.read

    def counted(directory, *args, **kwargs):
        if directory == f"event:{name}":
            looks.append(args)
        return read(directory, *args, **kwargs)

    with ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(Event(name, using=using).wait, PATIENCE)
        monkeypatch.setattr(store, "read", counted)
        event.set()
        assert waiting.result(PATIENCE)
    assert len(looks) <= 4
