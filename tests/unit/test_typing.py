"""What a user writes type-checks, and what he must not write does not."""

import inspect
import subprocess
import sys
from pathlib import Path

import pytest

from distlock.celery import locked_task
from distlock.celery.task_options import NAMES
from tests.pyright import complaints

# Less than what ends the whole run; see faulthandler_timeout.
pytestmark = pytest.mark.timeout(170)

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
USE, MISUSE = HERE / "typed_use.py", HERE / "typed_misuse.py"


def mypy(paths, cache):
    return subprocess.run(
        [
            sys.executable,
            "-m",
            "mypy",
            "--strict",
            "--no-error-summary",
            "--show-error-codes",
            "--follow-imports=silent",
            f"--cache-dir={cache}",
            *map(str, paths),
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=160,
        check=False,
    )


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    return tmp_path_factory.mktemp("mypy")


def marked(path):
    """Return (line, error code of mypy) of every line that is marked as wrong."""
    return {
        (number, line.partition("# E: ")[2].strip())
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if "# E: " in line
    }


@pytest.mark.slow
def test_what_the_guide_shows_type_checks(cache):
    run = mypy([USE], cache)
    assert run.stdout == ""
    assert run.returncode == 0


@pytest.mark.slow
def test_mistakes_are_found(cache):
    """Every line marked with an error code in the file yields exactly that error."""
    found = set()
    for line in mypy([MISUSE], cache).stdout.splitlines():
        if ": error:" in line:
            found.add((int(line.split(":")[1]), line.rpartition("[")[2].rstrip("]")))
    assert found == marked(MISUSE)
    assert found


@pytest.mark.slow
@pytest.mark.once
def test_pyright_agrees():
    found = complaints(USE, MISUSE)
    assert {(name, line) for name, line, _ in found} == {
        (MISUSE.name, line) for line, _ in marked(MISUSE)
    }


def test_the_signature_of_locked_task_has_all_its_options():
    assert set(NAMES) <= set(inspect.signature(locked_task).parameters)
