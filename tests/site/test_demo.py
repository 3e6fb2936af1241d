"""``manage.py demo`` shows true results, and leaves no process behind."""

from __future__ import annotations

import os
import re
import signal
import subprocess
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any
from urllib.error import HTTPError
from urllib.parse import urlencode
from urllib.request import HTTPCookieProcessor, Request, build_opener, urlopen

import pytest
from django.contrib.auth.models import User
from django.db.models import Sum

from locksite.demo.models import Counter, Entry
from locksite.shop.models import Event
from tests.contract.watch import eventually
from tests.databases import ALIASES, DATABASES
from tests.servers.guard import descendants, started_at
from tests.site.conftest import Manage

#: Seconds in which all that the demo shows has been seen.
LIMIT = 300.0
pytestmark = [pytest.mark.once, pytest.mark.timeout(LIMIT + 60)]
#: how many numbered things the demo shows
SYSTEMS = 20
#: Seconds: people who watch the demo see soon who has died. Here many tests run beside it, and a
#: disk may stand still for some seconds.
PATIENT = {"LEASE": "8", "TIMEOUT": "20"}


@contextmanager
def all_ended(process: subprocess.Popen[str]) -> Iterator[None]:
    """Check that every process below ``process`` at this moment is gone afterwards."""
    born = {pid: started_at(pid) for pid in descendants(process.pid)}
    assert len(born) > 1
    yield
    eventually(lambda: not any(start and started_at(pid) == start for pid, start in born.items()))


def lines_until(process: subprocess.Popen[str], pattern: str) -> re.Match[str]:
    """Read what the process prints until a line matches."""
    assert process.stdout is not None
    for line in process.stdout:
        if match := re.search(pattern, line):
            return match
    raise AssertionError(f"it ended without {pattern!r}: {process.communicate()[1]}")


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["sqlite", "zookeeper", "etcd"])
def test_with_the_lock_everything_comes_out_exactly(
    kind: str, manage: Manage, database_url: Callable[[str], str], request: Any
) -> None:
    there = {}
    if kind != "sqlite":
        there = {"LOCKS": kind, kind.upper(): request.getfixturevalue(kind).hosts}
    process = manage("demo", "--once", DATABASE_URL=database_url("sqlite"), **PATIENT, **there)
    out, errors = process.communicate(timeout=LIMIT)
    assert process.returncode == 0, out + errors
    assert not errors
    table = [line.split() for line in out.splitlines() if line.strip()]
    assert {line[-1] for line in table[2:]} == {"yes"}
    assert set(map(str, range(1, SYSTEMS + 1))) <= {line[0] for line in table[2:]}
    assert re.search(r"additions, under the lock +100 +100 +yes", out)
    assert re.search(r"seats, under the lock +20 sold +20 sold +yes", out)
    assert re.search(r"release_expired_orders, at once +1 runs +1 ran +yes", out)
    assert re.search(r"a semaphore of 2 +≤ 2 at once +[12] at once +yes", out)
    assert re.search(r"killed: holders +A, B, C +A, B, C +yes", out)
    for model in (Counter, Entry, Event):
        assert not model.objects.using(ALIASES["sqlite"]).exists()


@pytest.mark.slow
def test_locks_that_other_processes_do_not_see_are_found_out(
    manage: Manage, database_url: Callable[[str], str]
) -> None:
    """The control: with locks that keep nobody out, the demo must not be content."""
    process = manage("demo", "--once", DATABASE_URL=database_url("sqlite"), LOCKS="local")
    out, errors = process.communicate(timeout=LIMIT)
    assert process.returncode == 1
    assert "Not everything came out as it must." in errors
    assert re.search(r"additions, under the lock +100 +\d\d +NO", out)


def test_tables_that_are_not_there_are_said_to_be_missing(manage: Manage, tmp_path: Any) -> None:
    process = manage("demo", "--once", DATABASE_URL=f"sqlite:///{tmp_path}/new.sqlite3")
    _, errors = process.communicate(timeout=LIMIT)
    assert process.returncode == 1
    assert errors == "CommandError: The tables are not up to date: run `manage.py migrate` first.\n"


@pytest.mark.slow
@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_however_it_ends_its_workers_end_too(
    signum: signal.Signals, manage: Manage, database_url: Callable[[str], str]
) -> None:
    process = manage("demo", "--once", DATABASE_URL=database_url("sqlite"))
    lines_until(process, "no lock")
    with all_ended(process):
        process.send_signal(signum)
        _, errors = process.communicate(timeout=LIMIT)
    if signum != signal.SIGKILL:
        assert (process.returncode, errors) == (130, "CommandError: Interrupted.\n")


@pytest.mark.slow
@pytest.mark.parametrize("kind", DATABASES)
def test_the_site_is_served_and_sells_every_seat_once(
    kind: str, manage: Manage, shop: Any, database_url: Callable[[str], str]
) -> None:
    process = manage("demo", "--serve", "--port=0", DATABASE_URL=database_url(kind), **PATIENT)
    site = lines_until(process, r"http://[\d.]+:\d+")[0]
    using = {"sqlite": "default"}.get(kind, kind)
    opened = set(Event.objects.using(using).values_list("slug", flat=True))
    assert "tidelines" in opened
    event = shop(15, using=using)

    panel = lines_until(process, r"for operators: (http://\S+)")[1]
    sign_in = lines_until(process, r"Sign in as (\S+) with the password (\S+)")
    assert "Held locks" in admin_page(panel, *sign_in.groups())
    assert b"Recital" in urlopen(f"{site}/", timeout=LIMIT).read()
    assert urlopen(f"{site}/static/shop/shop.css", timeout=LIMIT).status == 200

    with ThreadPoolExecutor(8) as buyers:
        answers = list(buyers.map(lambda _: buy(f"{site}/api/events/recital/orders/"), range(20)))
    assert sorted(answers) == [201] * 15 + [409] * 5
    event.refresh_from_db()
    assert event.seats_left == 0
    assert event.orders.aggregate(sold=Sum("quantity"))["sold"] == 15

    with all_ended(process):
        process.send_signal(signal.SIGINT)
        out, errors = process.communicate(timeout=LIMIT)
    assert (process.returncode, errors) == (0, "")
    summary = re.search(r"oversold: (\d+). Additions: (\d+), counted: (\d+)", out)
    assert summary is not None
    oversold, added, counted = map(int, summary.groups())
    assert oversold == 0
    assert added == counted


def admin_page(url: str, user: str, password: str) -> str:
    """Sign in where the page sends one to, and return the page."""
    opener = build_opener(HTTPCookieProcessor())
    form = opener.open(url, timeout=LIMIT)
    token = re.search(r'csrfmiddlewaretoken" value="(\w+)"', form.read().decode())
    assert token is not None
    fields = {"csrfmiddlewaretoken": token[1], "username": user, "password": password, "next": url}
    opener.open(form.url, urlencode(fields).encode(), timeout=LIMIT).read()
    return str(opener.open(url, timeout=LIMIT).read().decode())


@pytest.mark.slow
def test_the_operators_password_ends_with_the_demo(
    manage: Manage, database_url: Callable[[str], str]
) -> None:
    process = manage("demo", "--serve", "--port=0", DATABASE_URL=database_url("sqlite"))
    sign_in = lines_until(process, r"Sign in as (\S+) with the password (\S+)")
    user = User.objects.get(username=sign_in[1])
    assert user.check_password(sign_in[2])
    assert not user.is_superuser
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=LIMIT)
    user.refresh_from_db()
    assert not user.has_usable_password()


@pytest.mark.slow
def test_without_debug_there_is_no_operator(
    manage: Manage, database_url: Callable[[str], str]
) -> None:
    process = manage("demo", "--serve", "--port=0", DATABASE_URL=database_url("sqlite"), DEBUG="0")
    lines_until(process, "The shop is open")
    process.send_signal(signal.SIGINT)
    out, _ = process.communicate(timeout=LIMIT)
    assert "password" not in out


def buy(url: str) -> int:
    """Buy one seat; returns the answer's status."""
    request = Request(url, b'{"quantity": 1, "buyer": "Ada"}')
    request.add_header("Content-Type", "application/json")
    try:
        with urlopen(request, timeout=LIMIT) as answer:
            return int(answer.status)
    except HTTPError as error:
        return error.code


@pytest.mark.slow
def test_a_port_that_is_taken_is_an_error_if_it_was_asked_for(
    manage: Manage, shop: Any, database_url: Callable[[str], str]
) -> None:
    url = database_url("sqlite")
    first = manage("demo", "--serve", "--port=0", DATABASE_URL=url)
    port = lines_until(first, r"http://[\d.]+:(\d+)")[1]
    second = manage("demo", "--serve", f"--port={port}", DATABASE_URL=url)
    _, errors = second.communicate(timeout=LIMIT)
    assert second.returncode == 1
    assert errors == f"CommandError: Cannot serve on port {port}: Address already in use.\n"
    os.kill(first.pid, signal.SIGINT)
    first.communicate(timeout=LIMIT)
