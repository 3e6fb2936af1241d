"""A sweep forgets semaphores and read/write locks that nobody uses, and no number that was set."""

import threading
from datetime import timedelta

import pytest

from distlock import LockError, locks
from distlock.recipes import Election, Group, RWLock, Semaphore
from distlock.records.shared_backend import shared_locks, sweep_every_kind
from distlock.registry import KEPT
from distlock.types.lease import Kind
from tests.contract.actors import PATIENCE
from tests.recipes.every_kind import pytest_generate_tests  # noqa: F401 - pytest calls it
from tests.recipes.wrapping import in_thread


def known(using):
    """Return the directories in use of the semaphores and read/write locks of a backend."""
    return set(locks[using].store.directories())


def test_what_nobody_uses_leaves_nothing(using, name):
    with Semaphore(name, 3, using=using), RWLock(name, using=using).writer():
        pass
    assert {f"semaphore:{name}", f"rwlock:{name}"} <= known(using)
    sweep_every_kind(locks[using])
    assert not {f"semaphore:{name}", f"rwlock:{name}"} & known(using)
    with pytest.raises(LockError, match="the number of seats is not set yet"):
        Semaphore(name, using=using).acquire()
    with Semaphore(name, 4, using=using) as seat:
        assert seat.info().slots == 4


def test_tokens_go_on_growing(using, name):
    with Semaphore(name, 3, using=using) as seat:
        before = seat.token
    sweep_every_kind(locks[using])
    with Semaphore(name, 3, using=using) as seat:
        assert seat.token > before


def test_who_holds_is_not_forgotten(using, name):
    with Semaphore(name, 3, using=using) as seat, RWLock(name, using=using).reader() as reader:
        sweep_every_kind(locks[using])
        assert seat.info().slots == 3
        seat.verify()
        reader.verify()
        with pytest.raises(LockError, match="has 3 seats"):
            Semaphore(name, 4, using=using).acquire()


def test_a_number_that_was_set_stays(using, name):
    Semaphore(name, using=using).resize(3)
    for value in (None, 3):
        with Semaphore(name, value, using=using):
            pass
        sweep_every_kind(locks[using])
        assert Semaphore(name, using=using).info().slots == 3
    with Semaphore(name, 5, using=using):  # as its code says: that is forgotten again
        pass
    sweep_every_kind(locks[using])
    assert f"semaphore:{name}" not in known(using)


@pytest.fixture
def before_change(using, monkeypatch):
    """``before_change(call)``: have another thread call it just before this one's next change."""
    store, me = locks[using].store, threading.get_ident()
    apply = store.apply

    def before(call):
        def call_and_apply(*args, **options):
            if threading.get_ident() == me:  # others may be freeing what tests before have left
                monkeypatch.setattr(store, "apply", apply)
                in_thread(call)()
            return apply(*args, **options)

        monkeypatch.setattr(store, "apply", call_and_apply)

    return before


def test_who_comes_while_its_number_is_removed_gets_a_seat(using, name, before_change):
    with Semaphore(name, 3, using=using):
        pass
    before_change(lambda: sweep_every_kind(locks[using]))
    with Semaphore(name, 3, using=using) as seat:
        assert (seat.info().taken, seat.info().slots) == (1, 3)


def test_who_came_since_the_sweep_has_looked_is_not_forgotten(using, name, before_change):
    def hold():
        with Semaphore(name, 3, using=using):
            taken.set()
            over.wait(PATIENCE)

    taken, over = threading.Event(), threading.Event()
    holder = threading.Thread(target=hold)
    with Semaphore(name, 3, using=using):
        pass
    before_change(lambda: (holder.start(), taken.wait(PATIENCE)))
    shared_locks(locks[using]).sweep()
    try:
        with pytest.raises(LockError, match="has 3 seats"):
            Semaphore(name, 4, using=using).acquire()
    finally:
        over.set()
        holder.join()


def test_who_was_in_a_group_is_forgotten_after_a_day(using, name, monkeypatch):
    group = Group(name, using=using)
    group.join()
    monkeypatch.setitem(KEPT, Kind.GROUP, timedelta())
    sweep_every_kind(locks[using])
    assert len(group.members()) == 1
    group.leave()
    monkeypatch.undo()
    sweep_every_kind(locks[using])
    assert f"group:{name}" in known(using)
    monkeypatch.setitem(KEPT, Kind.GROUP, timedelta())
    sweep_every_kind(locks[using])
    assert f"group:{name}" not in known(using)


@pytest.mark.every_day_on("local", "sqlite")
def test_so_many_who_were_in_a_group_are_forgotten(using, name, monkeypatch):
    """More than one change can have."""
    groups = [Group(name, using=using) for _ in range(130)]
    for one in groups:
        one.join()
    for one in groups:
        one.leave()
    monkeypatch.setitem(KEPT, Kind.GROUP, timedelta())
    sweep_every_kind(locks[using])
    assert f"group:{name}" not in known(using)


def test_who_has_led_is_forgotten_when_nobody_stands_any_more(using, name, monkeypatch):
    election = Election(name, using=using)
    assert KEPT[Kind.ELECTION] == timedelta(days=30)
    monkeypatch.setitem(KEPT, Kind.ELECTION, timedelta())
    with election:
        sweep_every_kind(locks[using])
        assert election.leader() is not None
    monkeypatch.undo()
    sweep_every_kind(locks[using])
    assert len(election.history()) == 1
    monkeypatch.setitem(KEPT, Kind.ELECTION, timedelta())
    sweep_every_kind(locks[using])
    assert f"election:{name}" not in known(using)
    with election:
        assert len(election.history()) == 1
