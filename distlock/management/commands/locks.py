"""``manage.py locks``: see who holds which lock, break a hold, and look after all the recipes."""

from __future__ import annotations

import argparse
import io
import os
import sys
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from django.core.management import get_commands
from django.core.management.base import BaseCommand, CommandParser, no_translations
from django.core.management.color import no_style
from django.utils.module_loading import import_string

from distlock.registry import BY_KIND, ENTRIES
from distlock.types.lease import LOCK_KINDS, Kind

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
    from distlock.commands.arguments import Backends
    from distlock.commands.exit_codes import FAILED, fail

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
    aliases = Backends(None).aliases
    choices = {"using": aliases, "aliases": aliases, "kind": LOCK_KINDS}
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


#: The commands, and the texts that --help shows of them.
SUBCOMMANDS = {
    "list": "List the locks that are held, and those whose lease ended without being released.",
    "show": "Show the holder of a lock, since when, the time left, and the waiters.",
    "top": "Show problems, and then the locks by waiters and age, live; q or Ctrl-C ends it."
    " Without a terminal, or with --once or --json, it is printed once.",
    "release": "Break the hold of a lock that has this token, and only that one; or free the"
    " queueing lock of a Celery task. Asks first.",
    "resize": "Change the number of seats of a semaphore for all. No holder is evicted. A process"
    " that gives another number gets an error while others use it; when nobody does, the next"
    ' number that is given applies. So use this with code that gives no number, or "agreed". A'
    " name that is not in use, and has no number, counts as a mistake unless --create is given.",
    "run": "Run a program under a lock. Its exit code is passed on, 128+N if signal N ended it."
    " When the lock cannot be kept, the program and all processes that it started are ended before"
    " another owner can acquire it.",
    "sweep": "Free the locks whose lease ended without being released, and remove the rows of"
    " locks that have been free for long. Never touches a hold whose lease still runs.",
    "ping": "Ask each backend whether it answers, all at once. Nothing is taken or written. With"
    " --leads also ask whether a process of this host leads an election.",
    **{entry.kind.value: entry.help for entry in ENTRIES},
    "completion": "Print the script with which a shell completes verbs, options and aliases. Needs"
    " shtab.",
}
#: Where the Verbs of some are. Only the command that is used is imported: each of them needs all
#: that a lock needs, and the recipes.
_MODULES = {
    **dict.fromkeys(("list", "show"), "show_locks"),
    **dict.fromkeys(("top", "ping"), "monitoring"),
    **dict.fromkeys(("release", "resize", "sweep"), "change_locks"),
    "run": "run_program",
}


def _command(name: str) -> Any:
    """Import a command; return its Verb or RecipeCommand."""
    from distlock.commands import arguments, verbs

    if name in BY_KIND:
        return verbs.RecipeCommand(BY_KIND[Kind(name)])
    if module := _MODULES.get(name):
        return import_string(f"distlock.commands.{module}.{name.upper()}")
    shell = "The shell that reads the script."
    return verbs.Verb(_complete, (arguments.option("shell", shell, choices=tuple(SHELLS)),))


def _add_command(name: str, parser: CommandParser, subparser: CommandParser) -> None:
    """Give the parser of a command its arguments, with Django's own, which ``parser`` has."""
    from distlock.commands.arguments import add_common

    command = _command(name)
    subparser.epilog = command.epilog
    add_common(subparser, parser)
    command.add_arguments(subparser)


class _LateParser(CommandParser):
    """A parser that gets its arguments, from ``add``, when somebody first asks for them."""

    def __init__(self, *, add: Callable[[CommandParser], None] | None = None, **kwargs: Any):
        self._add: Callable[[CommandParser], None] | None = None
        super().__init__(**kwargs)
        self._add = add

    @property
    def _actions(self) -> list[argparse.Action]:
        """The arguments. To parse, to print help and to complete all begin with this list."""
        add, self._add = self._add, None
        if add is not None:
            add(self)
        return self._added

    @_actions.setter
    def _actions(self, actions: list[argparse.Action]) -> None:
        self._added = actions


class Command(BaseCommand):
    help = (
        "See who holds which lock, break a hold, clear the expired ones; look after elections,"
        " groups, queues and the like."
    )
    requires_system_checks = ()  # it must work where something else is broken

    def add_arguments(self, parser: CommandParser) -> None:
        parser.epilog = "Each command's own --help lists its exit codes."
        parsers = parser.add_subparsers(
            dest="subcommand", required=True, metavar="COMMAND", parser_class=_LateParser
        )
        for name, text in SUBCOMMANDS.items():
            add = partial(_add_command, name, parser)
            parsers.add_parser(name, help=text, description=text, add=add)

    @no_translations  # what scripts find in a table is the same everywhere
    def handle(self, *args: Any, **options: Any) -> None:
        if isinstance(sys.stdout, io.TextIOWrapper):
            # A name that the terminal's encoding lacks must not end the list.
            sys.stdout.reconfigure(errors="backslashreplace")
        if not options["force_color"] and (os.environ.get("NO_COLOR") or not self.stdout.isatty()):
            self.style = no_style()
            self.stderr.style_func = None
        try:
            _command(options["subcommand"]).run(self, **options)
            self.stdout.flush()
        except BrokenPipeError:
            # The reader, `head` perhaps, has seen enough; Python's own last flush must not fail.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
