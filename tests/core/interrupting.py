"""Interrupts a call at each moment at which Python would deliver a signal."""

import contextlib
import inspect
import itertools
import sys
import threading
import weakref
from pathlib import Path

import distlock
from distlock.concurrency import fork
from tests.contract.actors import PATIENCE

#: The package, and what of Python's library runs between its lines.
CODE = (str(Path(distlock.__file__).parent), threading.__file__, contextlib.__file__)
#: The interpreter looks for signals when it enters a function and when a built-in one returns
#: (``eval_breaker`` in CPython's ceval.c), but not between any two instructions.
MOMENTS = {"call", "c_return"}
GENERATORS = inspect.CO_GENERATOR | inspect.CO_ASYNC_GENERATOR


def interrupted(call, moment, error=KeyboardInterrupt, code=CODE):
    """Run ``call`` with an error at the given moment; return it, None if ``call`` ended before.

    The moments are those in files whose paths begin with ``code``. What runs may handle the error.
    """
    raised = []

    def strike(frame):
        raised.append(error())
        raise raised[0]

    with contextlib.suppress(error):
        at_moment(call, moment, strike, code)
    return raised.pop() if raised else None  # left there, it would know itself by its traceback


def at_moment(call, moment, act, code=CODE):
    """Return ``call()``, and whether ``act(frame)`` was called at the given moment of it."""
    result, passed = _watched(call, moment, act, code)
    return result, passed == moment


def moments_of(call, code=CODE):
    """Call ``call()``; return how many moments it has."""
    return _watched(call, 0, None, code)[1]


def _watched(call, moment, act, code):
    passed = 0

    def profile(frame, event, arg):
        nonlocal passed
        if event == "call" and frame.f_code.co_flags & GENERATORS:
            return  # it may be closed for being garbage, where an error reaches nobody
        if _is_callback(frame):
            return
        if event in MOMENTS and frame.f_code.co_filename.startswith(code):
            passed += 1
            if passed == moment and in_destructor(frame):
                passed -= 1  # of garbage, where an error reaches nobody, too
            elif passed == moment:
                sys.setprofile(None)
                act(frame)

    sys.setprofile(profile)
    try:
        result = call()
    finally:
        sys.setprofile(None)
    return result, passed


def _is_callback(frame):
    """Whether this is the callback of a weak reference, where an error reaches nobody, too."""
    return frame.f_code.co_filename == fork.__file__ and frame.f_code.co_name == "<lambda>"


def in_destructor(frame):
    """Whether an error here would reach nobody."""
    while frame is not None:
        if frame.f_code.co_name == "__del__" or frame.f_code.co_filename == weakref.__file__:
            return True
        if _is_callback(frame):
            return True
        frame = frame.f_back
    return False


def every_moment(call, act, step=1):
    """Run ``call()`` again and again, each time with ``act(frame)`` at a later moment.

    Yields what it returned, or the error that it raised.
    """
    for moment in itertools.count(1, step):
        acted = []

        def note(frame):
            acted.append(frame.f_code)  # noqa: B023 - called at once
            act(frame)

        try:
            result, _ = at_moment(call, moment, note)
        except BaseException as error:
            result = error
        if not acted:
            assert moment > 20, "nothing was interrupted"
            return
        yield result


def cycle(lock):
    with lock:
        return lock.token


def is_free(lock):
    """Return whether another thread gets the lock at once."""
    got = []

    def take():
        if lock.acquire(timeout=PATIENCE):
            got.append(True)
            lock.release()

    other = threading.Thread(target=take, daemon=True)
    other.start()
    other.join(2 * PATIENCE)
    return bool(got)
