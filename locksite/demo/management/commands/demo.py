"""``manage.py demo``: shows with real processes what the lock is for, and serves the shop."""

from __future__ import annotations

import signal
from argparse import ArgumentParser
from collections.abc import Callable, Iterator
from typing import Any, NoReturn

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError
from django.db import connection
from django.db.migrations.executor import MigrationExecutor

from distlock import LockError, locks
from locksite.demo import basics, family, live, reporting, scenarios
from locksite.demo.processes import WorkerFailed, WorkerPool
from locksite.demo.results import Result

SCENARIOS: dict[str, Callable[[WorkerPool], Iterator[Result]]] = {
    "Lock table": basics.lock_table,
    "Trying once": basics.trying_once,
    "Stuck lock": basics.stuck_lock,
    "Waiting": basics.waiting,
    "Entering again": basics.entering_again,
    "Silent place": basics.silent_place,
    "First come, first served": basics.first_come_first_served,
    "Threads": basics.threads_of_one_process,
    "Who holds it": basics.who_holds_it,
    "Shared counter": scenarios.shared_counter,
    "Ticket shop": scenarios.ticket_rush,
    "Expired orders": scenarios.expired_orders,
    "Nightly report": scenarios.nightly_report,
    "Ticket printers": scenarios.ticket_printers,
}
#: They need locks that all processes see.
FAMILY: dict[str, Callable[[WorkerPool], Iterator[Result]]] = {
    "Elections": family.one_scheduler,
    "Groups": family.group_of_workers,
    "Barriers": family.all_at_the_barrier,
    "Mailboxes": family.mailbox,
    "Settings": family.setting_everywhere,
    "Names": family.name_of_its_own,
    "Progress": family.live_progress,
}
LAST = {"Three clients": scenarios.three_clients}  # it kills a worker
LINE = "  {system:>2}  {what:<46}{expected:<15}{seen:<15}{ok}"


class Command(BaseCommand):
    help = "Shows what the lock is for, with real processes."

    def add_arguments(self, parser: ArgumentParser) -> None:
        what = parser.add_mutually_exclusive_group(required=True)
        what.add_argument(
            "--once",
            action="store_true",
            help="Count and sell with and without the lock, and kill a holder; exits with 0 only"
            " if everything came out as it must.",
        )
        what.add_argument(
            "--serve",
            action="store_true",
            help="Serve the shop with the work going on, until Ctrl-C.",
        )
        parser.add_argument(
            "--port", type=int, help="Port for --serve (8000, or a free one if that is taken)."
        )

    def handle(self, *, once: bool, port: int | None, **options: Any) -> None:
        self._require_tables()
        signal.signal(signal.SIGTERM, _interrupt)
        try:
            if once:
                self._play()
            else:
                self._serve(port)
        except KeyboardInterrupt:
            raise CommandError("Interrupted.", returncode=130) from None

    def _play(self) -> None:
        backend = type(locks["default"]).__name__
        self.stdout.write(
            f"\n  {scenarios.WORKERS} processes, {connection.display_name}, {backend}\n\n"
        )
        self._write(system="", what="", expected="expected", seen="seen", ok="ok")
        problems = []
        shared = {} if settings.LOCKS == "local" else FAMILY
        played = {**SCENARIOS, **shared, **LAST}
        with reporting.message_folder(), WorkerPool(scenarios.WORKERS) as pool:
            for title, scenario in played.items():
                for result in self._results(title, scenario, pool):
                    ok = "yes" if result.ok else self.style.ERROR("NO")
                    self._write(
                        system=result.system or "",
                        what=result.what,
                        expected=result.expected,
                        seen=result.seen,
                        ok=ok,
                    )
                    if not result.ok:
                        problems.append(f"{result.what}: {result.problem or result.seen}")
        self.stdout.write("")
        if problems:
            raise CommandError("\n".join(["Not everything came out as it must.", *problems]))

    def _results(
        self,
        title: str,
        scenario: Callable[[WorkerPool], Iterator[Result]],
        pool: WorkerPool,
    ) -> Iterator[Result]:
        try:
            yield from scenario(pool)
        except (WorkerFailed, LockError, LookupError) as error:
            yield Result(title, "", "failed", False, problem=str(error))

    def _write(self, system: object, what: str, expected: str, seen: str, ok: str) -> None:
        self.stdout.write(
            LINE.format(system=system, what=what, expected=expected, seen=seen, ok=ok)
        )
        self.stdout.flush()

    def _serve(self, port: int | None) -> None:
        try:
            summary = live.serve(port, self.stdout.write)
        except OSError as error:
            raise CommandError(f"Cannot serve on port {port}: {error.strerror}.") from error
        except WorkerFailed as error:
            raise CommandError(f"The work behind the site could not go on: {error}") from error
        self.stdout.write(summary)

    def _require_tables(self) -> None:
        executor = MigrationExecutor(connection)
        if executor.migration_plan(executor.loader.graph.leaf_nodes()):
            raise CommandError("The tables are not up to date: run `manage.py migrate` first.")


def _interrupt(signum: int, frame: object) -> NoReturn:
    """Let SIGTERM end the demo as Ctrl-C does."""
    raise KeyboardInterrupt
