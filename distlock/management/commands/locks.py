"""``manage.py locks``: see who holds which lock, break a hold, and look after all the recipes."""

from __future__ import annotations

import argparse
import io
import os
import sys
from collections.abc import Iterator
from typing import Any

from django.core.management import get_commands
from django.core.management.base import BaseCommand, CommandParser, no_translations
from django.core.management.color import no_style

from distlock.commands import change_locks, monitoring, run_program, show_locks
from distlock.commands.arguments import Backends, option
from distlock.commands.exit_codes import FAILED, fail
from distlock.commands.verbs import RecipeCommand, Verb, add_verbs
from distlock.registry import ENTRIES
from distlock.types.lease import LOCK_KINDS

#: For each shell, what lets `python manage.py` be completed as `manage.py` is.
SHELLS = {
    "bash": """
_distlock_python() {
  [[ $COMP_CWORD -gt 1 && ${COMP_WORDS[1]} == *manage.py ]] || return 0
  COMP_WORDS=("${COMP_WORDS[@]:1}") COMP_CWORD=$((COMP_CWORD - 1))
  _shtab_manage_py
}
complete -o bashdefault -o default -F _distlock_python python python3
""",
    "zsh": """
_distlock_python() {
  [[ $CURRENT -gt 2 && $words[2] == *manage.py ]] || { _default; return }
  shift words; (( CURRENT -= 1 ))
  _shtab_manage_py
}
compdef _distlock_python python python3
""",
    "fish": r"""
set -g _distlock_python '^\S+ +\S*manage\.py '
complete -c python -c python3 -n 'string match -qr $_distlock_python -- (commandline -cp)' -f \
  -a '(complete -C (string replace -r $_distlock_python "manage.py " -- (commandline -cp)))'
""",
}


def _complete(command: BaseCommand, *, shell: str, **others: object) -> None:
    try:
        import shtab
    except ImportError:
        fail(FAILED, 'this needs shtab: pip install "django-distlock[completion]"')
    root = argparse.ArgumentParser("manage.py", description="A Django project.")
    commands = root.add_subparsers()
    for name, app in get_commands().items():
        if name != "locks":
            commands.add_parser(name, help=f"A command of {app}.")  # shtab hides it without a help
    parser = command.create_parser("manage.py", "locks")
    choices = {"using": Backends(None).aliases, "kind": LOCK_KINDS}
    for action in _actions(parser):
        action.choices = choices.get(action.dest, action.choices)
    commands.add_parser("locks", help=command.help, parents=[parser], add_help=False)
    command.stdout.write(shtab.complete(root, shell) + SHELLS[shell])


def _actions(parser: argparse.ArgumentParser) -> Iterator[argparse.Action]:
    for action in parser._actions:
        yield action
        if isinstance(action, argparse._SubParsersAction):
            for inner in action.choices.values():
                yield from _actions(inner)


SUBCOMMANDS: dict[str, Verb | RecipeCommand] = {
    "list": show_locks.LIST,
    "show": show_locks.SHOW,
    "top": monitoring.TOP,
    "release": change_locks.RELEASE,
    "resize": change_locks.RESIZE,
    "run": run_program.RUN,
    "sweep": change_locks.SWEEP,
    "ping": monitoring.PING,
    **{entry.kind.value: RecipeCommand(entry) for entry in ENTRIES},
    "completion": Verb(
        "Print the script with which a shell completes verbs, options and aliases. Needs shtab.",
        _complete,
        (option("shell", "The shell that reads the script.", choices=tuple(SHELLS)),),
    ),
}


class Command(BaseCommand):
    help = (
        "See who holds which lock, break a hold, clear the expired ones; look after elections,"
        " groups, queues and the like."
    )
    requires_system_checks = ()  # it must work where something else is broken

    def add_arguments(self, parser: CommandParser) -> None:
        parser.epilog = "Each command's own --help lists its exit codes."
        add_verbs(parser, SUBCOMMANDS, dest="subcommand", metavar="COMMAND")

    @no_translations  # what scripts find in a table is the same everywhere
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
