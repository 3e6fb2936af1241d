"""``manage.py locks group …`` and the other commands about the coordination family."""

from __future__ import annotations

import json
import re

import pytest
from django.core.management import call_command

from distlock.commands.exit_codes import DONE, FAILED, NOT_HELD, USAGE
from distlock.recipes import Group
from distlock.recipes.config import Config

KINDS = ["group", "config"]


@pytest.fixture(params=["local", "postgresql"])
def kind(request):
    """In one process, and on a server."""
    return request.param


@pytest.mark.parametrize("recipe", KINDS)
class TestEachKind:
    def test_an_empty_list_says_so(self, local, run, recipe):
        result = run(recipe, "list")
        assert (result.code, result.out, result.err) == (DONE, "", f"No {recipe}.\n")

    def test_an_empty_list_in_json(self, local, run_json, recipe):
        assert run_json(recipe, "list") == {f"{recipe}s": [], "unavailable": {}}

    def test_a_backend_that_cannot_be_asked_fails_it(self, settings, backend_settings, run, recipe):
        settings.DISTLOCK = {**backend_settings("local"), "wrong": {"BACKEND": "nowhere.Backend"}}
        result = run(recipe, "list")
        assert (result.code, "'wrong' could not be asked" in result.err) == (FAILED, True)

    def test_an_alias_that_there_is_not_is_refused(self, local, run, recipe):
        result = run(recipe, "list", "--using=x")
        assert (result.code, "has no alias 'x'" in result.err) == (USAGE, True)

    def test_help_names_the_exit_codes(self, local, capsys, recipe):
        with pytest.raises(SystemExit):
            call_command("locks", recipe, "list", "--help")
        assert "Exit codes: 0 done" in " ".join(capsys.readouterr().out.split())


class TestGroup:
    @pytest.fixture
    def member(self, shared):
        with Group("workers", "worker-1", data={"queue": "mail"}) as member:
            yield member

    def test_is_listed_and_shown(self, member, run, run_json):
        assert re.search(r"default +1 +\d{4}-.* workers", run("group", "list").out)
        (entry,) = run_json("group", "list")["groups"]
        assert (entry["name"], entry["using"]) == ("workers", "default")
        assert re.search(
            rf"worker-1 .* {member.token} +.*mail", run("group", "show", "workers").out
        )
        (one,) = run_json("group", "show", "workers")["members"]
        assert (one["name"], one["token"], one["data"]) == (
            "worker-1",
            member.token,
            {"queue": "mail"},
        )

    def test_a_member_is_removed_by_its_token(self, member, run):
        token = str(member.token)
        assert run("group", "remove", "workers", "--yes", "--token=1").code == NOT_HELD
        assert len(member.members()) == 1
        assert run("group", "remove", "workers", "--yes", f"--token={token}").code == DONE
        assert member.members() == ()
        assert run("group", "remove", "workers", "--yes", f"--token={token}").code == NOT_HELD

    def test_nothing_is_removed_where_nobody_can_be_asked(self, member, run):
        result = run("group", "remove", "workers", f"--token={member.token}")
        assert (result.code, "say --yes" in result.err) == (USAGE, True)
        assert len(member.members()) == 1

    def test_one_that_nobody_is_in_has_its_own_exit_code(self, local, run):
        assert run("group", "show", "nobody").code == NOT_HELD


class TestConfig:
    def test_is_set_and_printed(self, shared, run, run_json):
        assert run("config", "get", "limit").code == NOT_HELD
        assert run("config", "set", "limit", "120", "--author=ada", "--comment=x").code == DONE
        assert json.loads(run("config", "get", "limit").out) == 120
        found = run_json("config", "get", "limit")
        assert (found["value"], found["author"], found["comment"]) == (120, "ada", "x")
        assert re.search(r"ada +120 +limit", run("config", "list").out)
        (entry,) = run_json("config", "list")["configs"]
        assert (entry["name"], entry["value"]) == ("limit", 120)

    def test_is_set_only_on_the_version_that_is_meant(self, shared, run):
        version = Config("limit").set(1)
        wrong = run("config", "set", "limit", "2", f"--if-version={version - 1}")
        assert (wrong.code, f"has version {version}" in wrong.err) == (NOT_HELD, True)
        assert run("config", "set", "limit", "2", f"--if-version={version}").code == DONE
        assert Config("limit").get().value == 2

    @pytest.mark.parametrize("value", ["", "x", "{", "[" * 100_000, "NaN"])
    def test_what_is_no_json_is_refused(self, local, run, value):
        result = run("config", "set", "limit", value)
        assert result.code in (FAILED, USAGE)
        assert "JSON" in result.err
        assert run("config", "get", "limit").code == NOT_HELD
