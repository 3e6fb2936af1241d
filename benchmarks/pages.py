"""The admin's pages over many rows, beside lists of Django's own, as ``admin.py`` prints them.

The sides of a line are two requests in turns, one of a page of distlock's and one of Django's list
of a plain model with as many rows and columns in the same database.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from benchmarks.harness import Plan, Row, Table

_LINE = re.compile(
    r"  (?P<title>\S.*?) +(?P<ours>\d+) ms +(?P<theirs>\d+) ms +(?P<ratio>[\d.]+)"
    r" \((?P<low>[\d.]+) to (?P<high>[\d.]+)\) +(?P<statements>\d+)"
)
_KIND = re.compile(r"(\w+): (.*rows.*|[\d,]+ .*)")


def rows_of(lines: list[str]) -> Iterator[tuple[str, list[Row]]]:
    """Yield what was printed of each kind of database."""
    title, rows = "", []
    for line in lines:
        if found := _LINE.fullmatch(line.rstrip()):
            row = Row(found["title"])
            row.extra = {
                "ms": int(found["ours"]),
                "Django's ms": int(found["theirs"]),
                "ms ÷ Django's ms": tuple(float(found[one]) for one in ("low", "ratio", "high")),
                "statements": int(found["statements"]),
            }
            rows.append(row)
        elif found := _KIND.fullmatch(line.rstrip()):
            if rows:
                yield title, rows
            title, rows = line.rstrip(), []
    if rows:
        yield title, rows


def measure(plan: Plan) -> Iterator[Table]:
    if plan.quick:
        return
    script = str(Path(__file__).with_name("admin.py"))
    command = [sys.executable, script, "--rounds", str(min(plan.rounds, 7)), "--scale", "0.5"]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    for title, rows in rows_of(done.stdout.splitlines()):
        yield Table(f"Admin on {title}", "", rows, plot="")
