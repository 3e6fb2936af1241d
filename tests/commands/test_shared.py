"""Semaphores and read/write locks in ``manage.py locks list``, ``show`` and ``release``."""

from __future__ import annotations

import re
import shlex

import pytest
from django.utils import translation

from distlock.commands.exit_codes import NOT_HELD
from distlock.recipes import RWLock, Semaphore


@pytest.fixture
def mailer(local):
    """A semaphore of five seats, of which three are taken, by two holds."""
    first, second = Semaphore("mailer", 5, n=2, description="news"), Semaphore("mailer", 5)
    first.acquire()
    second.acquire()
    yield second
    for _ in range(2):
        if first.held:
            first.release()


def test_a_list_has_a_row_for_each_who_holds_seats(mailer, run):
    _heading, *rows = run("list").out.splitlines()
    assert len(rows) == 2
    assert all(row.split()[:2] == ["mailer", "held"] for row in rows)
    assert all(row.split()[-4:-1] == ["default", "semaphore", "3/5"] for row in rows)
    assert str(mailer.token) in rows[1]


def test_a_list_may_be_of_one_kind(mailer, run, taken):
    taken("stock")
    with RWLock("catalogue").reader():
        assert len(run("list").out.splitlines()) == 1 + 4
        (row,) = run("list", "--kind=rwlock").out.splitlines()[1:]
        assert row.split()[-2] == "rwlock"
        (row,) = run("list", "--kind=lock").out.splitlines()[1:]
        assert row.split()[-2] == "lock"


def test_a_kind_that_there_is_not_is_refused_with_those_that_there_are(local, run):
    ended = run("list", "--kind=mutex")
    assert ended.code != 0
    assert "--kind: must be one of lock, semaphore, rwlock, not 'mutex'" in ended.err


def test_shares_are_in_english_whatever_the_language_is(mailer, run, run_json):
    with translation.override("de"), RWLock("catalogue").writer():
        assert ", 2 seats" in run("show", "mailer").out
        assert ", writer" in run("show", "catalogue").out
        (entry,) = run_json("list", "--kind=rwlock")["locks"]
    assert entry["holders"][0]["share"] == "writer"


def test_a_semaphore_that_nobody_has_used_is_not_known(local, run):
    shown = run("show", "mailer", "--kind=semaphore")
    assert (shown.out, shown.code) == ("", NOT_HELD)
    assert shown.err == "semaphore 'mailer' is not held, and not known"


def test_json_has_all_holders(mailer, run_json):
    (entry,) = run_json("list")["locks"]
    assert (entry["kind"], entry["slots"]) == ("semaphore", 5)
    assert [(each["share"], each["description"]) for each in entry["holders"]] == [
        (2, "news"),
        (1, ""),
    ]
    assert entry["holders"][1]["token"] == mailer.token


def test_a_semaphore_is_shown_with_its_seats(mailer, run):
    shown = run("show", "mailer").out
    assert shown.startswith("mailer on default (semaphore)\n")
    assert re.search("seats +3 of 5 are taken", shown)
    assert re.search("holder 1 .*, 2 seats", shown)
    assert re.search("holder 2 .*, 1 seat\n", shown)


def test_readers_and_the_writer_are_told_apart(local, run):
    catalogue = RWLock("catalogue")
    with catalogue.writer() as writer:
        assert re.search("holder 1 .*, writer", run("show", "catalogue").out)
        writer.downgrade()
        assert re.search("holder 1 .*, reader", run("show", "catalogue").out)
    assert run("show", "catalogue").code == 3


def test_a_lock_and_a_semaphore_of_one_name_are_both_shown(mailer, run, taken):
    taken("mailer")
    lines = run("show", "mailer").out.splitlines()
    assert [line for line in lines if not line.startswith(" ")] == [
        "mailer on default",
        "mailer on default (semaphore)",
    ]
    assert run("show", "mailer", "--kind=semaphore").out.count("mailer on") == 1


def test_the_line_that_is_shown_breaks_one_hold_and_no_other(mailer, run):
    token = mailer.token
    lines = re.findall("to break it +manage.py locks release (.*)", run("show", "mailer").out)
    assert len(lines) == 2
    result = run("release", "--yes", *shlex.split(lines[1]))
    assert result.code == 0
    assert f"token {token}" in result.out
    assert "1 of" not in run("show", "mailer").out
    assert re.search("seats +2 of 5 are taken", run("show", "mailer").out)
    assert run("release", "--yes", *shlex.split(lines[1])).code == 3


def test_a_free_semaphore_is_not_held(local, run):
    result = run("show", "--kind=semaphore", "mailer")
    assert result.code == 3
    assert "semaphore 'mailer' is not held" in result.err
