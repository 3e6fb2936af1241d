"""Configuration: the value, its versions, editing with a comparison, and rolling back."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from difflib import unified_diff
from functools import partial
from typing import Any, ClassVar

from django import forms
from django.utils.translation import gettext_lazy as _

from distlock.admin.actions import ReasonField
from distlock.admin.coordination.pages import (
    Action,
    Cell,
    Columns,
    Detail,
    Effect,
    Facts,
    Offer,
    RecipePages,
    Ref,
    Table,
    Text,
    facts_of,
    json_line,
    json_lines,
    rows_of,
    signature,
)
from distlock.models import Config as ConfigModel
from distlock.recipes.log import Config, Value
from distlock.types.lease import Kind

#: Versions that are kept, beside what the program keeps: nothing done here removes any.
_KEEP = 1_000_000


@dataclass(frozen=True, slots=True)
class Versions:
    """The value of now, and those that are kept, newest first."""

    now: Value
    history: Sequence[Value] = ()


class ValueForm(forms.Form):
    """Asks for a value as JSON, and why it is changed."""

    value = forms.CharField(
        label=_("Value"),
        strip=False,
        help_text=_("As JSON: a text stands between quotation marks."),
        widget=forms.Textarea(attrs={"class": "dl-mono", "rows": 12, "spellcheck": "false"}),
    )
    reason = ReasonField(
        help_text=_("It is kept in the history, with your name."),
    )

    def clean_value(self) -> Any:
        """Return what the JSON says."""
        try:
            return json.loads(self.cleaned_data["value"], parse_constant=_refuse)
        except (ValueError, RecursionError) as error:
            text = _("This is no JSON: %(error)s") % {"error": error}
            raise forms.ValidationError(text) from error


def _refuse(constant: str) -> None:
    raise ValueError(constant)


_pretty = partial(json_lines, sort_keys=True)


def _changes(before: Any, after: Any) -> tuple[Text, Cell]:
    """Return what differs, line by line; each line begins with +, - or a space."""
    old, new = _pretty(before).splitlines(), _pretty(after).splitlines()
    lines = list(unified_diff(old, new, lineterm="", n=3))[3:]
    return _("Changes"), Cell([_signed(line) for line in lines] or None, "diff")


def _signed(line: str) -> tuple[str, str]:
    return (" ", "…") if line.startswith("@@ ") else (line[0], line[1:])


#: Who set a value, when, and why; and a row of the history.
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
    config = Config(ref.name, keep=_KEEP, using=ref.alias)
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
    form=ValueForm,
    initial=lambda versions, ref: {"value": _pretty(versions.now.value)},
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
    config = Config(ref.name, keep=_KEEP, using=ref.alias)
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


class ConfigPages(RecipePages[Versions]):
    """Values with their versions."""

    kind = Kind.CONFIG
    model = ConfigModel
    columns: ClassVar[Columns[Value]] = (
        (_("Value"), lambda value: Cell(json_line(value.value), "data", hint=value.reason)),
        *_SET[:3],
    )
    empty = _("Configuration values are listed here once they have been set.")
    actions = (EDIT, ROLL_BACK)
    show = "get"

    def read(self, alias: str, name: str, *, whole: bool) -> Versions:
        """Return the value, and for its own page the history."""
        config = Config(name, using=alias)
        now = config.get(stale=False)
        return Versions(now, config.history() if whole and now.version else ())

    def row(self, report: Versions) -> Facts:
        """Return the value of now."""
        return facts_of(self.columns, report.now)

    def detail(self, alias: str, name: str, report: Versions) -> Detail:
        """Return the value and its history."""
        now = report.now

        def offers(value: Value) -> list[Offer]:
            back = Ref(alias, name, now.version, str(value.version))
            offer = Offer("rollback", _("Roll back…"), back, named=str(value.version))
            return [] if value.version == now.version else [offer]

        rows, empty = rows_of(_VERSION, report.history, offers), _("It was never set.")
        return Detail(
            facts=[(_("Value"), Cell(_pretty(now.value), "block")), *facts_of(_SET, now)],
            tables=[Table("history", _("History"), rows, empty, hint=_("newest first"))],
            offers=[Offer("edit", _("Edit…"), Ref(alias, name, now.version))],
            explanation=[
                _("It is the same in all processes. Each change gives it the next version."),
                _("A process that cannot reach the backend goes on with what it has seen last."),
            ],
        )
