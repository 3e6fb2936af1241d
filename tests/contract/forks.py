"""A fork of the calling process, which tells what it has seen."""

import faulthandler
import os
import pickle
import signal

#: seconds after which a forked child that hangs shows where, and ends
HANGS = 25


def forked(function, *args):
    """Return what ``function`` returns in a forked child of this process."""
    reading, writing = os.pipe()
    pid = os.fork()
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
    with open(reading, "rb") as pipe:
        answer = pipe.read()
    os.waitpid(pid, 0)
    assert answer, "the forked child hung or died"
    succeeded, result = pickle.loads(answer)
    assert succeeded, result
    return result
