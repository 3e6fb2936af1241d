"""Groups: who is there, for how long, and what each says of itself."""

from __future__ import annotations

from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, ngettext

from distlock.admin.coordination.cells import Cell, Detail, Table, TableRow
from distlock.admin.coordination.recipe_pages import RecipePages
from distlock.models import Group as GroupModel
from distlock.recipes.group import Group, Member
from distlock.types.lease import Kind

Members = tuple[Member, ...]

#: Names of members that a row of the list has.
_MOST_NAMES = 5


class GroupPages(RecipePages[Members]):
    """Live members with their data."""

    kind = Kind.GROUP
    model = GroupModel
    columns = (
        gettext_lazy("Members"),
        gettext_lazy("Who"),
        gettext_lazy("Last joined"),
    )
    empty = gettext_lazy("Groups are listed here once a process has joined one.")

    def read(self, alias: str, name: str, *, whole: bool) -> Members:
        """Return the members that are there."""
        return Group(name, using=alias).members()

    def row(self, report: Members) -> TableRow:
        """Return how many there are, and the first few."""
        names = ", ".join(member.name for member in report[:_MOST_NAMES])
        if len(report) > _MOST_NAMES:
            names += ", …"
        last = report[-1].since if report else None
        return TableRow([Cell(len(report), "number"), Cell(names, "mono"), Cell(last, "age")])

    def detail(self, alias: str, name: str, report: Members) -> Detail:
        """Return the members with what each says of itself."""
        rows = [
            TableRow(
                [
                    Cell(member.name, "mono"),
                    Cell(member.owner, "owner"),
                    Cell(member.since, "age"),
                    Cell(member.data or None, "data"),
                    Cell(member.token, "number"),
                ],
            )
            for member in report
        ]
        count = ngettext("%(count)d member", "%(count)d members", len(report))
        return Detail(
            facts=[
                (_("Members"), Cell(len(report), "number")),
                (_("Last joined"), Cell(report[-1].since if report else None, "moment")),
            ],
            tables=[
                Table(
                    "members",
                    _("Members"),
                    (_("Member"), _("Owner"), _("There for"), _("Data"), _("Token")),
                    rows,
                    empty=_("Nobody is there."),
                    hint=count % {"count": len(report)} if report else "",
                )
            ],
            explanation=[
                _(
                    "Each process that is there renews its record. If a process dies, or is cut"
                    " off for longer than its lease, it is gone from here."
                ),
                _(
                    "One that was only away joins again by itself, as a new member with a new"
                    " token."
                ),
            ],
        )
