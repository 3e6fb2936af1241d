"""``manage.py locks completion SHELL``: the script that lets a shell complete ``manage.py``."""

from __future__ import annotations

import argparse
from collections.abc import Iterator

from django.core.management import get_commands
from django.core.management.base import BaseCommand, CommandParser

from distlock.commands.arguments import Backends
from distlock.commands.exit_codes import DONE, FAILED, USAGE, epilog, fail
from distlock.types.lease import LOCK_KINDS

HELP = "Print the script with which a shell completes verbs, options and aliases. Needs shtab."
EPILOG = epilog(DONE, FAILED, USAGE)

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


def add_arguments(parser: CommandParser) -> None:
    parser.add_argument("shell", choices=tuple(SHELLS), help="The shell that reads the script.")


def run(command: BaseCommand, *, shell: str, **others: object) -> None:
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
