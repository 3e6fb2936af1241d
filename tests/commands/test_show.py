"""``manage.py locks show NAME``"""

from __future__ import annotations

import os
import re
import socket
import subprocess

import pytest

from distlock.recipes import Config, Queue
from tests.commands.processes import hold
from tests.contract.watch import eventually


class TestAHeldLock:
    def test_is_shown_with_its_holder(self, local, run, taken):
        token = taken("stock", description="count <all>", owner="order-42")[0].token
        result = run("show", "stock")
        assert result.code == 0
        assert result.out.startswith("stock on default\n")
        shown = dict(re.split(r"\s{2,}", line.strip(), maxsplit=1) for line in lines(result.out))
        assert shown["state"] == "held"
        assert shown["token"] == str(token)
        assert shown["description"] == "count <all>"
        assert shown["owner"] == f"{socket.gethostname()}:{os.getpid()}:MainThread"
        assert shown["owner's name"] == "order-42"
        assert re.fullmatch(r"10m00s, last renewed or taken \d{4}-.*", shown["lease"])
        assert shown["waiters"] == "not known to this backend"
        assert re.fullmatch(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\+05:45 \(\d+s\)", shown["held since"])
        assert re.search(r" \(in (9m5\ds|10m00s)\)$", shown["lease ends"])

    @pytest.mark.parametrize(
        "name", ["stock", "it's $HOME", "a\u202e\\b", "-x", "🔒", "a  b", "$'x'"]
    )
    def test_comes_with_the_line_that_breaks_it(self, local, run, taken, name):
        (lock,) = taken(name)
        line = re.search(r"to break it +manage.py locks (.*)", run("show", "--", name).out)[1]
        assert line.isprintable()
        words = subprocess.run(
            ["bash", "-c", rf"printf '%s\0' --yes {line}"],
            capture_output=True,
            check=True,
            env={"LC_ALL": "C.UTF-8"},
        ).stdout
        _yes, *arguments, _end = words.decode().split("\0")
        assert run("release", "--yes", *arguments[1:]).code == 0
        assert not lock.held

    def test_is_shown_in_json(self, local, run_json, taken):
        token = taken("stock")[0].token
        document = run_json("show", "stock")
        assert [(lock["name"], lock["token"]) for lock in document["locks"]] == [("stock", token)]

    def test_is_told_from_those_of_similar_names(self, shared, run, taken):
        taken("Stock")
        assert run("show", "stock").code == 3
        assert run("show", "Stock").code == 0

    def test_shows_its_waiters_in_order_where_they_are_known(self, shared, run, taken, child):
        taken("stock")
        if not shared.capabilities.waiters:
            assert re.search("waiters +not known to this backend", run("show", "stock").out)
            return
        waiting = []
        for place in (1, 2):
            waiting.append(child(hold, "stock"))
            eventually(lambda place=place: len(shared.inspect("stock").waiters) >= place)
        # The first in line may ask now and then, and is not seen in between.
        out = eventually(lambda: re.search(r"(?s).*waiters +2\n.*", run("show", "stock").out))[0]
        for place, process in enumerate(waiting, 1):
            assert re.search(rf"  {place}\. +{socket.gethostname()}:{process.pid}:", out)
        eventually(lambda: run("list").out.splitlines()[1].split()[4] == "2")


class TestAFreeLock:
    def test_has_its_own_exit_code(self, local, run):
        result = run("show", "stock")
        assert (result.code, result.err) == (3, "lock 'stock' is not held, and not known")
        assert result.out == ""

    def test_tells_its_last_token(self, shared, run, holder):
        process = holder("stock")
        process.tell()
        process.finish()
        result = run("show", "stock")
        assert re.search(rf"last token +{process.tokens[0]}\n", result.out)
        assert (result.code, result.err) == (3, "lock 'stock' is not held")

    def test_is_told_from_one_that_cannot_be_asked(self, settings, backend_settings, run):
        settings.DISTLOCK = {
            **backend_settings("local"),
            "wrong": {"BACKEND": "nowhere.Backend"},
        }
        result = run("show", "stock")
        assert (result.code, "'wrong' could not be asked" in result.err) == (1, True)


class TestWhereANameIsKnown:
    @pytest.fixture(autouse=True)
    def two(self, settings, backend_settings):
        settings.DISTLOCK = {**backend_settings("local"), **backend_settings("local", alias="b")}

    def test_only_what_is_known_is_shown(self, run, run_json, taken):
        taken("stock", using="b")
        result = run("show", "stock")
        assert result.out.startswith("stock on b\n")
        assert result.out.endswith("\nNo such lock on: default\n")
        assert result.code == 0
        assert [lock["using"] for lock in run_json("show", "stock")["locks"]] == ["default", "b"]

    def test_what_else_has_the_name_is_named(self, run, run_json):
        Queue("letters", using="b").put("to ada")
        Config("letters-per-hour").set(3)
        result = run("show", "letters")
        line = "manage.py locks queue show --using=b letters"
        assert result.out == f"There is also letters (queue on b): {line}\n"
        assert (result.code, result.err) == (3, "lock 'letters' is not held, and not known")
        found = run_json("show", "letters-per-hour")["namesakes"]
        assert found == [{"name": "letters-per-hour", "kind": "config", "using": "default"}]
        assert "locks config get --using=default" in run("show", "letters-per-hour").out

    @pytest.mark.parametrize("typed", ["stok", "Stock", "tock", "stocks"])
    def test_names_that_are_alike_are_proposed(self, run, run_json, taken, typed):
        taken("stock", "report:7")
        result = run("show", typed)
        assert result.out == "Similar names: stock (lock on default)\n"
        assert (result.code, result.err) == (3, f"lock {typed!r} is not held, and not known")
        (similar,) = run_json("show", typed)["similar"]
        assert similar == {"name": "stock", "kind": "lock", "using": "default"}

    def test_names_of_which_it_is_a_part_are_proposed_but_not_all_of_many(self, run_json, taken):
        taken(*(f"account:{number}:nightly-report" for number in range(9)))
        found = run_json("show", "account")["similar"]
        assert [one["name"][:8] for one in found] == ["account:"] * 5

    def test_nothing_is_proposed_that_is_not_alike(self, run, taken):
        taken("report:7")
        assert run("show", "stock").out == ""


@pytest.mark.parametrize("name", ["", " ", "a\nb", "a ", "x" * 565, "\udcff"])
def test_what_can_be_no_name_is_refused(local, run, name):
    result = run("show", "--json", "--", name)
    assert (result.code, "name must" in result.err) == (1, True)
    assert result.err.isprintable()


def lines(out):
    return [line for line in out.splitlines() if line.startswith("  ")]
