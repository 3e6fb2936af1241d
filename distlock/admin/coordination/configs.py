"""Configuration: the value, its versions, editing with a comparison, and rolling back."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from difflib import unified_diff
from typing import Any

from django import forms
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from distlock.admin.actions import ReasonField
from distlock.admin.coordination.cells import Cell, Detail, Offer, Ref, Table, TableRow, Text
from distlock.admin.coordination.recipe_pages import Action, Done, RecipePages, signature
from distlock.exceptions import StaleToken
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
        label=gettext_lazy("Value"),
        strip=False,
        help_text=gettext_lazy("As JSON: a text stands between quotation marks."),
        widget=forms.Textarea(attrs={"class": "dl-mono", "rows": 12, "spellcheck": "false"}),
    )
    reason = ReasonField(
        help_text=gettext_lazy("It is kept in the history, with your name."),
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


def _pretty(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, indent=2, sort_keys=True)


def _diff(before: Any, after: Any) -> Cell:
    """Return what differs, line by line; each line begins with +, - or a space."""
    old, new = _pretty(before).splitlines(), _pretty(after).splitlines()
    lines = list(unified_diff(old, new, lineterm="", n=3))[3:]
    return Cell([_signed(line) for line in lines] or None, "diff")


def _signed(line: str) -> tuple[str, str]:
    return (" ", "…") if line.startswith("@@ ") else (line[0], line[1:])


def _is_now(versions: Versions, ref: Ref) -> bool:
    return versions.now.version == ref.token


def _edit_facts(versions: Versions, ref: Ref) -> Sequence[tuple[Text, Cell]] | None:
    if not _is_now(versions, ref):
        return None
    return [
        (_("Version"), Cell(ref.token, "number")),
        (_("Set by"), Cell(versions.now.who)),
        (_("Set"), Cell(versions.now.at, "moment")),
    ]


def _edit(ref: Ref, values: dict[str, Any]) -> Done | None:
    config = Config(ref.name, keep=_KEEP, using=ref.alias)
    try:
        version = config.set(values["value"], if_version=ref.token, **signature(values))
    except StaleToken:
        return None
    log = gettext_lazy("Changed from version %(token)d to %(version)d. Reason: %(reason)s")
    return Done(log, {"version": version})


def _consequences(versions: Versions, ref: Ref) -> list[Text]:
    return [
        _("All processes that read the value get the new one from then on."),
        _("If someone else changes it meanwhile, nothing is done."),
    ]


EDIT: Action[Versions] = Action(
    name="edit",
    permission="distlock.edit_config",
    title=gettext_lazy("Edit"),
    button=gettext_lazy("Set this value"),
    consequences=_consequences,
    facts=_edit_facts,
    perform=_edit,
    done=gettext_lazy("The value was set:"),
    danger=False,
    form=ValueForm,
    initial=lambda versions, ref: {"value": _pretty(versions.now.value)},
    preview=lambda versions, ref, values: [
        (_("Changes"), _diff(versions.now.value, values["value"]))
    ],
)


def _earlier(versions: Versions, ref: Ref) -> Value | None:
    return next((one for one in versions.history if str(one.version) == ref.target), None)


def _rollback_facts(versions: Versions, ref: Ref) -> Sequence[tuple[Text, Cell]] | None:
    earlier = _earlier(versions, ref)
    if earlier is None or not _is_now(versions, ref):
        return None
    return [
        (_("Version now"), Cell(ref.token, "number")),
        (_("Back to version"), Cell(earlier.version, "number")),
        (_("Set by"), Cell(earlier.who)),
        (_("Set"), Cell(earlier.at, "moment")),
        (_("Reason"), Cell(earlier.reason)),
        (_("Changes"), _diff(versions.now.value, earlier.value)),
    ]


def _rollback(ref: Ref, values: dict[str, Any]) -> Done | None:
    config = Config(ref.name, keep=_KEEP, using=ref.alias)
    try:
        version = config.rollback(int(ref.target), if_version=ref.token, **signature(values))
    except StaleToken:
        return None
    log = gettext_lazy(
        "Rolled back from version %(token)d to that of version %(target)s, as version %(version)d."
        " Reason: %(reason)s"
    )
    return Done(log, {"version": version})


ROLL_BACK: Action[Versions] = Action(
    name="rollback",
    permission="distlock.edit_config",
    title=gettext_lazy("Roll back"),
    button=gettext_lazy("Roll back to this version"),
    consequences=lambda versions, ref: [
        _("The value of that version is set again, as a new version."),
        *_consequences(versions, ref),
    ],
    facts=_rollback_facts,
    perform=_rollback,
    done=gettext_lazy("The value was rolled back to version"),
    danger=False,
)


class ConfigPages(RecipePages[Versions]):
    """Values with their versions."""

    kind = Kind.CONFIG
    model = ConfigModel
    columns = (
        gettext_lazy("Value"),
        gettext_lazy("Version"),
        gettext_lazy("Set by"),
        gettext_lazy("Set"),
    )
    empty = gettext_lazy("Configuration values are listed here once they have been set.")
    actions = (EDIT, ROLL_BACK)
    show = "get"

    def read(self, alias: str, name: str, *, whole: bool) -> Versions:
        """Return the value, and for its own page the history."""
        config = Config(name, using=alias)
        now = config.get(stale=False)
        return Versions(now, config.history() if whole and now.version else ())

    def row(self, report: Versions) -> TableRow:
        """Return the value of now."""
        now = report.now
        return TableRow(
            [
                Cell(json.dumps(now.value, ensure_ascii=False), "data", hint=now.reason),
                Cell(now.version, "number"),
                Cell(now.who),
                Cell(now.at, "moment"),
            ]
        )

    def detail(self, alias: str, name: str, report: Versions) -> Detail:
        """Return the value and its history."""
        now = report.now
        ref = Ref(alias, name, now.version)
        return Detail(
            facts=[
                (_("Value"), Cell(_pretty(now.value), "block")),
                (_("Version"), Cell(now.version, "number")),
                (_("Set by"), Cell(now.who)),
                (_("Set"), Cell(now.at, "moment")),
                (_("Reason"), Cell(now.reason)),
            ],
            tables=[self._history(alias, name, report)],
            offers=[Offer("edit", _("Edit…"), ref)],
            explanation=[
                _("It is the same in all processes. Each change gives it the next version."),
                _("A process that cannot reach the backend goes on with what it has seen last."),
            ],
        )

    def _history(self, alias: str, name: str, report: Versions) -> Table:
        now, rows = report.now.version, []
        for value in report.history:
            ref = Ref(alias, name, now, str(value.version))
            back = Offer("rollback", _("Roll back…"), ref, named=str(value.version))
            rows.append(
                TableRow(
                    [
                        Cell(value.version, "number"),
                        Cell(json.dumps(value.value, ensure_ascii=False), "data"),
                        Cell(value.who),
                        Cell(value.at, "moment"),
                        Cell(value.reason),
                    ],
                    [] if value.version == now else [back],
                )
            )
        return Table(
            "history",
            _("History"),
            (_("Version"), _("Value"), _("Set by"), _("Set"), _("Reason")),
            rows,
            empty=_("It was never set."),
            hint=_("newest first"),
        )
