"""A fork of the calling process, which tells what it has seen."""

import ctypes
import faulthandler
import os
import pickle
import select
import signal
import threading
import time
from contextlib import suppress
from pathlib import Path

#: seconds after which a forked child that hangs shows where, and ends
HANGS = 25
#: seconds within which Python goes on in a forked child
GOES_ON = 10


def fork_without_hooks():
    """Fork as C extensions and uWSGI do, without Python's knowledge.

    CPython itself hangs in the child if another thread wants the GIL at that moment. One that does
    wakes up every 5 ms. A child that hangs for that is killed, and another one forked.
    """
    while True:
        while (before := others()) is None or (time.sleep(0.008), others())[1] != before:
            time.sleep(0.001)
        reader, writer = os.pipe()
        pid = LIBRARY.fork()
        if pid == 0:
            os.write(writer, b"runs")
        else:
            os.close(writer)
        if pid == 0 or select.select([reader], [], [], GOES_ON)[0]:
            os.close(reader)
            return pid
        os.close(reader)
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def others():
    """Return how often each other thread has given up its processor; None while one runs."""
    switches = {}
    for task in Path("/proc/self/task").iterdir():
        if int(task.name) != threading.get_native_id():
            with suppress(FileNotFoundError, ProcessLookupError):
                fields = dict(
                    line.split(":", 1) for line in (task / "status").read_text().splitlines()
                )
                if "sleeping" not in fields["State"]:
                    return None
                switches[task.name] = fields["voluntary_ctxt_switches"]
    return switches


#: keeps the GIL while it is called
LIBRARY = ctypes.PyDLL(None)
WAYS = {"os.fork": os.fork, "without hooks": fork_without_hooks}


def forked(function, *args, way="os.fork"):
    """Return what ``function`` returns in a forked child of this process."""
    return begin_forked(function, *args, way=way)()


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
        os.waitpid(pid, 0)
        assert answer, "the forked child hung or died"
        succeeded, result = pickle.loads(answer)
        assert succeeded, result
        return result

    return wait
