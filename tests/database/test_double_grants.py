"""Processes that fight for one lock: it is never granted twice, and the checker would notice."""

import os
import random
import threading
import time
from pathlib import Path

import pytest
from django.db import connections

from distlock.backends.database.connection import CursorConnection
from distlock.backends.database.mariadb import MariaDB
from distlock.backends.database.statements import Result, Statement
from distlock.concurrency.clock import clock
from distlock.concurrency.steps import run
from distlock.exceptions import LockUnavailable
from tests.children import read_line, write_line
from tests.database.speaking import claim, speaking
from tests.databases import ALIASES, SERVERS

pytestmark = pytest.mark.once

PROCESSES = 4
TURNS = 40


class Intruder(Exception):
    """Somebody else was inside."""


def inside(folder, token):
    """Be alone in a folder, or raise Intruder; notes the token."""
    path = Path(folder) / "inside"
    try:
        os.close(os.open(path, os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        raise Intruder(token) from None
    with open(Path(folder) / "tokens", "a") as tokens:
        tokens.write(f"{token}\n")
    time.sleep(random.uniform(0, 0.002))
    path.unlink()


def fight(database, dialect, name, folder):
    """Take turns; ends with how many turns were had."""
    backend = speaking(dialect)("default", {"OPTIONS": {"database": database, "wait": "poll"}})
    write_line("ready")
    read_line()
    turns = 0
    while turns < TURNS:
        wanted = claim(name)
        try:
            lease = run(backend.enqueue(wanted, clock() + 60))
            inside(folder, lease.token)
            turns += backend.release(lease)
        except LockUnavailable:
            cancel(backend, wanted)
    write_line("turns", turns)
    backend.close()


def cancel(backend, wanted):
    while True:
        try:
            return backend.cancel(wanted)
        except LockUnavailable:
            time.sleep(0.01)


def fight_without_lock(folder):
    """The same without any lock, until somebody has met somebody."""
    write_line("ready")
    read_line()
    met = Path(folder) / "met"
    while not met.exists():
        try:
            inside(folder, 0)
        except Intruder:
            met.touch()
    write_line("met somebody")


def started(child, *calls):
    children = [child(*call) for call in calls]
    for one in children:
        assert one.line() == "ready"
    for one in children:
        one.tell("go")
    return children


def check(folder, children):
    for one in children:
        assert one.finish(90) == [f"turns {TURNS}"]
    tokens = [int(line) for line in (folder / "tokens").read_text().split()]
    assert len(tokens) >= TURNS * len(children)
    assert tokens == sorted(set(tokens))


@pytest.mark.slow
def test_nobody_is_let_in_while_somebody_is_inside(make, kind, name, child, tmp_path):
    make()
    calls = [(fight, ALIASES[kind], None, name, str(tmp_path)) for _ in range(PROCESSES)]
    check(tmp_path, started(child, *calls))


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["mariadb"])
def test_nor_where_the_row_has_to_be_asked_for_after_writing(make, kind, name, child, tmp_path):
    make()
    dialects = ["mysql", "mysql", None, None]
    calls = [(fight, ALIASES[kind], dialect, name, str(tmp_path)) for dialect in dialects]
    check(tmp_path, started(child, *calls))


@pytest.mark.slow
@pytest.mark.parametrize("kind", SERVERS)
def test_nor_while_sessions_are_cut_at_any_moment(make, kind, name, child, proxied, tmp_path):
    """Answers are lost, and questions asked again."""
    proxy = proxied(kind)
    make()
    calls = [(fight, ALIASES[kind], None, name, str(tmp_path)) for _ in range(PROCESSES)]
    children = started(child, *calls)
    over = threading.Event()
    cutting = threading.Thread(target=cut_until, args=(over, proxy))
    cutting.start()
    try:
        check(tmp_path, children)
    finally:
        over.set()
        cutting.join()


def cut_until(over, proxy):
    while not over.wait(random.uniform(0.01, 0.2)):  # now and then long enough to connect
        proxy.cut()


def test_the_last_verdict_of_a_statement_that_was_run_twice_counts():
    """Galera runs one again that lost against another node, and keeps the rows of the first."""
    wanted = claim("stock")
    answer = Result([(wanted.nonce, 5), ("", 6)], 2)
    assert MariaDB().granted(wanted, answer) is None
    assert MariaDB().granted(wanted, answer._replace(rows=[("", 5), (wanted.nonce, 6)])) == 6


@pytest.mark.parametrize("kind", ["mariadb"])
@pytest.mark.parametrize("found_rows", [True, False])
def test_the_number_of_rows_grants_nothing_under_either_flag(make, kind, name, sql, found_rows):
    """With CLIENT_FOUND_ROWS a row counts that was found, without it only one that was changed."""
    from MySQLdb.constants import CLIENT

    make()
    dialect, wrapper = MariaDB(), connections[ALIASES[kind]].copy()
    params = wrapper.get_connection_params()
    params["client_flag"] = CLIENT.FOUND_ROWS if found_rows else 0
    wrapper.get_connection_params = lambda: params
    wrapper.ensure_connection()
    connection = CursorConnection(wrapper)
    asked = []

    def ask(statement):
        asked.extend(connection.execute(statement, None))
        return asked[-1]

    def tokens():
        return [int(token) for (token,) in sql("SELECT token FROM database_lock")]

    first, second = claim(name), claim(name)
    try:
        for wanted in (first, first, first):  # as for the first time, and after a lost answer
            token = dialect.acquire(ask, wanted)
            assert [token] == tokens()
        same = ask(Statement("UPDATE database_lock SET description = description"))
        assert same.affected == found_rows  # the flag is what it is to be
        before = tokens()
        assert dialect.acquire(ask, second) is None
        assert tokens() == before
        ask(dialect.free(name, nonce=first.nonce))
        asked.clear()
        token = dialect.acquire(ask, second)
        assert token > before[0]
        assert [token] == tokens()
        assert [answer.affected for answer in asked] == [1]  # one UPDATE, and no other statement
    finally:
        wrapper.close()


def test_without_the_lock_somebody_is_met(child, tmp_path):
    """The control: the checker sees what the lock prevents."""
    children = started(child, *[(fight_without_lock, str(tmp_path)) for _ in range(PROCESSES)])
    assert [one.line() for one in children] == ["met somebody"] * PROCESSES
