"""Bad arguments of Lock are refused with the argument and the value, before anything is asked."""

import asyncio
import math
import threading

import pytest
from django.core.exceptions import ImproperlyConfigured

from distlock import Lock
from distlock.recipes import MultiLock, RWLock, Semaphore

LOCAL = {"using": "local"}


@pytest.mark.parametrize("name", ["", "a\nb", " a", "n" * 565, "\ud800"])
def test_a_name_that_no_lock_can_have_is_a_value_error(name):
    with pytest.raises(ValueError, match="^name must "):
        Lock(name, **LOCAL)


@pytest.mark.parametrize("name", [None, 5, b"x"])
def test_a_name_that_is_no_str_is_a_type_error(name):
    with pytest.raises(TypeError, match="^name must be a str"):
        Lock(name, **LOCAL)


@pytest.mark.parametrize("argument", ["lease", "at_least"])
@pytest.mark.parametrize("value", [0, -1, -0.0, math.nan, math.inf, -math.inf])
def test_seconds_that_are_no_length_of_time_are_a_value_error(argument, value):
    with pytest.raises(ValueError, match=argument) as caught:
        Lock("a", **{argument: value}, **LOCAL)
    assert repr(value) in str(caught.value)


@pytest.mark.parametrize("argument", ["lease", "at_least"])
@pytest.mark.parametrize("value", ["30", True, [3], 3j])
def test_seconds_that_are_no_number_are_a_type_error(argument, value):
    with pytest.raises(TypeError, match=argument) as caught:
        Lock("a", **{argument: value}, **LOCAL)
    assert repr(value) in str(caught.value)


@pytest.mark.parametrize("value", ["later", "", True, 0, ["commit"]])
@pytest.mark.parametrize("make", [Lock, Semaphore, RWLock, MultiLock])
def test_another_moment_of_release_is_a_value_error(make, value):
    with pytest.raises(ValueError, match="^release must be 'now' or 'commit'") as caught:
        make("a", release=value, **LOCAL)
    assert repr(value) in str(caught.value)


@pytest.mark.parametrize("timeout", [math.inf, 1e30])
def test_a_timeout_beyond_what_a_thread_can_wait_is_an_overflow_error(timeout):
    with pytest.raises(OverflowError, match="timeout") as caught:
        Lock("a", timeout=timeout, **LOCAL)
    assert repr(timeout) in str(caught.value)


@pytest.mark.parametrize("timeout", [-2, -0.5, math.nan, -math.inf])
def test_a_timeout_that_is_no_length_of_time_is_a_value_error(timeout):
    with pytest.raises(ValueError, match="timeout") as caught:
        Lock("a", timeout=timeout, **LOCAL)
    assert repr(timeout) in str(caught.value)


@pytest.mark.parametrize("timeout", ["5", [5], True])
def test_a_timeout_that_is_no_number_is_a_type_error(timeout):
    with pytest.raises(TypeError, match="timeout") as caught:
        Lock("a", timeout=timeout, **LOCAL)
    assert repr(timeout) in str(caught.value)


@pytest.mark.parametrize("on_busy", ["retry", None, True])
def test_what_happens_to_a_busy_lock_is_one_of_three(on_busy):
    with pytest.raises(ValueError, match="on_busy must be 'wait', .* or 'skip', not ") as caught:
        Lock("a", on_busy=on_busy, **LOCAL)
    assert repr(on_busy) in str(caught.value)


@pytest.mark.parametrize("on_busy", ["wait", "raise"])
def test_the_result_of_a_skipped_call_goes_with_skipping(on_busy):
    with pytest.raises(ValueError, match="busy_result='later' .*on_busy='skip', not "):
        Lock("a", on_busy=on_busy, busy_result="later", **LOCAL)


def test_a_timeout_of_none_or_minus_one_waits_for_ever():
    for timeout in (None, -1):
        with Lock("a", timeout=timeout, **LOCAL) as lock:
            assert lock.held


def test_an_owner_that_no_one_can_be_called_is_refused():
    with pytest.raises(ValueError, match="^owner must "):
        Lock("a", owner="", **LOCAL)


def test_a_description_that_is_too_long_is_refused():
    with pytest.raises(ValueError, match="^description must "):
        Lock("a", description="d" * 1025, **LOCAL)


def test_on_lost_that_cannot_be_called_is_a_type_error():
    with pytest.raises(TypeError, match="on_lost"):
        Lock("a", on_lost="mail the boss", **LOCAL)


def test_everything_but_the_name_is_given_by_keyword():
    with pytest.raises(TypeError):
        Lock("a", "local")


def test_an_alias_that_is_not_configured_is_named():
    with pytest.raises(ImproperlyConfigured, match=r"DISTLOCK\['nowhere'\]"):
        Lock("a", using="nowhere").acquire()


# acquire() has the argument errors of threading.RLock.acquire()

REFUSED = [
    {"blocking": False, "timeout": 1},
    {"blocking": False, "timeout": 0},
    {"timeout": -2},
    {"timeout": math.nan},
    {"timeout": math.inf},
    {"timeout": 1e12},
    {"timeout": "5"},
]


@pytest.mark.parametrize("arguments", REFUSED, ids=repr)
def test_acquire_refuses_what_an_rlock_refuses_with_the_same_error(arguments):
    with pytest.raises((ValueError, TypeError, OverflowError)) as theirs:
        threading.RLock().acquire(**arguments)
    with pytest.raises(theirs.type):
        Lock("a", **LOCAL).acquire(**arguments)


@pytest.mark.parametrize("arguments", REFUSED, ids=repr)
def test_aacquire_refuses_what_acquire_refuses(arguments):
    async def attempt():
        await Lock("a", **LOCAL).aacquire(**arguments)

    with pytest.raises((ValueError, TypeError, OverflowError)):
        asyncio.run(attempt())


def test_an_acquire_that_was_refused_holds_nothing():
    lock = Lock("a", **LOCAL)
    with pytest.raises(ValueError):
        lock.acquire(blocking=False, timeout=1)
    assert not lock.held
    assert not lock.locked()


def test_acquire_takes_its_arguments_by_position_as_an_rlock_does():
    lock = Lock("a", **LOCAL)
    assert lock.acquire(True, 1)
    assert lock.acquire(False)
    lock.release()
    lock.release()


def test_trying_once_overrides_the_constructors_timeout():
    lock = Lock("a", timeout=60, **LOCAL)
    assert lock.acquire(blocking=False)
    lock.release()


def test_a_timeout_overrides_the_constructors_trying_once():
    lock = Lock("a", on_busy="raise", **LOCAL)
    assert lock.acquire(timeout=1)
    lock.release()


@pytest.mark.parametrize("token", ["7", 7.0, None, True])
def test_force_release_wants_a_token(token):
    with pytest.raises(TypeError, match="token"):
        Lock("a", **LOCAL).force_release(token)


def test_repr_shows_the_name_and_the_backend():
    shown = repr(Lock("invoice:42", **LOCAL))
    assert "'invoice:42'" in shown
    assert "'local'" in shown


def test_repr_says_whether_the_lock_is_held():
    lock = Lock("a", **LOCAL)
    free = repr(lock)
    with lock:
        assert repr(lock) != free
    assert repr(lock) == free


def test_a_named_owner_can_always_enter_again():
    with pytest.raises(ValueError, match="reentrant=False does not go with owner='order-42'"):
        Lock("a", owner="order-42", reentrant=False, **LOCAL)


def test_reentrant_is_true_or_false():
    with pytest.raises(TypeError, match="reentrant must be True or False, not 'no'"):
        Lock("a", reentrant="no", **LOCAL)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"at_most": 0}, "at_most must be .* greater than 0, got 0"),
        ({"at_most": 5, "renew": False}, "at_most=5 is for holds that are renewed"),
        (
            {"at_most": 5, "at_least": 6},
            "at_most=5 is .* no shorter than .* at_least=6",
        ),
    ],
)
def test_at_most_is_for_what_is_renewed(options, words):
    with pytest.raises(ValueError, match=words):
        Lock("a", **options, **LOCAL)
