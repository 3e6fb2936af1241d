"""``manage.py locks``: see who holds which lock, break a hold, and look after all the recipes."""

from __future__ import annotations

import io
import os
import sys
from typing import Any

from django.core.management.base import BaseCommand, CommandParser
from django.core.management.color import no_style

from distlock.commands import (
    completion,
    config_values,
    elections,
    list_locks,
    ping,
    progress,
    queues,
    release_lock,
    reports,
    resize_semaphore,
    run_lock,
    show_lock,
    sweep_locks,
    top,
)
from distlock.commands.arguments import add_common

SUBCOMMANDS: dict[str, Any] = {
    "list": list_locks,
    "show": show_lock,
    "top": top,
    "release": release_lock,
    "resize": resize_semaphore,
    "run": run_lock,
    "sweep": sweep_locks,
    "ping": ping,
    "election": elections.COMMAND,
    "queue": queues.COMMAND,
    "config": config_values.COMMAND,
    "progress": progress.COMMAND,
    **reports.COMMANDS,
    "completion": completion,
}


class Command(BaseCommand):
    help = (
        "See who holds which lock, break a hold, clear the expired ones; look after elections,"
        " groups, queues and the like."
    )
    requires_system_checks = ()  # it must work where something else is broken

    def add_arguments(self, parser: CommandParser) -> None:
        parser.epilog = "Each command's own --help lists its exit codes."
        subparsers = parser.add_subparsers(dest="subcommand", required=True, metavar="COMMAND")
        for name, module in SUBCOMMANDS.items():
            subparser = subparsers.add_parser(
                name, help=module.HELP, description=module.HELP, epilog=module.EPILOG
            )
            add_common(subparser, parser)
            module.add_arguments(subparser)

    def handle(self, *args: Any, **options: Any) -> None:
        if isinstance(sys.stdout, io.TextIOWrapper):
            # A name that the terminal's encoding lacks must not end the list.
            sys.stdout.reconfigure(errors="backslashreplace")
        if not options["force_color"] and (os.environ.get("NO_COLOR") or not self.stdout.isatty()):
            self.style = no_style()
            self.stderr.style_func = None
        try:
            SUBCOMMANDS[options["subcommand"]].run(self, **options)
            self.stdout.flush()
        except BrokenPipeError:
            # The reader, `head` perhaps, has seen enough; Python's own last flush must not fail.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
