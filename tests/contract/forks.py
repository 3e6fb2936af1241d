"""A fork of the calling process, which tells what it has seen."""

import ctypes
import faulthandler
import gc
import os
import pickle
import platform
import signal
import sys
import threading
import time
import traceback
from concurrent.futures import thread as executors
from contextlib import contextmanager, suppress
from pathlib import Path

#: seconds after which a forked child that hangs shows where, and ends
HANGS = 25
#: keeps the GIL while it is called
LIBRARY = ctypes.PyDLL(None)
#: where CPython keeps the GIL
RUNTIME = ctypes.addressof(ctypes.c_char.in_dll(ctypes.pythonapi, "_PyRuntime"))
SIZE = 1 << 20
#: the number of the system call in which a thread waits for another one; elsewhere it is not known
FUTEX = {"x86_64": "202", "aarch64": "98"}.get(platform.machine())
#: bytes; an address at most so far above the stack pointer of a waiting thread is on its stack
NEAR = 4096


def fork_without_hooks():
    """Fork as C extensions and uWSGI do, without Python's knowledge.

    CPython itself hangs in the child, at once or later, if another thread was waiting for the GIL,
    or was about to begin or to end. A child goes on only if all other threads slept elsewhere from
    before the fork until after it; else it is killed, and another one forked.
    """
    # From Python 3.13 on a child crashes if it deletes threads of its parent that nobody has
    # joined. The package keeps them from its first use on; garbage may be collected before that.
    gc.collect()
    with idle_executors_at_rest():
        return fork_while_others_sleep()


class Pause:
    """A job that keeps a thread of an executor until it may go on."""

    def __init__(self):
        self.begun, self.go_on = threading.Event(), threading.Event()

    def run(self):
        self.begun.set()
        self.go_on.wait()


@contextmanager
def idle_executors_at_rest():
    """Let idle threads of executors, which earlier tests have left, wait for another thing.

    From Python 3.13 on a thread that waits in a SimpleQueue stands in a list of the interpreter, by
    an entry on its stack. The child has the list, and gives the stack to its new threads; so it
    crashes now and then.
    """
    queues = [*executors._threads_queues.values()]
    pauses = [Pause() for _ in queues]
    for queue, pause in zip(queues, pauses, strict=True):
        queue.put(pause)
    try:
        end = time.monotonic() + 0.5  # those that are busy do not take it
        for pause in pauses:
            pause.begun.wait(max(end - time.monotonic(), 0))
        yield
    finally:
        for pause in pauses:
            pause.go_on.set()


def fork_while_others_sleep():
    end = time.monotonic() + HANGS
    while True:
        assert time.monotonic() < end, describe_threads()
        reader, writer = os.pipe()
        before = sleepers()
        pid = LIBRARY.fork()
        if pid == 0:
            os.close(writer)
            if not os.read(reader, 1):  # the parent has ended
                os._exit(1)
            os.close(reader)
            return 0
        os.close(reader)
        slept = before is not None and sleepers() == before
        if slept:
            os.write(writer, b".")
        else:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
        os.close(writer)
        if slept:
            return pid
        time.sleep(0.001)


def sleepers():
    """Return how often each other thread has been woken; None if a fork would break the child.

    One does if another thread runs, waits for the GIL, or, as in a SimpleQueue or in join() from
    Python 3.13 on, waits by an entry on its own stack; see idle_executors_at_rest().
    """
    woken = {}
    for task in Path("/proc/self/task").iterdir():
        if int(task.name) != threading.get_native_id():
            with suppress(FileNotFoundError, ProcessLookupError):
                call, *arguments = (task / "syscall").read_text().split()
                status = (task / "status").read_text()
                fields = dict(line.split(":", 1) for line in status.splitlines())
                if call == "running" or "sleeping" not in fields["State"]:
                    return None
                waits_at, stack = int(arguments[0], 16), int(arguments[-2], 16)
                if RUNTIME <= waits_at < RUNTIME + SIZE or (
                    call == FUTEX and stack <= waits_at < stack + NEAR
                ):
                    return None
                woken[task.name] = fields["voluntary_ctxt_switches"]
    return woken


def describe_threads():
    """Return where each thread is, for the message of a test that cannot fork."""
    frames = sys._current_frames()
    stacks = [
        f"{thread.name}:\n{''.join(traceback.format_stack(frames[thread.ident], limit=5))}"
        for thread in threading.enumerate()
        if thread.ident in frames
    ]
    return "\n".join(["there was no moment at which a fork breaks no child", *stacks])


WAYS = {"os.fork": os.fork, "without hooks": fork_without_hooks}


def forked(function, *args, way="os.fork"):
    """Return what ``function`` returns in a forked child of this process."""
    return begin_forked(function, *args, way=way)()


def describe(status):
    """Return how a process ended, of what waitpid() says."""
    code = os.waitstatus_to_exitcode(status)
    return signal.Signals(-code).name if code < 0 else f"exit code {code}"


def begin_forked(function, *args, way="os.fork"):
    """See forked(); return what waits for the child, which runs meanwhile."""
    reading, writing = os.pipe()
    pid = WAYS[way]()
    if pid == 0:
        faulthandler.register(signal.SIGALRM, chain=True)
        signal.alarm(HANGS)
        try:
            try:
                answer = True, function(*args)
            except BaseException as error:
                answer = False, repr(error)
            with open(writing, "wb") as pipe:
                pickle.dump(answer, pipe)
        finally:
            os._exit(0)
    os.close(writing)

    def wait():
        with open(reading, "rb") as pipe:
            answer = pipe.read()
        _, status = os.waitpid(pid, 0)
        assert answer, f"the forked child hung (SIGALRM) or died: {describe(status)}"
        succeeded, result = pickle.loads(answer)
        assert succeeded, result
        return result

    return wait
