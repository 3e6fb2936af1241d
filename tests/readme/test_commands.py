"""Every command in the pages for users runs as it stands there, and their tables have all codes."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest

from distlock.commands.exit_codes import MEANINGS
from tests.readme.pages import ROOT, snippets, text

#: What the reader has besides; it does nothing.
PROGRAMS = ["backup-database", "celery", "gunicorn", "make-thumbnails", "uvicorn"]


def lines():
    commands = [line for snippet in snippets("bash") for line in snippet.splitlines()]
    for snippet in snippets("crontab"):
        # Five fields say when.
        commands += [line.split(None, 5)[5] for line in snippet.splitlines()]
    # The first deploy makes the tables, which the others need.
    return sorted(dict.fromkeys(commands), key=lambda line: "migrate" not in line)


@pytest.fixture(scope="module")
def shell(tmp_path_factory):
    """A shell as the reader's, with the site's database still empty."""
    folder = tmp_path_factory.mktemp("reader")
    for program in [*PROGRAMS, "python"]:
        does = f'exec {sys.executable} "$@"' if program == "python" else ""
        (folder / program).write_text(f"#!/bin/sh\n{does}\n")
        (folder / program).chmod(0o755)
    environment = {
        **os.environ,
        "PATH": f"{folder}:{os.environ['PATH']}",
        "DATABASE_URL": f"sqlite:///{folder}/db.sqlite3",
    }
    environment.pop("DJANGO_SETTINGS_MODULE", None)

    def run(line):
        return subprocess.run(
            ["bash", "-ec", line], cwd=ROOT, env=environment, capture_output=True, text=True
        )

    return run


@pytest.mark.parametrize("line", lines())
def test_a_command_runs(shell, line):
    done = shell(line)
    assert (done.returncode, done.stderr) == (0, "")


def test_there_are_commands():
    assert len(lines()) >= 4


def test_all_exit_codes_are_documented():
    documented = {int(code) for code in re.findall(r"^\| (\d+) \|", text(), re.MULTILINE)}
    assert documented == set(MEANINGS)
