"""How long the admin's list of held locks takes over many rows, and what it asks the database.

    python benchmarks/admin.py                      # 100,000 held rows; starts a MariaDB
    python benchmarks/admin.py --rows 1000000 --server postgresql

Each line is a page, from the request of a test client to the rendered HTML: the median of several
requests, the slowest, and the statements that the database of the locks was asked. With ``--check``
the exit code is 1 unless every median is less than a second.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import statistics
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
os.environ.setdefault("DJANGO_SETTINGS_MODULE", "tests.settings")

import django

LIMIT = 1.0
REQUESTS = 7
PAGES = {
    "first page, by name": "",
    "a page in the middle": "?after=default:0:invoice:{middle}",
    "a page backwards": "?before=default:0:invoice:{middle}",
    "those held for longest": "?order=age",
    "a page in the middle, by age": "?order=age&after=default:{since}:invoice:{middle}",
    "part of a name": "?q=99",
    "expired only": "?state=expired",
    "nothing like it": "?q=no-such-lock&host=nowhere",
    "a host, held for an hour": "?host=worker-7.example&held=3600",
}
HOSTS = 40

INSERT = """
INSERT INTO database_lock
    ({lock}, description, owner, nonce, host, process, thread, token, lease, renews, acquired_at,
     expires_at)
SELECT {name}, 'Celery task shop.charge', {digest}, {digest}, {host}, n, 'MainThread',
       1795221409053272 + n, 1800, n % 2 = 0, {since}, {until}
FROM {numbers}
"""
WORDS = {
    "mariadb": {
        "lock": "`lock`",
        "name": "CONCAT('invoice:', LPAD(n, 9, '0'))",
        "digest": "MD5(n)",
        "host": f"CONCAT('worker-', n % {HOSTS}, '.example')",
        "since": "UTC_TIMESTAMP(6) - INTERVAL n % 7300 SECOND",
        "until": "UTC_TIMESTAMP(6) + INTERVAL 20 MINUTE - INTERVAL (n % 50 = 0) HOUR",
        "numbers": "(SELECT seq AS n FROM seq_1_to_{rows}) AS numbers",
    },
    "postgresql": {
        "lock": "lock",
        "name": "'invoice:' || lpad(n::text, 9, '0')",
        "digest": "md5(n::text)",
        "host": f"'worker-' || n % {HOSTS} || '.example'",
        "since": "now() - n % 7300 * interval '1 second'",
        "until": "now() + interval '20 minutes' - CASE WHEN n % 50 = 0 THEN 1 ELSE 0 END"
        " * interval '1 hour'",
        "numbers": "generate_series(1, {rows}) AS numbers(n)",
    },
}


@contextlib.contextmanager
def database(kind: str, rows: int) -> Iterator[Any]:
    """Start a server with that many held locks in it; yields it."""
    from tests.databases import ALIASES, SQLite, migrate, publish
    from tests.servers.mariadb import MariaDB
    from tests.servers.postgresql import PostgreSQL

    publish("default", SQLite().django())
    migrate("default")
    with {"mariadb": MariaDB, "postgresql": PostgreSQL}[kind]() as server:
        publish(ALIASES[kind], server.django())
        migrate(ALIASES[kind])
        words = {key: text.format(rows=rows) for key, text in WORDS[kind].items()}
        server.execute(INSERT.format(**words))
        server.execute("ANALYZE TABLE database_lock" if kind == "mariadb" else "ANALYZE")
        yield server


@contextlib.contextmanager
def statements() -> Iterator[list[str]]:
    """Collect what the sessions of the locks are asked."""
    from distlock.backends.database.connection import Session

    asked: list[str] = []
    run = Session.run

    def listening(self: Session, statement: Any, limit: float | None) -> Any:
        asked.append(statement.sql)
        return run(self, statement, limit)

    Session.run = listening  # type: ignore[method-assign]
    try:
        yield asked
    finally:
        Session.run = run  # type: ignore[method-assign]


def client() -> Any:
    """Return a client that a superuser is signed in with."""
    from django.contrib.auth.models import User
    from django.test import Client

    signed_in = Client(SERVER_NAME="localhost")
    signed_in.force_login(User.objects.create_superuser("operator"))
    return signed_in


def measure(kind: str, rows: int) -> float:
    """Print a line for each page; returns the seconds that the slowest of them takes."""
    from django.test import override_settings

    from tests.databases import ALIASES

    backend = "distlock.backends.database.DatabaseBackend"
    locks = {"default": {"BACKEND": backend, "OPTIONS": {"database": ALIASES[kind], "idle": 60}}}
    places = {"middle": f"{rows // 2:09}", "since": int((time.time() - 3650) * 1_000_000)}
    slowest = 0.0  # by the median of its requests: others are at work on the machine, too
    with override_settings(DISTLOCK=locks, ALLOWED_HOSTS=["localhost"]), statements() as asked:
        browser = client()
        browser.get("/admin/distlock/heldlock/")  # opens the sessions, compiles the templates
        for name, query in PAGES.items():
            address = "/admin/distlock/heldlock/" + query.format(**places)
            taken = []
            for _ in range(REQUESTS):
                asked.clear()
                began = time.perf_counter()
                response = browser.get(address)
                taken.append(time.perf_counter() - began)
            seen = response.context_data["overview"]
            assert not seen.silent, seen.silent
            slowest = max(slowest, statistics.median(taken))
            print(
                f"{name:30} {statistics.median(taken) * 1000:6.0f} ms, slowest"
                f" {max(taken) * 1000:5.0f} ms, {len(asked)} statements,"
                f" {len(seen.rows):3} of {seen.found:,} shown",
                flush=True,
            )
        print("\n" + "\n\n".join(asked))
    return slowest


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=100_000, help="held rows (100,000)")
    parser.add_argument("--server", choices=WORDS, default="mariadb")
    parser.add_argument("--check", action="store_true", help="fail if a page takes a second")
    options = parser.parse_args()
    django.setup()
    with database(options.server, options.rows):
        print(f"{options.rows:,} held rows on {options.server}\n")
        slowest = measure(options.server, options.rows)
    if options.check and slowest >= LIMIT:
        sys.exit(f"the slowest page takes {slowest:.2f} s")


if __name__ == "__main__":
    main()
