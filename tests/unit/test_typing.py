"""What a user writes type-checks, and what he must not write does not."""

import subprocess
import sys
from pathlib import Path

import pytest

# Less than what ends the whole run; see faulthandler_timeout.
pytestmark = pytest.mark.timeout(170)

HERE = Path(__file__).parent
ROOT = HERE.parent.parent


def mypy(path, cache):
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
            str(path),
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


def test_what_the_guide_shows_type_checks(cache):
    run = mypy(HERE / "typed_use.py", cache)
    assert run.stdout == ""
    assert run.returncode == 0


def test_mistakes_are_found(cache):
    """Every line marked with an error code in the file yields exactly that error."""
    path = HERE / "typed_misuse.py"
    expected = {
        (number, line.partition("# E: ")[2].strip())
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if "# E: " in line
    }
    found = set()
    for line in mypy(path, cache).stdout.splitlines():
        if ": error:" in line:
            found.add((int(line.split(":")[1]), line.rpartition("[")[2].rstrip("]")))
    assert found == expected
    assert expected
