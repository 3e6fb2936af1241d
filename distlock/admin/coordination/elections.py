"""Elections: who leads, who is next, who has led, and deciding it by hand."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from distlock.admin.coordination.cells import Cell, Detail, Offer, Ref, Table, TableRow, Text
from distlock.admin.coordination.recipe_pages import Action, Done, RecipePages, signature
from distlock.exceptions import LockError, LockUnavailable
from distlock.models import Election as ElectionModel
from distlock.recipes.candidates import Candidate, ElectionInfo
from distlock.recipes.election import Election
from distlock.types.lease import Kind

_ORDERS: dict[str, Text] = {
    "first": gettext_lazy("who came first"),
    "succession": gettext_lazy("by priority"),
    "appointed": gettext_lazy("by hand"),
}
#: Why terms have ended, and the colour of that.
_WHY: dict[str, tuple[Text, str]] = {
    "": (gettext_lazy("leads"), "held"),
    "resigned": (gettext_lazy("resigned"), "free"),
    "stepped down": (gettext_lazy("stepped down"), "free"),
    "lost": (gettext_lazy("lost"), "expiring"),
    "broken": (gettext_lazy("broken"), "expired"),
    "crashed": (gettext_lazy("crashed"), "expired"),
}


def _candidate(info: ElectionInfo, ref: Ref) -> Candidate | None:
    return next((one for one in info.candidates if one.token == ref.token), None)


def _appoint_facts(info: ElectionInfo, ref: Ref) -> Sequence[tuple[Text, Cell]] | None:
    candidate = _candidate(info, ref)
    if candidate is None or candidate.term is not None:
        return None
    return [
        (_("Candidate"), Cell(candidate.name, "mono")),
        (_("Owner"), Cell(candidate.owner, "owner")),
        (_("Leader now"), Cell(info.leader and info.leader.name, "mono")),
        (_("Term"), Cell(info.leader and info.leader.term, "number")),
        (_("Order"), Cell(_ORDERS[info.order])),
    ]


def _appoint_consequences(info: ElectionInfo, ref: Ref) -> list[Text]:
    if info.order == "appointed":
        return [
            _("Nobody else may lead from then on."),
            _("Who leads now is asked to step down; the candidate leads once it has."),
        ]
    return [
        _("The candidate leads next, before all others."),
        _("Who leads now goes on until it resigns, is lost, or is asked to step down."),
    ]


def _appoint(ref: Ref, values: dict[str, Any]) -> Done | None:
    election = Election(ref.name, using=ref.alias)
    candidate = _candidate(election.info(), ref)
    if candidate is None:
        return None
    try:
        election.appoint(candidate, **signature(values))
    except LockUnavailable:
        raise
    except LockError:  # it stands no more
        return None
    log = gettext_lazy("Appointed %(target)s, token %(token)d. Reason: %(reason)s")
    return Done(log)


APPOINT: Action[ElectionInfo] = Action(
    name="appoint",
    permission="distlock.appoint_leader",
    title=gettext_lazy("Appoint a leader"),
    button=gettext_lazy("Appoint this candidate"),
    consequences=_appoint_consequences,
    facts=_appoint_facts,
    perform=_appoint,
    done=gettext_lazy("The candidate was appointed:"),
    danger=False,
)


def _leader_facts(info: ElectionInfo, ref: Ref) -> Sequence[tuple[Text, Cell]] | None:
    leader = info.leader
    if leader is None or leader.term != ref.token:
        return None
    following = [one.name for one in info.candidates if one.term is None]
    return [
        (_("Leader"), Cell(leader.name, "mono")),
        (_("Owner"), Cell(leader.owner, "owner")),
        (_("Term"), Cell(leader.term, "number")),
        (_("Next"), Cell(following[0] if following else None, "mono")),
    ]


def _step_down(ref: Ref, values: dict[str, Any]) -> Done | None:
    if not Election(ref.name, using=ref.alias).step_down(ref.token, **signature(values)):
        return None
    log = gettext_lazy("Asked %(target)s to step down, term %(token)d. Reason: %(reason)s")
    return Done(log)


STEP_DOWN: Action[ElectionInfo] = Action(
    name="step-down",
    permission="distlock.step_down_leader",
    title=gettext_lazy("Ask the leader to step down"),
    button=gettext_lazy("Ask it to step down"),
    consequences=lambda info, ref: [
        _("The leader is told as of a loss, and the next candidate leads once it has resigned."),
        _("Until then, for the length of a lease at the most, it keeps the others out."),
        _(
            "A leader whose process does not answer is not told: it is gone when its lease ends."
            " If it goes on in spite of being asked, its lock can be broken among the held locks."
        ),
    ],
    facts=_leader_facts,
    perform=_step_down,
    done=gettext_lazy("The leader was asked to step down:"),
)


class ElectionPages(RecipePages[ElectionInfo]):
    """The leader, the candidates in order, and the history."""

    kind = Kind.ELECTION
    model = ElectionModel
    columns = (
        gettext_lazy("Leader"),
        gettext_lazy("Owner"),
        gettext_lazy("Leads for"),
        gettext_lazy("Candidates"),
        gettext_lazy("Order"),
        gettext_lazy("Term"),
    )
    empty = gettext_lazy("Elections are listed here once a candidate has stood.")
    actions = (APPOINT, STEP_DOWN)

    def read(self, alias: str, name: str, *, whole: bool) -> ElectionInfo:
        """Return who leads, who stands, and who has led."""
        return Election(name, using=alias).info()

    def row(self, report: ElectionInfo) -> TableRow:
        """Return the leader of now."""
        leader = report.leader
        return TableRow(
            [
                Cell(leader.name, "mono") if leader else _vacant(),
                Cell(leader and leader.owner, "owner"),
                Cell(_since(report), "age"),
                Cell(len(report.candidates), "number"),
                Cell(_ORDERS[report.order]),
                Cell(leader and leader.term, "number"),
            ]
        )

    def detail(self, alias: str, name: str, report: ElectionInfo) -> Detail:
        """Return the leader, the candidates in order, and the history."""
        leader = report.leader
        facts: list[tuple[Text, Cell]] = [
            (_("Leader"), Cell(leader.name, "mono") if leader else _vacant()),
            (_("Owner"), Cell(leader and leader.owner, "owner")),
            (_("Term"), Cell(leader and leader.term, "number")),
            (_("Leads since"), Cell(_since(report), "moment")),
            (_("Order"), Cell(_ORDERS[report.order])),
        ]
        if report.appointed:
            facts.append((_("Appointed"), Cell(report.appointed, "mono")))
        offers = []
        if leader is not None and leader.term is not None:
            ref = Ref(alias, name, leader.term, leader.name)
            offers = [Offer("step-down", _("Ask to step down…"), ref, danger=True)]
        return Detail(
            facts,
            [self._candidates(alias, name, report), self._history(report)],
            _explanation(report),
            offers,
        )

    def _candidates(self, alias: str, name: str, report: ElectionInfo) -> Table:
        rows = []
        # Who was appointed comes before the leader, though it leads only after it.
        for candidate in sorted(report.candidates, key=lambda one: one.term is None):
            leads = candidate.term is not None
            ref = Ref(alias, name, candidate.token or 0, candidate.name)
            rows.append(
                TableRow(
                    [
                        Cell(candidate.name, "mono"),
                        Cell(_("leads"), "state", "held") if leads else Cell(None),
                        Cell(candidate.owner, "owner"),
                        Cell(candidate.since, "age"),
                        Cell(candidate.priority, "number"),
                        Cell(candidate.data or None, "data"),
                    ],
                    []
                    if leads or candidate.token is None
                    else [Offer("appoint", _("Appoint…"), ref, named=candidate.name)],
                )
            )
        return Table(
            "candidates",
            _("Candidates"),
            (_("Candidate"), _("State"), _("Owner"), _("Stands for"), _("Priority"), _("Data")),
            rows,
            empty=_("Nobody stands."),
            hint=_("in the order in which they lead"),
        )

    def _history(self, report: ElectionInfo) -> Table:
        return Table(
            "history",
            _("History"),
            (_("Candidate"), _("Owner"), _("From"), _("Until"), _("Ended"), _("Term")),
            [
                TableRow(
                    [
                        Cell(term.candidate, "mono"),
                        Cell(term.owner, "owner"),
                        Cell(term.since, "moment"),
                        Cell(term.until, "moment"),
                        Cell(_WHY[term.why][0], "state", _WHY[term.why][1]),
                        Cell(term.term, "number"),
                    ]
                )
                for term in report.history
            ],
            empty=_("Nobody has led yet."),
            hint=_("newest first"),
        )


def _vacant() -> Cell:
    return Cell(_("Nobody leads"), "state", "expiring")


def _since(report: ElectionInfo) -> Any:
    """Return since when the leader leads; None if nobody does."""
    leader, terms = report.leader, report.history
    if leader is None or not terms or terms[0].term != leader.term:
        return None
    return terms[0].since


def _explanation(report: ElectionInfo) -> list[Text]:
    if report.leader is not None:
        first = _(
            "One candidate leads at a time. If its process dies, or is cut off, the next one leads"
            " when its lease has ended; if it resigns, at once."
        )
    elif report.candidates:
        first = _(
            "Nobody leads at the moment: the last leader’s lease has not ended yet, or nobody who"
            " stands may lead."
        )
    else:
        first = _("Nobody leads, and nobody stands.")
    orders: dict[str, Text] = {
        "first": _("The candidate who came first is the next to lead."),
        "succession": _("The candidate of the greatest priority is the next to lead."),
        "appointed": _("Only who was appointed by hand may lead."),
    }
    return [first, orders[report.order]]
