"""``locks list`` and ``show`` at a terminal, where a backend is dead and another one is silent."""

from __future__ import annotations

import threading

import pytest

from distlock.commands import output
from distlock.commands.arguments import Backends
from distlock.concurrency.clock import clock
from distlock.fan_out import TIMEOUT, call_backends
from tests.commands.processes import hold
from tests.contract.watch import eventually

LOCAL = "distlock.backends.local.LocalBackend"
RED = "\x1b[31;1m"

pytestmark = pytest.mark.once


@pytest.fixture
def crowded(sqlite_only, holder, abandoned):
    """Locks with all kinds of names, one of which has expired; they are held by a process."""
    abandoned("nightly-cleanup")
    return holder("x" * 564, "锁" * 282, "report:7", "stock")


@pytest.fixture
def silenced(kind, proxied, shared):
    """A database that stops answering; it is healed before the locks in it are removed."""
    network = proxied(kind)
    network.silence()
    yield
    network.heal()


class TestAList:
    @pytest.mark.parametrize("columns", [60, 80, 140])
    def test_fits_the_terminal_with_the_name_first(self, crowded, terminal, columns):
        listing = terminal("list", columns=columns)
        assert listing.end() == 0
        heading, *rows = listing.lines
        assert [heading.split()[0], *(row.split()[0][:4] for row in rows)] == [
            *("NAME", "nigh", "repo", "stoc", "xxxx", "锁锁锁锁"),
        ]
        assert len(rows) == 5
        assert max(map(output.cells, listing.lines)) <= columns
        assert {"STATE", "AGE", "OWNER"} <= {*heading.split()}
        assert ("BACKEND" in heading) is (columns == 140)

    def test_is_whole_where_it_is_piped(self, crowded, process):
        heading, *rows = process("list").finish()
        assert [row.split()[0] for row in rows[1:]] == ["report:7", "stock", "x" * 564, "锁" * 282]
        assert heading.split()[-1] == "TOKEN"

    def test_has_colours(self, crowded, terminal):
        listing = terminal("list")
        assert listing.end() == 0
        assert f"{RED}nightly" in listing.printed
        assert f"{RED}stock" not in listing.printed

    def test_has_none_where_they_are_not_wanted(self, crowded, terminal):
        listing = terminal("list", env={"NO_COLOR": "1"})
        assert listing.end() == 0
        assert "\x1b" not in listing.printed

    def test_has_none_in_a_pipe_but_by_force(self, crowded, process):
        assert "\x1b" not in "".join(process("list").finish())
        assert RED in "".join(process("list", "--force-color").finish())


def test_a_lock_is_shown_however_narrow_the_terminal_is(sqlite_only, holder, terminal):
    holder("stock")
    shown = terminal("show", "stock", columns=12)
    assert shown.end() == 0
    assert "stock" in shown.printed


class TestSortedAndChosen:
    def test_by_age_and_by_what_is_left(self, local, run, taken):
        taken("b", lease=600)
        taken("a", lease=300)
        taken("c", lease=400)
        for order, names in {"age": "bac", "left": "acb", "name": "abc"}.items():
            rows = run("list", f"--sort={order}").out.splitlines()[1:]
            assert "".join(row[0] for row in rows) == names

    @pytest.mark.every_day_on("postgresql")
    @pytest.mark.parametrize("kind", ["postgresql"])
    def test_by_waiters(self, shared, run, holder, child):
        holder("a", "b")
        child(hold, "b")

        def first():
            return run("list", "--sort=waiters").out.splitlines()[1].split()

        assert eventually(lambda: first()[4] == "1" and first())[0] == "b"

    def test_by_a_renewal_that_was_missed(self, sqlite_only, run, run_json, holder, overdue):
        holder("calm", "ends")
        overdue("ends")
        held = [lock["name"] for lock in run_json("list", "--state=held")["locks"]]
        assert held == ["calm", "ends"]
        (row,) = run("list", "--state=expiring").out.splitlines()[1:]
        assert row.split()[:2] == ["ends", "expiring"]


class TestWhatDoesNotAnswer:
    @pytest.mark.parametrize("arguments", [("list",), ("show", "stock")])
    def test_is_named_and_hides_nothing(self, sqlite_only, holder, troubled, run, arguments):
        holder("stock")
        result = run(*arguments)
        assert "stock" in result.out
        assert "'dead' could not be asked: " in result.err
        assert f"'mute' could not be asked: no answer within {TIMEOUT:g} seconds" in result.err
        assert result.code == 1

    @pytest.mark.every_day_on("mariadb")
    @pytest.mark.parametrize("kind", ["mariadb", "postgresql"])
    def test_keeps_no_thread_and_no_exit_waiting(self, silenced, process):
        listing = process("list")
        assert (listing.wait(), listing.rest()) == (1, [])
        why = f"'default' could not be asked: no answer within {TIMEOUT:g} seconds"
        assert listing.errors == f"CommandError: {why}\n"

    def test_is_asked_at_the_same_time_as_all_others(self, settings):
        settings.DISTLOCK = {alias: {"BACKEND": LOCAL} for alias in ("a", "b", "c")}
        all_three = threading.Barrier(3)
        assert len(Backends(None).ask(lambda backend: [all_three.wait(30)])) == 3

    def test_is_waited_for_as_long_as_it_goes_on_telling_more(self, settings):
        settings.DISTLOCK = {"default": {"BACKEND": LOCAL}}
        done = threading.Event()
        threading.Timer(0.3, done.set).start()
        heard = {"default": clock() + 60}
        answers = call_backends(
            ["default"], lambda backend, deadline: done.wait(60), timeout=0.05, heard=heard
        )
        assert answers["default"].value
        assert not answers["default"].silent
