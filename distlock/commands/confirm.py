"""Asks at the terminal before something is done that cannot be undone."""

from __future__ import annotations

import sys

from django.core.management.base import BaseCommand, CommandParser

from distlock.commands.exit_codes import DECLINED, USAGE, fail


def add_yes(parser: CommandParser) -> None:
    parser.add_argument(
        "--yes",
        "--no-input",
        "--noinput",
        action="store_false",
        dest="interactive",
        help="Do not ask; for scripts.",
    )


def confirm(command: BaseCommand, interactive: bool, question: str) -> None:
    """Go on if ``interactive`` is False, or the question is answered with yes; end otherwise."""
    if not interactive:
        return
    if not sys.stdin.isatty():
        fail(USAGE, "there is no terminal to ask at; say --yes to do it without a question")
    try:
        answer = input(f"{question} [y/N] ")
    except (EOFError, KeyboardInterrupt):
        command.stdout.write("")
        answer = ""
    if answer.strip().lower() not in ("y", "yes"):
        fail(DECLINED, "nothing was done")
