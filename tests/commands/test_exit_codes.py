"""The command line itself: wrong words, help, and the exit codes that scripts see."""

from __future__ import annotations

import re

import pytest

from distlock.commands import exit_codes
from tests.commands.processes import manage


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["list"], 0),
        (["show", "stock"], 3),
        (["release", "stock", "--token=1", "--yes"], 3),
        (["sweep"], 0),
        ([], 2),
        (["lsit"], 2),
        (["list", "--using=elsewhere"], 2),
        (["list", "--state=free"], 2),
        (["show"], 2),
        (["show", "a\nb"], 2),
        (["release", "stock"], 2),
        (["release", "stock", "--token=x"], 2),
        (["sweep", "--every=0"], 2),
        (["resize", "stock", "3"], 1),
        (["resize", "stock", "3", "--create"], 0),
        (["resize", "stock", "0"], 2),
        (["resize", "stock"], 2),
    ],
)
def test_scripts_see_the_exit_code(local, process, arguments, code):
    assert process(*arguments).wait() == code


@pytest.mark.slow
@pytest.mark.parametrize("arguments", [["list"], ["-v", "2", "list"]])
@pytest.mark.parametrize("option", ["--settings=tests.settings", "--no-color", "--traceback"])
def test_options_of_django_may_stand_in_either_place(local, process, arguments, option):
    assert process(*arguments, option).wait() == 0
    assert process(option, *arguments).wait() == 0


@pytest.mark.parametrize(
    ("command", "codes"),
    [
        ("locks list", {0, 1, 2}),
        ("locks show", {0, 1, 2, 3}),
        ("locks release", {0, 1, 2, 3, 4}),
        ("locks sweep", {0, 1, 2}),
        ("locks resize", {0, 1, 2}),
        ("locks run", {0, 1, 2, 69, 75, 79, 126, 127}),
        ("nightly", {0, 1, 2, 69, 75, 79}),
    ],
)
def test_help_gives_the_exit_codes_of_that_very_command(local, child, command, codes):
    said = " ".join(" ".join(child(manage, *command.split(), "--help").finish()).split())
    _, _, listed = said.partition("Exit codes: ")
    assert {int(code) for code in re.findall(r"(?:^|; )(\d+) [a-z]", listed)} == codes
    assert all(exit_codes.MEANINGS[code] in listed for code in codes if code not in (0, 1))


def test_help_without_a_command_says_where_they_are_listed(local, process):
    said = " ".join(" ".join(process("--help").finish()).split())
    assert "Each command's own --help lists its exit codes." in said


def test_it_works_where_other_checks_fail(settings, local, process):
    settings.DISTLOCK = {**settings.DISTLOCK, "wrong": {}}
    listing = process("list")
    assert listing.wait() == 1
    assert "SystemCheckError" not in listing.errors
