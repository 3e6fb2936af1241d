"""What a process takes to start: an import, a first lock, the help of a command; and its memory.

Each is a Python of its own that is started in turns with the others; what it has in common with
them is in all of them, so differences count as much as ratios.
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import NamedTuple

from benchmarks.harness import Block, Plan, Row, Table, alternated, quartiles, ratios
from benchmarks.report import ROOT
from benchmarks.servers import DATABASE, place

#: The seconds of what is compared, and the most memory that the program had; getrusage() would tell
#: that of the process that forked it.
_MEASURED = """
taken = time.perf_counter() - began
import re, sys
memory = re.search(r"VmHWM:\\s+(\\d+)", open("/proc/self/status").read())[1]
sys.stderr.write(f"{taken} {memory}")
"""


def program(database: dict[str, str], apps: list[str], then: str) -> str:
    """Return a program that sets Django up with these apps, and then does something."""
    return f"""
from django.conf import settings
settings.configure(
    INSTALLED_APPS={apps!r},
    DATABASES={{"default": {database!r}}},
    DISTLOCK={{"default": {{"BACKEND": "{DATABASE}"}}}},
    USE_TZ=True,
)
import django
django.setup()
import time
began = time.perf_counter()
{then}
{_MEASURED}"""


def sides(database: dict[str, str]) -> dict[str, dict[str, str]]:
    """Return by table the programs that are compared, the reference first."""
    ours = ["django.contrib.contenttypes", "distlock"]
    peer = ["django.contrib.contenttypes", "pgactivity", "pglock"]
    plain = ours[:1]

    def command(*words: str) -> str:
        call = f"execute_from_command_line({['manage.py', *words]!r})"
        return (
            "from django.core.management import execute_from_command_line\n"
            f"try: {call}\nexcept SystemExit: pass"
        )

    return {
        "Start: django.setup() and an import": {
            "distlock": program(database, ours, "from distlock import Lock"),
            "without a lock": program(database, plain, ""),
            "django-pglock": program(database, peer, "import pglock"),
            "kazoo": program(database, plain, "import kazoo.client"),
            "redis-py": program(database, plain, "import redis"),
            "tooz": program(database, plain, "from tooz import coordination"),
            "sqlalchemy-dlock": program(
                database, plain, "import sqlalchemy_dlock, sqlalchemy.dialects.postgresql.psycopg"
            ),
            "mithril-locks": program(database, plain, "import mithril, mithril.backends"),
        },
        "Start: until the first lock on PostgreSQL is freed": {
            "distlock": program(database, ours, "from distlock import Lock\nwith Lock('a'): pass"),
            "django-pglock": program(
                database, peer, "import pglock\nwith pglock.advisory('a'): pass"
            ),
            "SELECT 1": program(
                database,
                plain,
                "from django.db import connection\nconnection.cursor().execute('SELECT 1')",
            ),
        },
        "Start: the help of a command": {
            "locks --help": program(database, ours, command("locks", "--help")),
            "migrate --help": program(database, ours, command("migrate", "--help")),
        },
    }


class Start(NamedTuple):
    """What a program has used, the milliseconds of what is compared, and megabytes of memory."""

    block: Block
    taken: float
    memory: float


def once(text: str) -> Start:
    """Run a program."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONWARNINGS": "ignore"}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)  # users compile once, not at each start
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-c", text], env=environment, capture_output=True, text=True
    )
    seconds, after = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode:
        raise RuntimeError(done.stderr.strip().rpartition("\n")[2])
    used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    taken, memory = map(float, done.stderr.rpartition("\n")[2].split())
    return Start(Block(1, seconds, used), taken * 1000, memory / 1024)


def compare(programs: dict[str, str], rounds: int) -> list[Row]:
    seen: dict[str, list[Start]] = {name: [] for name in programs}
    left_out: dict[str, str] = {}
    for number in range(-1, rounds):  # the first time writes what is compiled
        for name in alternated([*programs], number):
            if name in left_out:
                continue
            try:
                found = once(programs[name])
            except RuntimeError as error:
                left_out[name] = str(error)
                continue
            if number >= 0:
                seen[name].append(found)
    first = [found.block for found in seen[next(iter(programs))]]
    rows = []
    for name, starts in seen.items():
        row = Row(name, left_out=left_out.get(name, ""))
        rows.append(row)
        if row.left_out or not starts:
            continue
        blocks = [start.block for start in starts]
        row.ratio = ratios(first, blocks) if first else None
        row.extra = {
            "ms": quartiles([each.seconds * 1000 for each in blocks]),
            "processor ms": quartiles([each.processor * 1000 for each in blocks]),
            "ms after setup()": quartiles([start.taken for start in starts])[1],
            "MB": quartiles([start.memory for start in starts])[1],
        }
    return rows


def measure(plan: Plan) -> Iterator[Table]:
    with place("PostgreSQL") as where:
        where.migrate()
        rounds = 3 if plan.quick else 11
        for title, programs in sides(where.django).items():
            if plan.quick and "import" not in title:
                continue
            yield Table(title, "starts", compare(programs, rounds))
