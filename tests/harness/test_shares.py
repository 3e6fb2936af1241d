"""Nothing is lost when the tests are dealt out to the runs on several Pythons."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

#: It has tests of every kind: slow ones, and those that run on one Python or on all of them.
FOLDER = "tests/stores"
SHARES = re.findall(r"--share=(\S+)", Path("Makefile").read_text())


def collected(marks, share="0:1"):
    """Return the names of the tests that a run with ``-m marks`` and this share has."""
    command = [sys.executable, "-m", "pytest", "-q", "--collect-only", "-p", "no:cacheprovider"]
    found = subprocess.run(
        [*command, "-m", marks, f"--share={share}", FOLDER], capture_output=True, text=True
    )
    assert not found.returncode, found.stdout + found.stderr
    names = [line for line in found.stdout.splitlines() if "::" in line]
    assert len(names) == len(set(names)) > 0
    return set(names)


@pytest.mark.parametrize("shares", [SHARES, ["0:0.2", "0.2:0.7", "0.7:1"]], ids=",".join)
def test_every_test_has_its_runs(shares):
    everyday, slow, once = collected("not slow"), collected("slow"), collected("once")
    by_day = [collected("not slow", share) for share in shares]
    later = [collected("slow", share) for share in shares]
    # Each test of every day runs once in `make test`, each slow one once in `make test-slow`.
    assert set.union(*by_day) == everyday and sum(map(len, by_day)) == len(everyday)
    assert set.union(*later) >= slow and sum(len(some & slow) for some in later) == len(slow)
    # What is not the same on every Python runs on each of them, today or then.
    for today, then in zip(by_day, later, strict=True):
        assert then - slow == everyday - once - today
