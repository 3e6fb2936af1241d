"""Measure distlock side by side with its peers.

    python -m benchmarks                     # all parts; this takes long
    python -m benchmarks locks contention    # some parts
    python -m benchmarks --quick             # a few minutes; says what it leaves out
    python -m benchmarks --resume            # goes on after the parts that are in the file already

It starts its own servers. In each case all sides work in turns, in short blocks. What came out is
in a file of JSON, which has been written after each part, and beside it as tables in Markdown.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import platform
import re
import sys
import time
from dataclasses import asdict
from datetime import date
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from benchmarks import report
from benchmarks.harness import Plan, Table

#: What is measured, and what the quick run leaves out of it.
PARTS = {
    "locks": "locks in Redis, files, one process, a write-ahead log; re-entrance; failed tries",
    "contention": "MariaDB, ZooKeeper, Redis; 2, 32 and 128 processes; all rounds but one",
    "recipes": "of ZooKeeper all but an election; in databases all but a queue",
    "scale": "1 and 10,000 holds; MariaDB, ZooKeeper, etcd; threads; large tables, sweeps",
    "start": "the first lock, the help of a command",
    "pages": "all of the admin's pages",
}
PACKAGES = [
    "Django",
    "psycopg",
    "mysqlclient",
    "kazoo",
    "django-pglock",
    "django-db-mutex",
    "sqlalchemy-dlock",
    "tooz",
    "redis",
    "python-redis-lock",
    "portalocker",
    "mithril-locks",
    "procrastinate",
    "django-tasks-db",
    "django-constance",
]
FILE = report.ROOT / "build" / "benchmarks" / "results.json"


def machine() -> dict[str, Any]:
    known = Path("/proc/cpuinfo").read_text() if Path("/proc/cpuinfo").exists() else ""
    named = re.search(r"model name\s*:\s*(.+)", known)
    return {
        "processor": named[1] if named else platform.machine(),
        "cores": len(os.sched_getaffinity(0)),
        "load": os.getloadavg()[0],
    }


def versions() -> dict[str, str]:
    found = {"Python": platform.python_version()}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = "not installed"
    return found


def run(part: str, plan: Plan) -> dict[str, Any]:
    """Measure a part, and print its tables as they come."""
    module = importlib.import_module(f"benchmarks.{part}")
    began = time.monotonic()
    tables = []
    failure = ""
    try:
        for table in module.measure(plan):
            tables.append(asdict(table))
            show(table)
    except Exception as error:  # as of a server that is not installed: the other parts go on
        failure = f"{type(error).__name__}: {error}"
        print(f"{part} ended early: {failure}", flush=True)
    return {"seconds": time.monotonic() - began, "tables": tables, "failure": failure}


def show(table: Table) -> None:
    print(f"\n{table.title}\n\n{report.markdown(asdict(table))}", flush=True)


def short_of(results: dict[str, Any]) -> list[str]:
    """Return the ratios that are below what a part asks for."""
    found = []
    for part, done in results["parts"].items():
        least = getattr(importlib.import_module(f"benchmarks.{part}"), "LEAST", {})
        for table in done["tables"]:
            for row in table["rows"]:
                wanted = least.get((table["title"].partition(":")[0], row["side"]))
                counts = wanted and row["ratio"] and "nobody" in table["title"]
                if counts and row["ratio"][1] < wanted:
                    found.append(f"{table['title']}, {row['side']}: {row['ratio'][1]:.2f}")
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"{', '.join(PARTS)}; all")
    parser.add_argument("--quick", action="store_true", help="a few minutes")
    parser.add_argument("--rounds", type=int, help="of each case (21; quick: 5)")
    parser.add_argument("--json", type=Path, default=FILE, metavar="FILE", help="where results go")
    parser.add_argument("--resume", action="store_true", help="keep the parts that are in FILE")
    parser.add_argument("--docs", action="store_true", help="write docs/performance.md, too")
    parser.add_argument(
        "--against", default="", metavar="FOLDER", help="compare with another working tree, too"
    )
    parser.add_argument("--check", action="store_true", help="fail if distlock is too slow")
    options = parser.parse_args()
    if unknown := [part for part in options.parts if part not in PARTS]:
        parser.error(f"there is no part {unknown[0]}; the parts are {', '.join(PARTS)}")
    seconds = 0.15 if options.quick else 0.2
    rounds = options.rounds or (5 if options.quick else 21)
    plan = Plan(options.quick, rounds, seconds, options.against)
    results: dict[str, Any] = {
        "date": date.today().isoformat(),
        "quick": plan.quick,
        "machine": machine(),
        "versions": versions(),
        "parts": {},
    }
    if options.resume and options.json.exists():
        results = json.loads(options.json.read_text())
    options.json.parent.mkdir(parents=True, exist_ok=True)
    for part in options.parts or PARTS:
        if part in results["parts"] and not results["parts"][part].get("failure"):
            continue
        print(f"\n== {part}", flush=True)
        results["parts"][part] = run(part, plan)
        options.json.write_text(json.dumps(results, indent=1) + "\n")
    finish(results, options)


def finish(results: dict[str, Any], options: argparse.Namespace) -> None:
    """Write the tables and pictures, and say what was left out."""
    report.write(results, options.json.parent / "_static" / "performance")
    text = "\n\n".join([report.about(results), *report.sections(results, results["parts"])])
    options.json.with_suffix(".md").write_text(f"{text}\n")
    if options.docs:
        report.publish(results)
    print(f"\nResults: {options.json} and {options.json.with_suffix('.md').name} beside it.")
    if options.quick:
        for part in results["parts"]:
            print(f"Left out of {part}, being quick: {PARTS[part]}.")
    if failed := [part for part, done in results["parts"].items() if done.get("failure")]:
        sys.exit(f"Ended early: {', '.join(failed)}")
    if options.check and (short := short_of(results)):
        sys.exit("Too slow: " + "; ".join(short))


if __name__ == "__main__":
    main()
