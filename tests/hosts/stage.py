"""How functions under a host and their test tell each other where they are: by files."""

import os
import time
from pathlib import Path

LIMIT = 60.0


def note(*words):
    """Under a host: write a line that the test reads with ``host.notes()``; whole, in one write."""
    line = " ".join(map(str, words)) + "\n"
    with open(_folder() / "notes", "a") as notes:
        notes.write(line)


def await_cue(name):
    """Under a host: wait until the test calls ``host.cue(name)``."""
    until = time.monotonic() + LIMIT
    while not (_folder() / f"cue-{name}").exists():
        assert time.monotonic() < until, f"no cue {name!r} came"
        time.sleep(0.01)


def _folder():
    return Path(os.environ["HOST_FOLDER"])
