"""`make matrix` says what it leaves out, and fails if nobody has allowed that."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tools.matrix import ALONE, EXTRAS, ROOT

pytestmark = pytest.mark.once

#: No machine has it.
MISSING = "3.99"


def matrix(*versions: str, allowed: str = "") -> subprocess.CompletedProcess[str]:
    """Run it on these Pythons; there is no uv, so it ends before the first row."""
    command = [sys.executable, "-m", "tools.matrix", "/no/uv", *versions]
    environment = {**os.environ, "ALLOW_MISSING": allowed}
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)


def test_a_missing_python_is_an_error_that_says_what_to_do() -> None:
    done = matrix(MISSING)
    assert done.returncode == 1
    assert f"Python {MISSING} is missing" in done.stderr
    assert f"pyenv install {MISSING}" in done.stderr
    assert f"make matrix ALLOW_MISSING={MISSING}" in done.stderr


def test_a_missing_python_that_is_allowed_is_named_in_the_output() -> None:
    done = matrix(MISSING, allowed=MISSING)
    assert f"{MISSING} NOT TRIED" in done.stdout
    assert "is missing:" not in done.stderr


def test_nothing_to_try_is_an_error() -> None:
    done = matrix(MISSING, allowed=MISSING)
    assert done.returncode == 1
    assert "No Python is left to try" in done.stderr


def test_a_python_that_is_not_in_the_matrix_cannot_be_allowed() -> None:
    done = matrix(MISSING, allowed=f"{MISSING},3.1")
    assert done.returncode == 1
    assert "ALLOW_MISSING names 3.1;" in done.stderr


def test_each_extra_is_tried_alone() -> None:
    assert {extra for extra, _ in ALONE if extra} == EXTRAS.keys()
