"""The command line itself: wrong words, help, and the exit codes that scripts see."""

from __future__ import annotations

import pytest

from distlock.commands import exits


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
    ],
)
def test_scripts_see_the_exit_code(local, process, arguments, code):
    assert process(*arguments).wait() == code


@pytest.mark.parametrize("arguments", [["list"], ["-v", "2", "list"]])
@pytest.mark.parametrize("option", ["--settings=tests.settings", "--no-color", "--traceback"])
def test_options_of_django_may_stand_in_either_place(local, process, arguments, option):
    assert process(*arguments, option).wait() == 0
    assert process(option, *arguments).wait() == 0


@pytest.mark.parametrize("arguments", [[], ["list"], ["show"], ["release"], ["sweep"]])
def test_help_gives_the_exit_codes(local, process, arguments):
    text = " ".join(" ".join(process(*arguments, "--help").finish()).split())
    assert exits.EPILOG in text


def test_it_works_where_other_checks_fail(settings, local, process):
    settings.DISTLOCK = {**settings.DISTLOCK, "wrong": {}}
    listing = process("list")
    assert listing.wait() == 1
    assert "SystemCheckError" not in listing.errors
