"""Elections: who leads, who is next, who has led, and deciding it by hand."""

from __future__ import annotations

from typing import Any, ClassVar

from django.utils.translation import gettext_lazy as _

from distlock.admin.coordination.pages import (
    Action,
    Cell,
    Columns,
    Detail,
    Facts,
    Offer,
    RecipePages,
    Ref,
    Table,
    Text,
    rows_of,
    signature,
)
from distlock.exceptions import LockError, LockUnavailable
from distlock.models import Election as ElectionModel
from distlock.recipes.candidates import Candidate, ElectionInfo, Term
from distlock.recipes.election import Election
from distlock.types.lease import Kind

#: What the orders are called, and what they mean.
_ORDERS: dict[str, tuple[Text, Text]] = {
    "first": (_("who came first"), _("The candidate who came first is the next to lead.")),
    "succession": (
        _("by priority"),
        _("The candidate of the greatest priority is the next to lead."),
    ),
    "appointed": (_("by hand"), _("Only who was appointed by hand may lead.")),
}
#: Why terms have ended, and the colour of that.
_WHY: dict[str, tuple[Text, str]] = {
    "": (_("leads"), "held"),
    "resigned": (_("resigned"), "free"),
    "stepped down": (_("stepped down"), "free"),
    "lost": (_("lost"), "expiring"),
    "broken": (_("broken"), "expired"),
    "crashed": (_("crashed"), "expired"),
}


def _candidate(info: ElectionInfo, ref: Ref) -> Candidate | None:
    return next((one for one in info.candidates if one.token == ref.token), None)


def _appoint_facts(info: ElectionInfo, ref: Ref) -> Facts | None:
    candidate = _candidate(info, ref)
    if candidate is None or candidate.term is not None:
        return None
    return [
        (_("Candidate"), Cell(candidate.name, "mono")),
        (_("Owner"), Cell(candidate.owner, "owner")),
        (_("Leader now"), Cell(info.leader and info.leader.name, "mono")),
        (_("Term"), Cell(info.leader and info.leader.term, "number")),
        (_("Order"), Cell(_ORDERS[info.order][0])),
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


def _appoint(ref: Ref, values: dict[str, Any]) -> bool:
    election = Election(ref.name, using=ref.alias)
    candidate = _candidate(election.info(), ref)
    try:
        if candidate is not None:
            election.appoint(candidate, **signature(values))
    except LockUnavailable:
        raise
    except LockError:  # it stands no more
        return False
    return candidate is not None


APPOINT: Action[ElectionInfo] = Action(
    name="appoint",
    permission="distlock.appoint_leader",
    title=_("Appoint a leader"),
    button=_("Appoint this candidate"),
    consequences=_appoint_consequences,
    facts=_appoint_facts,
    perform=_appoint,
    log=_("Appointed %(target)s, token %(token)d. Reason: %(reason)s"),
    done=_("The candidate was appointed:"),
    danger=False,
)


def _leader_facts(info: ElectionInfo, ref: Ref) -> Facts | None:
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


STEP_DOWN: Action[ElectionInfo] = Action(
    name="step-down",
    permission="distlock.step_down_leader",
    title=_("Ask the leader to step down"),
    button=_("Ask it to step down"),
    consequences=lambda info, ref: [
        _("The leader is told as of a loss, and the next candidate leads once it has resigned."),
        _("Until then, for the length of a lease at the most, it keeps the others out."),
        _(
            "A leader whose process does not answer is not told: it is gone when its lease ends."
            " If it goes on in spite of being asked, its lock can be broken among the held locks."
        ),
    ],
    facts=_leader_facts,
    perform=lambda ref, values: Election(ref.name, using=ref.alias).step_down(
        ref.token, **signature(values)
    ),
    log=_("Asked %(target)s to step down, term %(token)d. Reason: %(reason)s"),
    done=_("The leader was asked to step down:"),
)


def _leader(report: ElectionInfo) -> Cell:
    leader = report.leader
    return Cell(leader.name, "mono") if leader else Cell(_("Nobody leads"), "state", "expiring")


def _since(report: ElectionInfo) -> Any:
    """Return since when the leader leads; None if nobody does."""
    leader, terms = report.leader, report.history
    if leader is None or not terms or terms[0].term != leader.term:
        return None
    return terms[0].since


_CANDIDATE: Columns[Candidate] = (
    (_("Candidate"), lambda one: Cell(one.name, "mono")),
    (_("State"), lambda one: Cell(None) if one.term is None else Cell(_("leads"), "state", "held")),
    (_("Owner"), lambda one: Cell(one.owner, "owner")),
    (_("Stands for"), lambda one: Cell(one.since, "age")),
    (_("Priority"), lambda one: Cell(one.priority, "number")),
    (_("Data"), lambda one: Cell(one.data or None, "data")),
)
_TERM: Columns[Term] = (
    (_("Candidate"), lambda term: Cell(term.candidate, "mono")),
    (_("Owner"), lambda term: Cell(term.owner, "owner")),
    (_("From"), lambda term: Cell(term.since, "moment")),
    (_("Until"), lambda term: Cell(term.until, "moment")),
    (_("Ended"), lambda term: Cell(_WHY[term.why][0], "state", _WHY[term.why][1])),
    (_("Term"), lambda term: Cell(term.term, "number")),
)


class ElectionPages(RecipePages[ElectionInfo]):
    """The leader, the candidates in order, and the history."""

    kind = Kind.ELECTION
    model = ElectionModel
    columns: ClassVar[Columns[ElectionInfo]] = (
        (_("Leader"), _leader),
        (_("Owner"), lambda info: Cell(info.leader and info.leader.owner, "owner")),
        (_("Leads for"), lambda info: Cell(_since(info), "age")),
        (_("Candidates"), lambda info: Cell(len(info.candidates), "number")),
        (_("Order"), lambda info: Cell(_ORDERS[info.order][0])),
        (_("Term"), lambda info: Cell(info.leader and info.leader.term, "number")),
    )
    empty = _("Elections are listed here once a candidate has stood.")
    actions = (APPOINT, STEP_DOWN)

    def read(self, alias: str, name: str, *, whole: bool) -> ElectionInfo:
        """Return who leads, who stands, and who has led."""
        return Election(name, using=alias).info()

    def detail(self, alias: str, name: str, report: ElectionInfo) -> Detail:
        """Return the leader, the candidates in order, and the history."""
        leader = report.leader
        facts: list[tuple[Text, Cell]] = [
            (_("Leader"), _leader(report)),
            (_("Owner"), Cell(leader and leader.owner, "owner")),
            (_("Term"), Cell(leader and leader.term, "number")),
            (_("Leads since"), Cell(_since(report), "moment")),
            (_("Order"), Cell(_ORDERS[report.order][0])),
        ]
        if report.appointed:
            facts.append((_("Appointed"), Cell(report.appointed, "mono")))
        offers = []
        if leader is not None and leader.term is not None:
            ref = Ref(alias, name, leader.term, leader.name)
            offers = [Offer("step-down", _("Ask to step down…"), ref, danger=True)]

        def appoint(candidate: Candidate) -> list[Offer]:
            if candidate.term is not None or candidate.token is None:
                return []
            ref = Ref(alias, name, candidate.token, candidate.name)
            return [Offer("appoint", _("Appoint…"), ref, named=candidate.name)]

        # The appointed candidate is listed before the leader, although it leads only later.
        line = sorted(report.candidates, key=lambda one: one.term is None)
        rows, empty = rows_of(_CANDIDATE, line, appoint), _("Nobody stands.")
        hint = _("in the order in which they lead")
        candidates = Table("candidates", _("Candidates"), rows, empty, hint)
        rows, empty = rows_of(_TERM, report.history), _("Nobody has led yet.")
        history = Table("history", _("History"), rows, empty, hint=_("newest first"))
        return Detail(facts, [candidates, history], _explanation(report), offers)


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
    return [first, _ORDERS[report.order][1]]
