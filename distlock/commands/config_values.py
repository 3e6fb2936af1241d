"""``manage.py locks config``: look at configuration values, set them, and roll them back."""

from __future__ import annotations

import argparse
import json as json_module
from typing import Any

from django.core.management.base import BaseCommand, CommandParser

from distlock import audit
from distlock.commands import output
from distlock.commands.exit_codes import NOT_HELD, fail
from distlock.commands.recipe_command import (
    CHANGING,
    RecipeCommand,
    SignedVerb,
    Verb,
    add_name,
    add_shown,
    ask,
)
from distlock.recipes.log import Config, Value
from distlock.types.lease import Kind

#: Versions that are kept, beside what the program keeps: this never removes any.
KEEP = 1_000_000


def _get(command: BaseCommand, *, name: str, using: str, json: bool, **others: object) -> None:
    value = ask(using, lambda: Config(name, using=using).get(stale=False))
    if not value.version:
        fail(NOT_HELD, f"config {name!r} on {using!r} was never set")
    if json:
        output.write_json(command, {"using": using, "name": name, **output.plain(value)})
    else:
        command.stdout.write(json_module.dumps(value.value, ensure_ascii=True, indent=1))


def _set(command: BaseCommand, *, name: str, using: str, value: Any, **options: Any) -> None:
    config = Config(name, keep=KEEP, using=using)
    version = ask(using, lambda: config.set(value, **_signature(**options)))
    command.stdout.write(f"{output.quoted(name)} on {using} has version {version} now.")


def _history(command: BaseCommand, *, name: str, using: str, json: bool, **others: object) -> None:
    values = ask(using, lambda: Config(name, using=using).history())
    if not values:
        fail(NOT_HELD, f"config {name!r} on {using!r} was never set")
    if json:
        output.write_json(command, {"using": using, "name": name, "history": values})
        return
    heading = ("VERSION", "SET", "WHO", "REASON", "VALUE")
    output.write_table(command, heading, map(_row, values))


def _row(value: Value) -> output.Row:
    return (
        str(value.version),
        output.moment(value.at),
        output.quoted(value.who),
        output.quoted(value.reason) or output.NOTHING,
        output.data(value.value),
    )


def _rollback(command: BaseCommand, *, name: str, using: str, version: int, **options: Any) -> None:
    config = Config(name, keep=KEEP, using=using)
    new = ask(using, lambda: config.rollback(version, **_signature(**options)))
    command.stdout.write(
        f"{output.quoted(name)} on {using} has the value of version {version} again, as version"
        f" {new}."
    )


def _add_rollback(parser: CommandParser) -> None:
    add_name(parser)
    parser.add_argument("version", type=int, metavar="VERSION", help="The version to go back to.")
    _add_signature(parser)


def _add_value(parser: CommandParser) -> None:
    add_name(parser)
    parser.add_argument("value", type=_json, metavar="JSON", help="The value, as JSON.")
    _add_signature(parser)


def _add_signature(parser: CommandParser) -> None:
    parser.add_argument(
        "--if-version",
        type=int,
        metavar="N",
        help="Do it only if this is the version now; 0 for a value that was never set.",
    )


def _signature(
    *, if_version: int | None, reason: str, who: str, **others: object
) -> dict[str, Any]:
    """Return on which version something is done, why and by whom."""
    return {"if_version": if_version, "reason": reason, "who": who or audit.system_user()}


def _json(text: str) -> Any:
    try:
        return json_module.loads(text)
    except (ValueError, RecursionError) as error:
        raise argparse.ArgumentTypeError(
            f'must be JSON, with " around a text, not {text!r}: {error}'
        ) from error


VERBS = {
    "get": Verb(
        "Print a value as JSON; with --json also who set it and when.", add_shown, _get, CHANGING
    ),
    "history": Verb(
        "List the versions that are kept, newest first.", add_shown, _history, CHANGING
    ),
    "rollback": SignedVerb(
        "Set the value to what it was in an earlier version.", _add_rollback, _rollback, CHANGING
    ),
    "set": SignedVerb("Set a value for all processes.", _add_value, _set, CHANGING),
}

COMMAND = RecipeCommand(
    Kind.CONFIG,
    "Configuration values: list, get, set, history, rollback.",
    lambda alias, name: Config(name, using=alias).get(stale=False),
    ("VERSION", "SET", "WHO", "VALUE"),
    lambda value: (
        str(value.version),
        output.moment(value.at),
        output.quoted(value.who),
        output.data(value.value),
    ),
    VERBS,
    list_help="List the values, with version and who set it.",
)
