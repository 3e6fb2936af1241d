"""How many seats a semaphore has, and what is refused."""

import asyncio
import logging

import pytest

from distlock import LockError, NotSupported, locks
from distlock.backends.local import LocalBackend
from distlock.recipes import Semaphore
from tests.contract.actors import PATIENCE
from tests.contract.watch import eventually, waits
from tests.recipes.every_kind import pytest_generate_tests  # noqa: F401 - pytest calls it
from tests.recipes.taking import in_queue, queue, seats, take


class TestValue:
    def test_another_value_is_refused_while_it_is_in_use(self, first, second, using, name):
        held = take(first, name, 3)
        other = seats(second, name, 4)
        with pytest.raises(LockError, match=f"value=4: semaphore '{name}' has 3 seats"):
            other.acquire(blocking=False)
        with pytest.raises(LockError, match="value=4: .* 3 seats"):
            other.acquire(timeout=PATIENCE)
        held.release()
        assert in_queue(using, name) == 0

    def test_another_value_is_adopted_when_nobody_uses_it(self, first, using, name, caplog):
        caplog.set_level(logging.INFO, logger="distlock")
        take(first, name, 3).release()
        with Semaphore(name, 4, using=using):
            assert Semaphore(name, using=using).info().slots == 4
        said = [record.getMessage() for record in caplog.records if name in record.getMessage()]
        assert said == [f"semaphore '{name}' on 'default' has 4 seats from now on, it had 3"]

    def test_none_takes_what_was_said(self, first, second, using, name):
        nobody = seats(second, name, None)
        unsaid = f"semaphore '{name}': value was not given.* resize --create --using=default NAME"
        with pytest.raises(LockError, match=unsaid):
            nobody.acquire(blocking=False)
        take(first, name, 1)
        assert nobody.acquire(blocking=False) is False
        with pytest.raises(LockError, match=f"n=2: semaphore '{name}' has 1 seats in all"):
            seats(second, name, None, n=2).acquire()

    def test_more_seats_wake_those_who_wait(self, first, second, third, using, name):
        take(first, name, 1)
        two = queue(seats(second, name, None), using, name)
        three = queue(seats(third, name, None), using, name)
        assert Semaphore(name, using=using).resize(3) == 1
        assert two.result(PATIENCE)
        assert three.result(PATIENCE)
        with pytest.raises(LockError, match="value=1: .* 3 seats"):
            seats(first, name, 1).acquire(blocking=False)

    def test_fewer_seats_evict_nobody(self, first, second, third, using, name):
        held = [take(first, name, 3), take(first, name, None), take(second, name, None)]
        assert seats(first, name, None).do("resize", 1) == 3
        waiting = queue(seats(third, name, None), using, name)
        for lock in held:
            lock.verify()
        held[2].release()
        held[0].release()
        assert waits(waiting)
        held[1].release()
        assert waiting.result(PATIENCE)

    def test_a_waiter_for_more_than_there_are_now_is_told(self, first, second, using, name):
        take(first, name, 3)
        waiting = queue(seats(second, name, None, n=3), using, name)
        seats(first, name, None).do("resize", 2)
        with pytest.raises(LockError, match="n=3: .* 2 seats in all"):
            waiting.result(PATIENCE)
        eventually(lambda: in_queue(using, name) == 0)

    def test_resize_is_known_to_the_object(self, using, name):
        lock = Semaphore(name, 2, using=using)
        assert lock.resize(4) is None
        assert lock.value == 4
        assert asyncio.run(lock.aresize(5)) == 4
        with lock:
            assert lock.info().slots == 5


BAD = [
    ({"value": 0}, ValueError, "value must be at least 1"),
    ({"value": -1}, ValueError, "value must be at least 1"),
    ({"value": 2.0}, TypeError, "value must be a whole number"),
    ({"value": True}, TypeError, "value must be a whole number"),
    ({"value": "3"}, TypeError, "value must be a whole number"),
    ({"value": 2**31}, ValueError, "value must be at least 1 and less than"),
    ({"value": 3, "n": 0}, ValueError, "n must be at least 1"),
    ({"value": 3, "n": 4}, ValueError, "n must be at most value=3, got 4"),
    ({"value": 3, "n": None}, TypeError, "n must be a whole number"),
    ({"value": 3, "lease": 0}, ValueError, "lease"),
    ({"value": 3, "timeout": -2}, ValueError, "timeout"),
    ({"value": 3, "on_lost": 1}, TypeError, "on_lost"),
    ({"value": 3, "using": None}, TypeError, "using"),
]


@pytest.mark.parametrize(("arguments", "error", "words"), BAD)
def test_bad_input_names_the_argument(arguments, error, words):
    with pytest.raises(error, match=words):
        Semaphore("mailer", **arguments)


@pytest.mark.parametrize(
    ("n", "error"), [(0, ValueError), (4, ValueError), ("2", TypeError), (True, TypeError)]
)
def test_a_bad_number_of_seats_is_refused_by_acquire(local, n, error):
    lock = Semaphore("mailer", 3)
    with pytest.raises(error, match="^n must be"):
        lock.acquire(n=n)
    with pytest.raises(error, match="^value must be"):
        lock.resize(n if n != 4 else -4)


def test_a_number_in_the_place_of_blocking_is_refused(local):
    with pytest.raises(TypeError, match="^blocking must be True or False, not 2$"):
        Semaphore("mailer", 3).acquire(2)


def test_it_is_not_known_how_many_seats_there_are_before_anyone_has_said(local):
    assert Semaphore("mailer").info().slots == 0
    assert Semaphore("mailer").locked()
    assert not Semaphore("mailer", 1).locked()


def test_what_resize_has_said_is_overruled_when_nobody_uses_it(local):
    Semaphore("mailer").resize(5)
    with Semaphore("mailer", 3), pytest.raises(LockError, match="value=5: .* 3 seats"):
        Semaphore("mailer", 5).acquire()


def test_at_least_and_owner_are_for_locks():
    with pytest.raises(TypeError):
        Semaphore("mailer", 3, at_least=3)
    with pytest.raises(TypeError):
        Semaphore("mailer", 3, owner="ann")


class WithoutStore(LocalBackend):
    """As a backend of somebody else."""

    @property
    def store(self):
        raise NotSupported(f"DISTLOCK[{self.alias!r}]: WithoutStore keeps locks only")


def test_a_backend_without_records_says_so(settings):
    settings.DISTLOCK = {"default": {"BACKEND": "tests.recipes.test_semaphore_value.WithoutStore"}}
    with pytest.raises(NotSupported, match="keeps locks only"):
        Semaphore("mailer", 3).acquire()
    locks.close_all()
