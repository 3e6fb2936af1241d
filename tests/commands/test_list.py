"""``manage.py locks list``"""

from __future__ import annotations

import json
import os
import re
import socket
import threading
from datetime import datetime

import pytest
from django.db import connections

from distlock import Lock, LockUnavailable
from distlock.commands import output
from distlock.conf import locks
from distlock.models import DatabaseLock
from distlock.types.lease import State
from tests.commands.processes import abandon, manage, manage_for_nobody
from tests.contract.watch import eventually
from tests.databases import ALIASES

HOSTILE = [
    "a\u202egnp.exe",
    "<script>alert(1)</script>",
    "x\u2028y",
    "'; DROP TABLE database_lock; --",
    "emoji 🔒 äöü 锁",
    "stock  held  nobody",
]


class TestTable:
    def test_has_the_columns_an_operator_needs(self, local, run, taken):
        taken("stock")
        heading, row = run("list").out.splitlines()
        assert heading.split() == [
            *("NAME", "STATE", "AGE", "LEFT", "WAITERS", "OWNER"),
            *("DESCRIPTION", "BACKEND", "KIND", "TOKEN"),
        ]
        info = local.inspect("stock")
        owner = f"{socket.gethostname()}:{os.getpid()}:MainThread"
        assert row.split()[:2] == ["stock", "held"]
        assert re.fullmatch(r"\d+s", row.split()[2])
        assert re.fullmatch(r"10m00s|9m5\ds", row.split()[3])
        assert row.split()[4:] == ["-", owner, "-", "default", "lock", str(info.token)]

    def test_is_in_order_whatever_a_lock_is_called(self, local, run, taken):
        taken("x" * 564, "stock", "锁" * 564)
        heading, *rows = run("list").out.splitlines()
        (short,) = (row for row in rows if row.startswith("stock"))
        assert heading.index("STATE") == output.WIDEST + len(output.GAP)
        for column, value in [("STATE", "held"), ("WAITERS", "-")]:
            assert short[heading.index(column) :].split()[0] == value
        assert [row.split()[:2] for row in rows] == [
            ["stock", "held"],
            ["x" * 564, "held"],
            ["锁" * 564, "held"],
        ]

    def test_is_whole_where_an_owner_is_long(self, local, run, child):
        threading.current_thread().name, before = "t" * 200, threading.current_thread().name
        try:
            with Lock("stock"):
                heading, row = run("list").out.splitlines()
        finally:
            threading.current_thread().name = before
        assert row.split()[5].endswith("t" * 200)
        assert heading.index("DESCRIPTION") - heading.index("OWNER") == output.WIDEST + 2

    def test_of_nothing_is_empty(self, local, run):
        result = run("list")
        assert (result.out, result.err, result.code) == ("", "No locks.\n", 0)

    @pytest.mark.parametrize("name", HOSTILE)
    def test_prints_one_safe_line_for_each_lock(self, local, run, taken, name):
        taken(name)
        _, row = run("list").out.splitlines()
        assert row.isprintable()

    @pytest.mark.every_day_on("sqlite")
    def test_survives_a_terminal_that_knows_few_characters(self, shared, holder, child):
        holder("emoji 🔒")
        listing = child(manage, "locks", "list", env={"PYTHONIOENCODING": "ascii"})
        assert r"emoji \U0001f512" in listing.finish()[1]

    def test_prints_hostile_owners_safely(self, shared, run, child):
        child(abandon, 600, "stock").finish()
        DatabaseLock.objects.using(shared.settings.options["database"]).update(
            host="\x1b[2J", thread="\u202ethread"
        )
        _, row = run("list").out.splitlines()
        assert row.isprintable()
        assert r"$'\x1b[2J:" in row


class TestFilters:
    def test_by_prefix(self, local, run_json, taken):
        taken("invoice:1", "invoice:2", "report", "invoices")
        found = [lock["name"] for lock in run_json("list", "--prefix", "invoice:")["locks"]]
        assert found == ["invoice:1", "invoice:2"]

    @pytest.mark.parametrize("prefix", ["%", "_nvoice", "invoice%", "\\", "INVOICE"])
    def test_by_prefix_take_every_character_as_it_is(self, shared, run_json, taken, prefix):
        taken("invoice:1")
        assert run_json("list", "--prefix", prefix)["locks"] == []

    @pytest.mark.parametrize("prefix", ["a\x00", "a\nb", "x" * 565])
    def test_by_a_prefix_that_no_name_can_have(self, local, run, prefix):
        result = run("list", f"--prefix={prefix}")
        assert (result.code, "a name cannot begin with" in result.err) == (1, True)

    def test_by_state(self, local, run_json, taken):
        taken("held")
        taken("gone", lease=0.3, renew=False)
        eventually(lambda: local.inspect("gone").state is State.EXPIRED)
        assert [lock["name"] for lock in run_json("list", "--state=held")["locks"]] == ["held"]
        assert [lock["name"] for lock in run_json("list", "--state=expired")["locks"]] == ["gone"]
        both = run_json("list", "--state=held", "--state=expired")["locks"]
        assert [lock["name"] for lock in both] == ["gone", "held"]

    def test_by_backend(self, settings, backend_settings, run_json, taken):
        settings.DISTLOCK = {
            **backend_settings("local"),
            **backend_settings("local", alias="b"),
            **backend_settings("local", alias="c"),
        }
        for alias in ("default", "b", "c"):
            taken("stock", using=alias)
        found = run_json("list", "--using=c", "--using", "b", "--using=c")["locks"]
        assert [lock["using"] for lock in found] == ["c", "b"]
        assert [lock["using"] for lock in run_json("list")["locks"]] == ["default", "b", "c"]

    def test_by_a_backend_that_is_not_configured(self, local, run):
        result = run("list", "--using=elsewhere")
        assert (result.out, result.code) == ("", 2)
        assert "no alias 'elsewhere'; the aliases are: 'default'" in result.err


class TestJSON:
    @pytest.mark.parametrize("name", HOSTILE)
    def test_names_are_exact_and_ascii(self, local, run, taken, name):
        taken(name)
        printed = run("list", "--json").out
        assert printed.isascii()
        assert json.loads(printed)["locks"][0]["name"] == name

    def test_says_all_that_is_known(self, local, run_json, taken):
        taken("stock", description="<b>", owner="order-42")
        lock = run_json("list")["locks"][0]
        info = local.inspect("stock")
        assert 590 < lock.pop("remaining") <= 600
        assert 0 <= lock.pop("held_for") < 60
        assert datetime.fromisoformat(lock.pop("until")) > info.since
        (holder,) = lock.pop("holders")
        assert {key: holder[key] for key in ("owner", "token", "since", "share")} == {
            **{key: lock[key] for key in ("owner", "token", "since")},
            "share": 1,
        }
        assert lock == {
            "using": "default",
            "kind": "lock",
            "slots": 1,
            "name": "stock",
            "state": "held",
            "owner": {
                "host": socket.gethostname(),
                "pid": os.getpid(),
                "thread": "MainThread",
                "name": "order-42",
            },
            "token": info.token,
            "since": info.since.isoformat(),
            "lease": 600.0,
            "renews": True,
            "renewed_at": info.renewed_at.isoformat(),
            "description": "<b>",
            "call_site": info.call_site,
            "last": None,
            "waiting": None,
            "waiting_processes": None,
            "waiters": None,
        }

    def test_of_nothing_is_a_document_too(self, local, run_json):
        assert run_json("list") == {"locks": [], "unavailable": {}}


class TestOtherProcesses:
    def test_are_seen_and_told_apart(self, shared, run_json, holder):
        first, second = holder("a", "b"), holder("c")
        found = run_json("list")["locks"]
        assert [(lock["name"], lock["owner"]["pid"], lock["token"]) for lock in found] == [
            ("a", first.pid, first.tokens[0]),
            ("b", first.pid, first.tokens[1]),
            ("c", second.pid, second.tokens[0]),
        ]

    def test_that_are_gone_leave_expired_locks(self, shared, run_json, abandoned):
        abandoned("stock")
        lock = run_json("list")["locks"][0]
        assert (lock["name"], lock["state"]) == ("stock", "expired")

    def test_free_locks_are_not_listed(self, shared, run_json, holder):
        process = holder("stock")
        process.tell()
        process.finish()
        assert run_json("list")["locks"] == []

    @pytest.mark.every_day_on("sqlite")
    def test_the_command_works_as_a_program(self, shared, process, holder):
        holder("stock")
        listing = process("list", "--json", "--no-color", "-v", "0")
        assert json.loads("".join(listing.finish()))["locks"][0]["name"] == "stock"


class TestUnreachableBackends:
    @pytest.fixture
    def half(self, settings, backend_settings, server):
        settings.DISTLOCK = {
            **backend_settings("postgresql", alias="gone", OPTIONS={"timeout": 2}),
            **backend_settings("local"),
        }
        server("postgresql").stop()
        yield
        locks.close_all()
        connections[ALIASES["postgresql"]].close()

    def test_do_not_hide_the_others(self, half, run, taken):
        taken("stock")
        result = run("list")
        assert "stock" in result.out
        assert "'gone' could not be asked: " in result.err
        assert result.code == 1

    def test_are_named_in_json(self, half, run, taken):
        taken("stock")
        result = run("list", "--json")
        document = json.loads(result.out)
        assert [lock["name"] for lock in document["locks"]] == ["stock"]
        assert list(document["unavailable"]) == ["gone"]
        assert result.code == 1

    def test_are_not_taken_for_empty_ones(self, half, run):
        result = run("list")
        assert (result.out, "No locks" in result.err, result.code) == ("", False, 1)

    def test_do_not_matter_when_they_are_not_asked(self, half, run):
        assert run("list", "--using=default").code == 0

    def test_that_are_configured_wrongly_do_not_hide_the_others(self, settings, run, taken):
        settings.DISTLOCK = {
            "default": {"BACKEND": "distlock.backends.local.LocalBackend"},
            "wrong": {"BACKEND": "distlock.backends.local.LocalBackend", "LEASE": -1},
        }
        taken("stock")
        result = run("list")
        assert "stock" in result.out
        assert "DISTLOCK['wrong']: LEASE must be" in result.err
        assert result.code == 1


@pytest.mark.once
class TestHundredThousandLocks:
    @pytest.fixture
    def many(self, kind, shared, server):
        """Rows made by the database itself, as fast as it can."""
        digits = " UNION ALL ".join(f"SELECT {digit} AS n" for digit in range(10))
        number = "100000 + a.n + 10 * b.n + 100 * c.n + 1000 * d.n + 10000 * e.n"
        name = f"'x' || ({number})" if kind == "sqlite" else f"CONCAT('x', {number})"
        column = "`lock`" if kind == "mariadb" else "lock"
        database = server(kind)
        database.execute(
            f"INSERT INTO database_lock ({column}, owner, nonce, host, process, thread, token,"
            f" acquired_at, expires_at, description) SELECT {name}, 'someone', 'nonce', 'host', 1,"
            f" 'thread', 1, '2026-01-01 00:00:00', '2999-01-01 00:00:00', '' FROM"
            + ",".join(f" ({digits}) {table}" for table in "abcde")
        )
        yield
        database.execute("DELETE FROM database_lock")

    @pytest.mark.slow
    @pytest.mark.timeout(500)
    def test_are_all_listed_to_those_who_want_them_all(self, many, process, child):
        lines = process("list").finish(timeout=200)
        names = [line.split()[0] for line in lines[1:]]
        assert names == [f"x{number}" for number in range(100_000, 200_000)]
        listing = child(manage_for_nobody, "locks", "list")
        assert (listing.wait(timeout=200), listing.errors) == (0, "")


class TestMoreThanIsReadAtOnce:
    @pytest.fixture(autouse=True)
    def few_at_once(self, monkeypatch):
        monkeypatch.setattr(output, "AT_ONCE", 2)

    def test_is_the_same_json(self, run, taken, local):
        names = ["a", "b", "c", "d", "e"]
        taken(*names)
        text = run("list", "--json").out
        document = json.loads(text)
        assert [lock["name"] for lock in document["locks"]] == names
        assert document["unavailable"] == {}
        assert text == json.dumps(document, indent=1) + "\n"

    def test_is_in_the_order_of_names_whichever_backend_has_them(self, run, settings, taken):
        one = {"BACKEND": "distlock.backends.local.LocalBackend"}
        settings.DISTLOCK = {"default": one, "other": one}
        for number, alias in enumerate(["default", "other"] * 4):
            taken(f"n{number}", using=alias)
        document = json.loads(run("list", "--json").out)
        assert [lock["name"] for lock in document["locks"]] == [f"n{each}" for each in range(8)]

    def test_tells_what_failed_after_it_had_answered_some(self, run, taken, local, monkeypatch):
        taken("a", "b", "c", "d", "e")
        found = local.list()

        def failing(prefix="", deadline=None):
            yield from found[:3]
            raise LockUnavailable("gone")

        monkeypatch.setattr(local, "list", failing)
        done = run("list", "--json")
        document = json.loads(done.out)
        assert [lock["name"] for lock in document["locks"]] == ["a", "b"]
        assert document["unavailable"] == {"default": "gone"}
        assert done.code == 1
