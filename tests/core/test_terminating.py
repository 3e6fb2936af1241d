"""What ends the body of a lost lock leaves the interpreter as it was."""

import subprocess
import sys

TRACED = """
import sys, threading
from distlock.types.lease import Claim, Owner
from distlock.exceptions import LockLost
from distlock.locking.run_under import ThreadInterrupter

class Slow(ThreadInterrupter):
    def raise_in_body(self, loss):
        leaving.wait(30)
        super().raise_in_body(loss)

lease = Claim("stock", Owner("key", "host", 1, "thread"), 30.0).granted(7, 0.0)

def body(late):
    try:
        with Slow() as ending:
            teller = threading.Thread(target=ending.on_lost, args=(lease,))
            teller.start()
            while late and ending.loss is None:
                pass
            leaving.set()
            if late:
                ending.__exit__(None, None, None)
            while True:
                late = not late
    except LockLost as error:
        print(error)

for late in (False, True):
    leaving = threading.Event()
    thread = threading.Thread(target=body, args=(late,))
    thread.start()
    thread.join()

def profile(frame, event, arg):
    raise KeyboardInterrupt

def traced():
    pass

sys.setprofile(profile)
try:
    traced()
except KeyboardInterrupt:
    sys.setprofile(None)
    print("interrupted")
"""


def test_a_profiler_can_interrupt_after_a_thread_was_ended():
    """CPython 3.11 enters no function any more if an exception was set and taken back."""
    run = subprocess.run([sys.executable, "-c", TRACED], capture_output=True, text=True, timeout=60)
    assert run.stdout.splitlines() == [
        "lock 'stock' (token 7) was lost while the work under it was running",
        "lock 'stock' (token 7) was lost while the work under it was running",
        "interrupted",
    ], run.stderr
