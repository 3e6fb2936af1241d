"""``manage.py locks group …`` and the other commands about the coordination family."""

from __future__ import annotations

import json
import re
import threading
from contextlib import suppress

import pytest
from django.core.management import call_command
from django.utils import translation

from distlock.commands.exit_codes import BUSY, DONE, FAILED, NOT_HELD, USAGE
from distlock.exceptions import LockError
from distlock.recipes import (
    Barrier,
    Config,
    CountDownLatch,
    Counter,
    DoubleBarrier,
    Election,
    Event,
    Group,
    Names,
    Progress,
    Queue,
    RateLimiter,
    Topic,
)
from tests.contract.watch import eventually

pytestmark = pytest.mark.once

#: the kinds, and what their lists are called in JSON
KINDS = {
    "election": "elections",
    "group": "groups",
    "barrier": "barriers",
    "double-barrier": "double_barriers",
    "event": "events",
    "count-down-latch": "count_down_latches",
    "counter": "counters",
    "rate-limiter": "rate_limiters",
    "queue": "queues",
    "config": "configs",
    "topic": "topics",
    "names": "namespaces",
    "progress": "progress",
}


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
        assert run_json(recipe, "list") == {KINDS[recipe]: [], "unavailable": {}}

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


class TestElection:
    @pytest.fixture
    def leader(self, shared):
        with Election("scheduler", "ada", data={"zone": "a"}) as leader:
            yield leader

    def test_is_listed_and_shown(self, leader, run, run_json):
        assert re.search(
            rf"scheduler +ada .* 1 +first +{leader.term} +default", run("election", "list").out
        )
        (entry,) = run_json("election", "list")["elections"]
        assert (entry["name"], entry["leader"]["name"]) == ("scheduler", "ada")
        shown = run("election", "show", "scheduler").out
        assert re.search(rf"term +{leader.term}", shown)
        assert re.search(r"ada +leads .*zone", shown)
        found = run_json("election", "show", "scheduler")
        assert [one["term"] for one in found["candidates"]] == [leader.term]

    def test_who_waits_in_it_is_told_from_who_leads(self, shared, run):
        leader, other = Election("scheduler", "ada"), Election("scheduler", "bob")
        leader.campaign()
        thread = threading.Thread(target=other.campaign, daemon=True)
        thread.start()
        eventually(lambda: len(leader.candidates()) == 2)
        shown = run("election", "show", "scheduler").out
        leader.resign()
        thread.join(10)
        other.resign()
        assert re.search(r"ada +leads ", shown)
        assert re.search(r"bob +waits ", shown)

    def test_its_history_tells_who_has_led(self, leader, run, run_json):
        term = leader.term
        leader.resign()
        assert re.search(rf"ada .* resigned +{term}\n", run("election", "history", "scheduler").out)
        (one,) = run_json("election", "history", "scheduler")["history"]
        assert (one["term"], one["candidate"], one["why"]) == (term, "ada", "resigned")
        leader.campaign()

    def test_a_leader_is_asked_to_step_down_by_its_term(self, shared, run):
        lost = threading.Event()
        leader = Election("scheduler", "ada", on_lost=lambda lease: lost.set())
        leader.campaign()
        step_down = ("election", "step-down", "scheduler", "--yes")
        assert run(*step_down, f"--term={leader.term + 1}").code == NOT_HELD
        assert leader.leading
        assert run(*step_down, f"--term={leader.term}").code == DONE
        assert lost.wait(30)
        assert not leader.leading
        with suppress(LockError):
            leader.resign()

    def test_one_who_stands_is_appointed(self, leader, run, run_json):
        assert run("election", "appoint", "scheduler", "ada").code == DONE
        wrong = run("election", "appoint", "scheduler", "eve")
        assert (wrong.code, "the candidates are: ada" in wrong.err) == (NOT_HELD, True)

    def test_one_that_nobody_stands_in_has_its_own_exit_code(self, local, run):
        for verb in ("show", "history"):
            assert run("election", verb, "nothing").code == NOT_HELD


class TestGroup:
    @pytest.fixture
    def member(self, shared):
        with Group("workers", "worker-1", data={"queue": "mail"}) as member:
            yield member

    def test_is_listed_and_shown(self, member, run, run_json):
        assert re.search(r"workers +1 +worker-1 +\d+s +default", run("group", "list").out)
        (entry,) = run_json("group", "list")["groups"]
        assert (entry["name"], entry["using"]) == ("workers", "default")
        assert re.search(
            rf"worker-1 .*mail.* {member.token}\n", run("group", "show", "workers").out
        )
        (one,) = run_json("group", "show", "workers")["members"]
        assert (one["name"], one["token"], one["data"]) == (
            "worker-1",
            member.token,
            {"queue": "mail"},
        )

    def test_one_that_nobody_is_in_has_its_own_exit_code(self, local, run):
        assert run("group", "show", "nobody").code == NOT_HELD


class TestQueue:
    @pytest.fixture
    def letters(self, shared):
        letters = Queue("letters", max_deliveries=1)
        letters.put("to ada")
        letters.put("to bob")
        letters.get().nack()
        return letters

    def test_is_listed_and_shown(self, letters, run, run_json):
        with letters.get() as delivery:
            letters.put("to eve")
            assert re.search(r"letters +1 +1 +0 +1 +- +\d+s +default", run("queue", "list").out)
            shown = run("queue", "show", "letters").out
            assert re.search(rf"delivered +.* {delivery.token}\n", shown)
            (entry,) = run_json("queue", "list")["queues"]
            assert (entry["name"], entry["ready"], entry["dead"]) == ("letters", 1, 1)
            (one,) = run_json("queue", "show", "letters")["deliveries"]
            assert one["token"] == delivery.token

    def test_a_dead_letter_is_put_back(self, letters, run, run_json):
        (dead,) = run_json("queue", "dead", "letters")["dead"]
        assert dead["body"] == "to ada"
        assert "to ada" in run("queue", "dead", "letters").out
        assert run("queue", "retry", "letters", "--item=99999").code == NOT_HELD
        assert run("queue", "retry", "letters", f"--item={dead['id']}").code == DONE
        assert letters.info().ready == 2
        assert run("queue", "retry", "letters", "--all").code == NOT_HELD

    def test_all_dead_letters_are_put_back(self, letters, run, run_json):
        impatient = Queue("letters", max_deliveries=1)
        for _ in range(9):
            impatient.put_many(["to eve"] * 12)
        while letters.info().ready:
            for delivery in impatient.get_many(12):
                delivery.nack()
        dead = letters.info().dead
        assert dead > 100
        assert len(run_json("queue", "dead", "letters")["dead"]) == dead
        assert f"{dead} put back" in run("queue", "retry", "letters", "--all").out
        assert (letters.info().ready, letters.info().dead) == (dead, 0)

    def test_a_dead_letter_waits_for_room(self, letters, run):
        letters.resize(1)
        result = run("queue", "retry", "letters", "--all")
        assert (result.code, "is full" in result.err) == (BUSY, True)
        assert len(letters.dead()) == 1

    def test_an_item_is_taken_back_by_its_token(self, letters, run):
        delivery = letters.get()
        release = ("queue", "release", "letters", "--yes", f"--item={delivery.id}")
        assert run(*release, f"--token={delivery.token + 1}").code == NOT_HELD
        assert letters.info().delivered == 1
        assert run(*release, f"--token={delivery.token}").code == DONE
        assert letters.info().delivered == 0
        with suppress(LockError):
            delivery.ack()

    def test_what_asks_first_says_what_it_would_do(self, letters, run):
        delivery = letters.get()
        release = ("queue", "release", "letters", f"--item={delivery.id}")
        asked = run(*release, f"--token={delivery.token}")
        assert (asked.code, letters.info().delivered) == (USAGE, 1)  # no terminal to ask at
        assert re.search(rf"item +{delivery.id}\n", asked.out)
        assert "can no longer acknowledge it" in asked.out
        delivery.ack()

    def test_is_purged(self, letters, run):
        assert run("queue", "purge", "letters", "--yes").code == DONE
        assert (letters.info().ready, letters.info().dead) == (0, 1)
        assert run("queue", "purge", "letters", "--yes", "--dead").code == DONE
        assert letters.info().dead == 0

    def test_its_bound_is_changed(self, letters, run):
        assert run("queue", "resize", "letters", "20").code == DONE
        assert letters.info().maxsize == 20


class TestConfig:
    def test_is_set_and_printed(self, shared, run, run_json):
        assert run("config", "get", "limit").code == NOT_HELD
        assert run("config", "set", "limit", "120", "--as=ada", "--reason=x").code == DONE
        assert json.loads(run("config", "get", "limit").out) == 120
        found = run_json("config", "get", "limit")
        assert (found["value"], found["who"], found["reason"]) == (120, "ada", "x")
        assert re.search(r"limit +120 +\d+ +ada +\d{4}-.* default", run("config", "list").out)
        (entry,) = run_json("config", "list")["configs"]
        assert (entry["name"], entry["value"]) == ("limit", 120)

    def test_is_set_only_on_the_version_that_is_meant(self, shared, run):
        version = Config("limit").set(1)
        wrong = run("config", "set", "limit", "2", f"--if-version={version - 1}")
        assert (wrong.code, f"has version {version}" in wrong.err) == (NOT_HELD, True)
        assert run("config", "set", "limit", "2", f"--if-version={version}").code == DONE
        assert Config("limit").get().value == 2

    def test_is_rolled_back_to_a_version_of_its_history(self, shared, run, run_json):
        first, second = Config("limit").set(1, reason="as it was"), Config("limit").set(2)
        assert re.search(r" 1 .* as it was\n", run("config", "history", "limit").out)
        versions = [one["version"] for one in run_json("config", "history", "limit")["history"]]
        assert versions == [second, first]
        stale = run("config", "rollback", "limit", str(first), f"--if-version={first}")
        assert (stale.code, Config("limit").get().value) == (NOT_HELD, 2)
        assert run("config", "rollback", "limit", str(first)).code == DONE
        assert Config("limit").get().value == 1
        assert run("config", "rollback", "limit", "99999").code == USAGE

    @pytest.mark.parametrize("value", ["", "x", "{", "[" * 100_000, "NaN"])
    def test_what_is_no_json_is_refused(self, local, run, value):
        result = run("config", "set", "limit", value)
        assert result.code in (FAILED, USAGE)
        assert "JSON" in result.err
        assert run("config", "get", "limit").code == NOT_HELD


class TestProgress:
    @pytest.fixture
    def work(self, shared):
        with Progress("import", total=4, unit="rows") as work:
            yield work

    def test_is_listed_and_shown(self, work, run, run_json):
        assert re.search(r"import +running +0% .* default", run("progress", "list").out)
        (entry,) = run_json("progress", "list")["progress"]
        assert (entry["name"], entry["state"], entry["total"]) == ("import", "running", 4)
        shown = run("progress", "show", "import").out
        assert "[                    ] 0% (0 of 4 rows)" in shown
        assert re.search(rf"token +{Progress.get('import').token}\n", shown)
        assert run_json("progress", "show", "import")["unit"] == "rows"

    @pytest.mark.parametrize("kind", ["postgresql"])
    def test_is_watched_until_it_has_ended(self, work, process):
        watching = process("progress", "watch", "import")
        assert "  0%" in watching.line()
        work.advance(4)
        work.finish()
        *_, last = watching.finish()
        assert "100%" in last
        assert "done" in last

    def test_is_asked_to_end(self, work, run):
        token = Progress.get("import").token
        assert run("progress", "cancel", "import", "--yes", f"--token={token + 1}").code == NOT_HELD
        assert not Progress.get("import").cancelling
        assert run("progress", "cancel", "import", "--yes", f"--token={token}").code == DONE
        assert Progress.get("import").cancelling

    def test_that_nobody_reports_has_its_own_exit_code(self, local, run):
        for verb in ("show", "watch", "cancel"):
            assert run("progress", verb, "nothing").code == NOT_HELD

    def test_that_has_ended_cannot_be_asked_to_end(self, work, run):
        work.finish()
        assert run("progress", "cancel", "import", "--yes").code == NOT_HELD
        assert "done" in run("progress", "show", "import").out


class TestWhatIsOnlyLookedAt:
    @pytest.mark.parametrize("make", [Barrier, DoubleBarrier])
    def test_barriers(self, local, run, run_json, make):
        kind = str(make.kind)
        make("ready", 3).abort()
        assert re.search(r"ready +broken +0 +.* default", run(kind, "list").out)
        assert run_json(kind, "list")[KINDS[kind]][0]["broken"]
        assert re.search(r"state +broken", run(kind, "show", "ready").out)
        assert run_json(kind, "show", "ready")["waiting"] == []

    def test_events(self, shared, run, run_json):
        Event("ready").set()
        assert re.search(r"ready +set +.* default", run("event", "list").out)
        assert run_json("event", "list")["events"][0]["is_set"] is True
        assert re.search(r"state +set", run("event", "show", "ready").out)
        assert run_json("event", "show", "ready")["is_set"] is True

    def test_latches(self, shared, run, run_json):
        CountDownLatch("parts", 3).count_down()
        listed = run("count-down-latch", "list").out
        assert re.search(r"parts +closed +2 +3 +.* default", listed)
        assert run_json("count-down-latch", "list")["count_down_latches"][0]["count"] == 2
        CountDownLatch("parts").count_down(2)
        assert re.search(r"state +open", run("count-down-latch", "show", "parts").out)
        assert run_json("count-down-latch", "show", "parts")["began"] == 3

    def test_counters(self, shared, run, run_json):
        Counter("orders").add(7)
        assert re.search(r"orders +7 +\S+ .* default", run("counter", "list").out)
        assert re.search(r"value +7", run("counter", "show", "orders").out)
        assert run_json("counter", "show", "orders")["value"] == 7

    def test_rate_limiters(self, shared, run, run_json):
        RateLimiter("sms", 3, 3600).acquire(2)
        assert re.search(r"sms +2 +3 +1h00m +0 +default", run("rate-limiter", "list").out)
        assert re.search(r"taken +2", run("rate-limiter", "show", "sms").out)
        shown = run_json("rate-limiter", "show", "sms")
        assert (shown["taken"], shown["permits"], shown["waiting"]) == (2, 3, [])

    def test_tables_are_in_english_whatever_the_language_is(self, local, run):
        Event("ready").set()
        with translation.override("de"):
            listed = run("event", "list").out
        assert re.match(r"NAME +STATE +CHANGED BY +CHANGED +BACKEND\nready +set ", listed)

    def test_topics(self, shared, run, run_json):
        numbers = [Topic("prices").publish(price) for price in (61.4, 62.0)]
        assert re.search(rf"prices +{numbers[1]} .* default", run("topic", "list").out)
        assert re.search(r"\d +62.0 .*\n\d+ +61.4 .*\n", run("topic", "show", "prices").out)
        found = run_json("topic", "show", "prices")["entries"]
        assert [one["message"] for one in found] == [62.0, 61.4]

    def test_names(self, shared, run, run_json):
        with Names("printers").register("front desk", "10.0.0.7:631") as registration:
            assert re.search(r"printers +1 +front desk +default", run("names", "list").out)
            shown = run("names", "show", "printers").out
            assert re.search(rf"front desk +10.0.0.7:631 +unique .* {registration.token}\n", shown)
            (one,) = run_json("names", "show", "printers")["entries"]
            assert (one["name"], one["address"]) == ("front desk", "10.0.0.7:631")
