"""`locks ping` asks each backend, all at once, and ends with a code that probes understand."""

import json
import re

import pytest

from distlock.conf import locks
from distlock.recipes import Election

LOCAL = "distlock.backends.local.LocalBackend"
pytestmark = pytest.mark.once


@pytest.fixture
def aliases(backend_settings, settings):
    """PostgreSQL and MariaDB beside a backend that always answers."""
    settings.DISTLOCK = {
        "default": {"BACKEND": LOCAL},
        "first": backend_settings("postgresql")["default"],
        "second": backend_settings("mariadb")["default"],
    }
    yield
    locks.close_all()


def test_each_backend_that_answers_has_a_line(run, aliases):
    ran = run("ping")
    assert ran.code == 0
    lines = ran.out.splitlines()
    assert [line.partition(":")[0] for line in lines] == ["default", "first", "second"]
    assert all("answered in" in line for line in lines)


def test_one_that_is_gone_has_its_problem_and_an_exit_code(run, proxied, aliases):
    proxied("postgresql").refuse()
    ran = run("ping")
    assert ran.code == 1
    assert "default: answered in" in ran.out
    assert "first: " in ran.out
    assert "no answer from 'first'" in ran.err


def test_those_that_are_silent_are_waited_for_at_the_same_time(run_json, proxied, aliases):
    proxied("postgresql").silence()
    proxied("mariadb").silence()
    # The last one could not answer in time if the others were waited for first.
    said = run_json("ping", "first", "second", "default", "--timeout", "4")
    assert said["ok"] is False
    backends = said["backends"]
    assert [alias for alias, one in backends.items() if one["ok"]] == ["default"]
    for alias in "first", "second":
        # A backend's own error can come before "No answer within 4 seconds." It names the time that
        # was left when it began.
        within = re.search(r"within ([\d.]+) s", backends[alias]["problem"])
        assert within and 2 < float(within[1]) <= 4


def test_some_only_may_be_asked(run, proxied, aliases):
    proxied("postgresql").refuse()
    assert run("ping", "default", "second").code == 0


@pytest.mark.parametrize("wrong", [["nowhere"], ["--timeout", "0"], ["--leads", ""]])
def test_a_wrong_command_line_is_refused(run, local, wrong):
    assert run("ping", *wrong).code in (1, 2)
    assert not run("ping", *wrong).out


def test_who_leads_is_asked_of_the_whole_host(process, backend_settings, settings):
    settings.DISTLOCK = backend_settings("sqlite")
    with Election("ping:scheduler"):
        asked = process("ping", "--leads", "ping:scheduler", "--json")
        assert json.loads("\n".join(asked.rest()))["election"] == {
            "name": "ping:scheduler",
            "leads": True,
        }
    nobody = process("ping", "default", "--leads", "ping:scheduler")
    assert nobody.wait() == 3
    assert "nobody does" in nobody.errors


def test_help_says_what_its_exit_codes_mean(process):
    said = " ".join(" ".join(process("ping", "--help").finish()).split())
    assert "1 a backend did not answer" in said
    assert "3 no process of this host leads" in said
