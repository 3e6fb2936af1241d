"""What configuration and topics look like: values with their versions, and the last messages.

A value is edited with a comparison, and rolled back to an earlier version.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from difflib import unified_diff
from functools import partial
from typing import Any, ClassVar

from django.utils.translation import gettext_lazy as _

from distlock.recipes.cells import Cell, Columns, Facts, Text, facts_of, json_line, json_lines
from distlock.recipes.description import (
    Action,
    Description,
    Detail,
    Effect,
    JsonInput,
    Listing,
    Offer,
    Option,
    Proposal,
    Ref,
    Table,
    operation,
    signature,
)
from distlock.recipes.log import Config, Message, Topic, Value

#: Versions that are kept, beside what the program keeps: nothing done here removes any.
_KEEP = 1_000_000
#: Messages of a topic that are shown.
_MOST_MESSAGES = 20


@dataclass(frozen=True, slots=True)
class Versions:
    """The value of now, and those that are kept, newest first."""

    now: Value
    history: Sequence[Value] = ()


_pretty = partial(json_lines, sort_keys=True)


def _changes(before: Any, after: Any) -> tuple[Text, Cell]:
    """Return what differs, line by line; each line begins with +, - or a space."""
    old, new = _pretty(before).splitlines(), _pretty(after).splitlines()
    lines = list(unified_diff(old, new, lineterm="", n=3))[3:]
    signed = [(" ", "…") if line.startswith("@@ ") else (line[0], line[1:]) for line in lines]
    return _("Changes"), Cell(signed or None, "diff")


#: The author, time and reason of a value; and a row of the history.
_SET: Columns[Value] = (
    (_("Version"), lambda value: Cell(value.version, "number")),
    (_("Set by"), lambda value: Cell(value.who)),
    (_("Set"), lambda value: Cell(value.at, "moment")),
    (_("Reason"), lambda value: Cell(value.reason)),
)
_VERSION: Columns[Value] = (
    _SET[0],
    (_("Value"), lambda value: Cell(json_line(value.value), "data")),
    *_SET[1:],
)


def _edit(ref: Ref, values: dict[str, Any]) -> Effect:
    config = ref.recipe(Config, keep=_KEEP)
    version = config.set(values["value"], if_version=ref.token, **signature(values))
    return Effect({"version": version})


def _consequences(versions: Versions, ref: Ref) -> list[Text]:
    return [
        _("All processes that read the value get the new one from then on."),
        _("If someone else changes it meanwhile, nothing is done."),
    ]


EDIT: Action[Versions] = Action(
    name="edit",
    permission="distlock.edit_config",
    title=_("Edit"),
    button=_("Set this value"),
    consequences=_consequences,
    facts=lambda versions, ref: (
        facts_of(_SET[:3], versions.now) if versions.now.version == ref.token else None
    ),
    perform=_edit,
    log=_("Changed from version %(token)d to %(version)d. Reason: %(reason)s"),
    done=_("The value was set:"),
    danger=False,
    value=JsonInput("value", _("Value"), _("As JSON: a text stands between quotation marks.")),
    reason_help=_("It is kept in the history, with your name."),
    initial=lambda versions, ref: _pretty(versions.now.value),
    preview=lambda versions, ref, values: [_changes(versions.now.value, values["value"])],
)


def _rollback_facts(versions: Versions, ref: Ref) -> Facts | None:
    earlier = next((one for one in versions.history if str(one.version) == ref.target), None)
    if earlier is None or versions.now.version != ref.token:
        return None
    return [
        (_("Version now"), Cell(ref.token, "number")),
        (_("Back to version"), Cell(earlier.version, "number")),
        *facts_of(_SET[1:], earlier),
        _changes(versions.now.value, earlier.value),
    ]


def _rollback(ref: Ref, values: dict[str, Any]) -> Effect:
    config = ref.recipe(Config, keep=_KEEP)
    version = config.rollback(int(ref.target), if_version=ref.token, **signature(values))
    return Effect({"version": version})


ROLL_BACK: Action[Versions] = Action(
    name="rollback",
    permission="distlock.edit_config",
    title=_("Roll back"),
    button=_("Roll back to this version"),
    consequences=lambda versions, ref: [
        _("The value of that version is set again, as a new version."),
        *_consequences(versions, ref),
    ],
    facts=_rollback_facts,
    perform=_rollback,
    log=_(
        "Rolled back from version %(token)d to that of version %(target)s, as version %(version)d."
        " Reason: %(reason)s"
    ),
    done=_("The value was rolled back to version"),
    danger=False,
)


_IF = Option(
    "--if-version N",
    "Set it only if this is the present version; 0 for a value that was never set.",
    "int",
)


@operation(
    "Set a value for all processes.", Option("value JSON", "The value, as JSON.", "json"), _IF
)
def _setting(ref: Ref, options: dict[str, Any]) -> Proposal:
    ref = ref.of(options["if_version"])
    return Proposal(ref, _edit, "%(where)s has version %(version)d now.")


@operation(
    "Set the value of an earlier version again.",
    Option("version VERSION", "The version to go back to.", "int"),
    _IF,
)
def _rolling_back(ref: Ref, options: dict[str, Any]) -> Proposal:
    ref = ref.of(options["if_version"], str(options["version"]))
    done = "%(where)s has the value of version %(target)s again, as version %(version)d."
    return Proposal(ref, _rollback, done)


class ConfigDescription(Description[Value]):
    """Values with their versions."""

    list_help = "List the values, with version and who set it."
    show_help = "Print a value as JSON; with --json also who set it and when."
    show = "get"
    empty = _("Configuration values are listed here once they have been set.")
    missing = "config {} was never set"
    columns: ClassVar[Columns[Value]] = (
        (_("Value"), lambda value: Cell(json_line(value.value), "data", hint=value.reason)),
        *_SET[:3],
    )
    actions = (EDIT, ROLL_BACK)
    verbs: ClassVar = {
        "history": Listing(
            "List the versions that are kept, newest first.",
            lambda ref: ref.recipe(Config).history(),
            _VERSION,
            missing=missing,
        ),
        "rollback": _rolling_back,
        "set": _setting,
    }

    def read(self, ref: Ref) -> Value:
        """Return the value."""
        return ref.recipe(Config).get(stale=False)

    def is_there(self, report: Value) -> bool:
        """Return whether it was ever set."""
        return bool(report.version)

    def raw(self, report: Value) -> str:
        """Return the value as JSON."""
        return json.dumps(report.value, ensure_ascii=True, indent=1)

    def detail(self, ref: Ref, report: Value) -> Detail:
        """Return the value, without its history."""
        return self.page(ref, Versions(report))

    def read_target(self, ref: Ref) -> Versions:
        """Return the value and its history."""
        now = self.read(ref)
        return Versions(now, ref.recipe(Config).history() if now.version else ())

    def page(self, ref: Ref, report: Versions) -> Detail:
        """Return the value and its history."""
        now = report.now

        def offers(value: Value) -> list[Offer]:
            back = ref.of(now.version, str(value.version))
            offer = Offer("rollback", _("Roll back…"), back, named=str(value.version))
            return [] if value.version == now.version else [offer]

        empty, hint = _("It was never set."), _("newest first")
        return Detail(
            facts=[(_("Value"), Cell(_pretty(now.value), "block")), *facts_of(_SET, now)],
            tables=[Table("history", _("History"), _VERSION, report.history, empty, hint, offers)],
            offers=[Offer("edit", _("Edit…"), ref.of(now.version))],
            explanation=[
                _("It is the same in all processes. Each change gives it the next version."),
                _("During an outage a process goes on with the last value that it has seen."),
            ],
        )


_MESSAGE: Columns[Message] = (
    (_("Number"), lambda message: Cell(message.number, "number")),
    (_("Message"), lambda message: Cell(json_line(message.message), "data")),
    (_("Published by"), lambda message: Cell(message.who)),
    (_("Published"), lambda message: Cell(message.at, "moment")),
)


class TopicDescription(Description[Sequence[Message]]):
    """What was published last."""

    empty = _("Topics are listed here once something was published.")
    columns: ClassVar[Columns[Message]] = (
        (_("Last number"), _MESSAGE[0][1]),
        (_("Last message"), _MESSAGE[1][1]),
        *_MESSAGE[2:],
    )

    def read(self, ref: Ref) -> Sequence[Message]:
        """Return the last messages, the newest one first."""
        return ref.recipe(Topic).history()[:_MOST_MESSAGES]

    def row(self, report: Sequence[Message]) -> Facts:
        """Return the last message."""
        return facts_of(self.columns, report[0] if report else None)

    def detail(self, ref: Ref, report: Sequence[Message]) -> Detail:
        """Return the last messages."""
        number, _message, _who, published = self.row(report)
        empty, hint = _("No message is kept."), _("newest first")
        return Detail(
            facts=[number, published],
            tables=[Table("messages", _("Messages"), _MESSAGE, report, empty, hint)],
            explanation=[_("Each subscriber gets each message once and in order.")],
        )
