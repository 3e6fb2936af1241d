"""``manage.py locks config``, ``event``, ``topic``: the values that processes agree on.

Configuration values are also set and rolled back here; the others are only looked at.
"""

from __future__ import annotations

import json as json_module
from functools import partial
from typing import Any, NoReturn

from distlock import audit
from distlock.commands.arguments import JSON, argument, option
from distlock.commands.exit_codes import NOT_HELD, fail
from distlock.commands.output import Row, data, plain
from distlock.commands.verbs import CHANGING, NameVerb, RecipeCommand, Show, SignedVerb, Target
from distlock.recipes.event import Event, EventInfo
from distlock.recipes.log import Config, Message, Topic, Value
from distlock.types.lease import Kind
from distlock.types.values import quoted

#: Versions that are kept, beside what the program keeps: this never removes any.
KEEP = 1_000_000
#: Messages of a topic that are listed.
_MOST_MESSAGES = 20


def _get(at: Target, *, json: bool, **others: object) -> None:
    value = at.ask(partial(at.recipe(Config).get, stale=False))
    if not value.version:
        _never_set(at)
    if json:
        at.write_json(plain(value))
    else:
        at.write(json_module.dumps(value.value, ensure_ascii=True, indent=1))


def _never_set(at: Target) -> NoReturn:
    fail(NOT_HELD, f"config {at!r} was never set")


def _history(at: Target) -> tuple[Value, ...]:
    return at.ask(at.recipe(Config).history) or _never_set(at)


def _set(at: Target, *, value: Any, **options: Any) -> None:
    config = at.recipe(Config, keep=KEEP)
    version = at.ask(lambda: config.set(value, **_signature(**options)))
    at.write(f"{at} has version {version} now.")


def _rollback(at: Target, *, version: int, **options: Any) -> None:
    config = at.recipe(Config, keep=KEEP)
    new = at.ask(lambda: config.rollback(version, **_signature(**options)))
    at.write(f"{at} has the value of version {version} again, as version {new}.")


def _signature(
    *, if_version: int | None, signed: dict[str, str], **others: object
) -> dict[str, Any]:
    """Return on which version something is done, why and by whom."""
    who = signed["who"] or audit.system_user()
    return {"if_version": if_version, "reason": signed["reason"], "who": who}


@argument
def _json(text: str) -> Any:
    try:
        return json_module.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f'must be JSON, with " around a text, not {text!r}: {error}') from error


def _version(value: Value) -> Row:
    who, reason = quoted(value.who), quoted(value.reason) or None
    return value.version, value.at, who, reason, data(value.value)


_VALUE = option("value JSON", "The value, as JSON.", type=_json)
_IF = option(
    "--if-version N",
    "Do it only if this is the version now; 0 for a value that was never set.",
    type=int,
)

CONFIG = RecipeCommand(
    Kind.CONFIG,
    "Configuration values: list, get, set, history, rollback.",
    lambda alias, name: Config(name, using=alias).get(stale=False),
    ("VERSION", "SET", "WHO", "VALUE"),
    lambda value: (value.version, value.at, quoted(value.who), data(value.value)),
    {
        "get": NameVerb(
            "Print a value as JSON; with --json also who set it and when.", _get, (JSON,), CHANGING
        ),
        "history": Show(
            "List the versions that are kept, newest first.",
            lambda values: values,
            ("VERSION", "SET", "WHO", "REASON", "VALUE"),
            _version,
            key="history",
            read=_history,
            misses=True,
        ),
        "rollback": SignedVerb(
            "Set the value to what it was in an earlier version.",
            _rollback,
            (option("version VERSION", "The version to go back to.", type=int), _IF),
            CHANGING,
        ),
        "set": SignedVerb("Set a value for all processes.", _set, (_VALUE, _IF), CHANGING),
    },
    list_help="List the values, with version and who set it.",
)


def _event(info: EventInfo) -> Row:
    return "set" if info.is_set else "not set", info.by and quoted(info.by), info.at


def _topic(messages: tuple[Message, ...]) -> Row:
    if not messages:
        return None, None, None
    last = messages[0]
    return last.number, last.at, quoted(last.who)


EVENT = RecipeCommand(
    Kind.EVENT,
    "Events: list, show.",
    lambda alias, name: Event(name, using=alias).info(),
    ("STATE", "BY", "CHANGED"),
    _event,
    show=Show(),
)

TOPIC: RecipeCommand[tuple[Message, ...]] = RecipeCommand(
    Kind.TOPIC,
    "Topics: list, show the last messages.",
    lambda alias, name: Topic(name, using=alias).history()[:_MOST_MESSAGES],
    ("LAST", "PUBLISHED", "WHO"),
    _topic,
    show=Show(
        parts=lambda messages: messages,
        heading=("NUMBER", "PUBLISHED", "WHO", "MESSAGE"),
        row=lambda message: (*_topic((message,)), data(message.message)),
    ),
)
