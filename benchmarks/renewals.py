"""Do thousands of holds of one process live through minutes of a busy machine?

    python benchmarks/renewals.py etcd                         # starts an etcd; ten minutes
    python benchmarks/renewals.py postgresql --seconds 120 --holds 2000 --lease 15
    python benchmarks/renewals.py etcd --check                 # the exit code is 1 if one was lost

The kinds are mariadb, postgresql, sqlite, zookeeper, etcd and local; ``--seats`` takes seats of
semaphores in place of locks. Eight processes compute all the while, or ``--busy`` so many. It says
how long it took to take the locks, how many were lost and why, what was logged, how near the
nearest came to its end, and how much processor time and memory the process has needed.
"""

from __future__ import annotations

import argparse
import logging
import multiprocessing
import os
import resource
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

KINDS = ["mariadb", "postgresql", "sqlite", "zookeeper", "etcd", "local"]
#: seconds between two looks at all holds
LOOK = 0.5


@contextmanager
def backend(kind: str, lease: float) -> Iterator[dict[str, Any]]:
    """Start a server of its own; yield the databases and the entry of DISTLOCK."""
    from tests.servers.etcd import Etcd
    from tests.servers.mariadb import MariaDB
    from tests.servers.postgresql import PostgreSQL
    from tests.servers.zookeeper import ZooKeeper

    with ExitStack() as after:
        entry: dict[str, Any] = {"LEASE": lease}
        databases: dict[str, Any] = {}
        if kind == "zookeeper":
            server = after.enter_context(ZooKeeper())
            entry = {
                "BACKEND": "distlock.backends.zookeeper.ZooKeeperBackend",
                "LOCATION": server.hosts,
                "OPTIONS": {"session_timeout": lease},
            }
        elif kind == "etcd":
            hosts = after.enter_context(Etcd()).hosts
            entry |= {"BACKEND": "distlock.backends.etcd.EtcdBackend", "LOCATION": hosts}
        elif kind == "local":
            entry["BACKEND"] = "distlock.backends.local.LocalBackend"
        elif kind == "sqlite":
            folder = after.enter_context(tempfile.TemporaryDirectory())
            name = f"{folder}/database.sqlite3"
            databases = {"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": name}}
        else:
            started = after.enter_context({"mariadb": MariaDB, "postgresql": PostgreSQL}[kind]())
            databases = {"default": started.django()}
        entry.setdefault("BACKEND", "distlock.backends.database.DatabaseBackend")
        yield {"DATABASES": databases, "DISTLOCK": {"default": entry}}


def compute() -> None:
    while True:
        sum(range(10_000))


@contextmanager
def busy(processes: int) -> Iterator[None]:
    """Let so many processes compute."""
    there = [multiprocessing.Process(target=compute, daemon=True) for _ in range(processes)]
    for one in there:
        one.start()
    try:
        yield
    finally:
        for one in there:
            one.kill()
            one.join()


def hold(options: argparse.Namespace) -> int:
    """Hold them all for the time; return how many were lost."""
    from distlock import Lock
    from distlock.exceptions import LockError
    from distlock.recipes import Semaphore

    lost: Counter[str] = Counter()
    held = []
    with busy(options.busy):
        began = time.perf_counter()
        for number in range(options.holds):
            name = f"renewals:{number}"
            held.append(Semaphore(name, 1) if options.seats else Lock(name))
            assert held[-1].acquire()
        print(f"{options.holds} taken in {time.perf_counter() - began:.1f} s", flush=True)
        ends, used, nearest = time.monotonic() + options.seconds, os.times(), float("inf")
        while time.monotonic() < ends and held:
            time.sleep(LOOK)
            for lock in [*held]:
                try:
                    nearest = min(nearest, lock.remaining)
                except LockError as error:
                    held.remove(lock)
                    lost[str(error).partition("was lost: ")[2]] += 1
        now = os.times()
        processor = now.user + now.system - used.user - used.system
        share, memory = processor / options.seconds, resource.getrusage(resource.RUSAGE_SELF)
        print(
            f"lost {lost.total()} of {options.holds} in {options.seconds:g} s {dict(lost)};"
            f" the nearest was {nearest:.1f} s before its end;"
            f" {share:.0%} of a processor, {memory.ru_maxrss / 1024:.0f} MB at the most",
            flush=True,
        )
    began = time.perf_counter()
    for lock in held:
        lock.release()
    print(f"{len(held)} left in {time.perf_counter() - began:.1f} s", flush=True)
    return lost.total()


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("kind", choices=KINDS)
    parser.add_argument("--holds", type=int, default=10_000)
    parser.add_argument("--lease", type=float, default=30.0, help="seconds")
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--busy", type=int, default=8, help="processes that compute meanwhile")
    parser.add_argument("--seats", action="store_true", help="seats of semaphores, not locks")
    parser.add_argument("--check", action="store_true")
    options = parser.parse_args()
    logging.basicConfig(format="%(asctime)s %(message)s", level=logging.WARNING)
    # Losses are counted.
    logging.root.handlers[0].addFilter(lambda record: not record.getMessage().startswith("lost "))
    with backend(options.kind, options.lease) as configured:
        import django
        from django.conf import settings
        from django.core.management import call_command

        in_database = bool(configured["DATABASES"])
        settings.configure(INSTALLED_APPS=["distlock"], **configured)
        django.setup()
        if in_database:
            call_command("migrate", "distlock", verbosity=0)
        from distlock import locks

        lost = hold(options)
        locks.close_all()
    if options.check and lost:
        sys.exit(1)


if __name__ == "__main__":
    main()
