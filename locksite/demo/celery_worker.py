"""The program of the demo's Celery worker: ``celery worker``, until its input ends."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
import warnings

from celery.platforms import SecurityWarning

from locksite.celery import app

#: Seconds that running tasks get to end.
END_TIMEOUT = 5.0


def _end_with_the_demo() -> None:
    while sys.stdin.read(1):
        pass
    os.kill(os.getpid(), signal.SIGTERM)  # a warm shutdown
    time.sleep(END_TIMEOUT)
    os._exit(1)


def main() -> None:
    warnings.simplefilter("ignore", SecurityWarning)  # the demo may well be root's
    threading.Thread(target=_end_with_the_demo, daemon=True).start()
    app.worker_main(
        ["--quiet", "worker", "--pool=threads", "--concurrency=3", "--loglevel=ERROR"]
        + ["--without-gossip", "--without-mingle", "--without-heartbeat"]
    )


if __name__ == "__main__":
    main()
