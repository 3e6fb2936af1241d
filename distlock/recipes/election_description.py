"""What an election looks like: who leads, is next, and has led; and deciding it by hand."""

from __future__ import annotations

from datetime import datetime
from typing import Any, ClassVar

from django.utils.translation import gettext_lazy as _

from distlock.exceptions import LockError, LockUnavailable
from distlock.recipes.candidates import Candidate, ElectionInfo, Term
from distlock.recipes.cells import Cell, Columns, Facts, Text, state
from distlock.recipes.description import (
    Action,
    Description,
    Detail,
    Listing,
    Missing,
    Offer,
    Option,
    Proposal,
    Ref,
    Table,
    operation,
    signature,
)
from distlock.recipes.election import Election
from distlock.types.values import quoted

#: The names of the orders, and their meaning.
_ORDERS: dict[str, tuple[Text, Text]] = {
    "first": (_("who came first"), _("The candidate who came first is the next to lead.")),
    "succession": (
        _("by priority"),
        _("The candidate of the greatest priority is the next to lead."),
    ),
    "appointed": (_("by hand"), _("Only a candidate that was appointed by hand may lead.")),
}
#: Why terms have ended.
_WHY = {
    "": state("leads", _("leads"), "held"),
    "resigned": state("resigned", _("resigned")),
    "stepped down": state("stepped down", _("stepped down")),
    "lost": state("lost", _("lost"), "expiring"),
    "broken": state("broken", _("broken"), "expired"),
    "crashed": state("crashed", _("crashed"), "expired"),
}


def _order(info: ElectionInfo) -> Cell:
    return Cell(_ORDERS[info.order][0], code=info.order)


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
        (_("Order"), _order(info)),
    ]


def _appoint_consequences(info: ElectionInfo, ref: Ref) -> list[Text]:
    if info.order == "appointed":
        return [
            _("Nobody else may lead from then on."),
            _("The present leader is asked to step down; the candidate leads once it has."),
        ]
    return [
        _("The candidate leads next, before all others."),
        _("The present leader goes on until it resigns, is lost, or is asked to step down."),
    ]


def _appoint(ref: Ref, values: dict[str, Any]) -> bool:
    election = ref.recipe(Election)
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
        _("For the leader this is a loss, and the next candidate leads once it has resigned."),
        _("Until then, for the length of a lease at most, it keeps the others out."),
        _(
            "A leader whose process does not answer cannot learn of it: it is gone when its"
            " lease ends."
            " If it goes on in spite of the request, its lock can be broken among the held locks."
        ),
    ],
    facts=_leader_facts,
    perform=lambda ref, values: ref.recipe(Election).step_down(ref.token or 0, **signature(values)),
    log=_("Asked %(target)s to step down, term %(token)d. Reason: %(reason)s"),
    done=_("The leader was asked to step down:"),
)


def _leader(report: ElectionInfo) -> Cell:
    leader = report.leader
    return Cell(leader.name, "mono") if leader else state("nobody", _("Nobody leads"), "expiring")


def _since(report: ElectionInfo) -> datetime | None:
    """Return since when the leader leads; None if nobody does."""
    leader, terms = report.leader, report.history
    if leader is None or not terms or terms[0].term != leader.term:
        return None
    return terms[0].since


_CANDIDATE: Columns[Candidate] = (
    (_("Candidate"), lambda one: Cell(one.name, "mono")),
    (_("State"), lambda one: Cell(None, code="waits") if one.term is None else _WHY[""]),
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
    (_("Ended"), lambda term: _WHY[term.why]),
    (_("Term"), lambda term: Cell(term.term, "number")),
)


@operation("Appoint the next leader.", Option("candidate CANDIDATE", "The name of a candidate."))
def _appointing(ref: Ref, options: dict[str, Any]) -> Proposal:
    info, candidate = ref.recipe(Election).info(), options["candidate"]
    named = next((one for one in info.candidates if one.name == candidate), None)
    if named is None:
        names = ", ".join(quoted(one.name) for one in info.candidates)
        raise Missing(f"{candidate!r} does not stand; the candidates are: {names or 'nobody'}")
    when = (
        "leads as soon as the present leader has left" if info.order == "appointed" else "is next"
    )
    missing = f"{candidate!r} does not stand in election {ref.exact}"
    ref = ref.of(named.token, candidate)
    return Proposal(ref, _appoint, f"%(target)s {when}.", missing=missing)


@operation(
    "Ask the leader of a term to step down. Asks first.",
    Option("--term", "The leader's term, as `election show` prints it.", "whole", required=True),
    asks=True,
)
def _stepping_down(ref: Ref, options: dict[str, Any]) -> Proposal:
    info, term = ref.recipe(Election).info(), options["term"]
    ref = ref.of(term, info.leader.name if info.leader else "")
    missing = f"nobody leads election {ref.exact} under term {term}"
    return STEP_DOWN.proposal(info, ref, "Asked to step down.", missing, "Ask it to step down?")


class ElectionDescription(Description[ElectionInfo]):
    """The leader, the candidates in order, and the history."""

    recipe = Election
    list_help = "List the elections with their leaders."
    show_help = "Show the leader, and the candidates in their order."
    empty = _("Elections are listed here once a candidate has stood.")
    missing = "nobody leads or stands in election {}"
    columns: ClassVar[Columns[ElectionInfo]] = (
        (_("Leader"), _leader),
        (_("Owner"), lambda info: Cell(info.leader and info.leader.owner, "owner")),
        (_("Leads for"), lambda info: Cell(_since(info), "age")),
        (_("Candidates"), lambda info: Cell(len(info.candidates), "number")),
        (_("Order"), _order),
        (_("Term"), lambda info: Cell(info.leader and info.leader.term, "number")),
    )
    actions = (APPOINT, STEP_DOWN)
    verbs: ClassVar = {
        "history": Listing(
            "List the former leaders, newest first, and why they ended.",
            lambda ref: ref.recipe(Election).history(),
            _TERM,
            missing="nobody has led in election {}",
        ),
        "appoint": _appointing,
        "step-down": _stepping_down,
    }

    def is_there(self, report: ElectionInfo) -> bool:
        """Return whether somebody stands."""
        return bool(report.candidates)

    def detail(self, ref: Ref, report: ElectionInfo) -> Detail:
        """Return the leader, the candidates in order, and the history."""
        leader = report.leader
        led_by, owner, _age, _number, order, term = self.row(report)
        facts = [led_by, owner, term, (_("Leads since"), Cell(_since(report), "moment")), order]
        if report.appointed:
            facts.append((_("Appointed"), Cell(report.appointed, "mono")))
        offers = []
        if leader is not None and leader.term is not None:
            led = ref.of(leader.term, leader.name)
            offers = [Offer("step-down", _("Ask to step down…"), led, danger=True)]

        def appoint(candidate: Candidate) -> list[Offer]:
            if candidate.term is not None or candidate.token is None:
                return []
            meant = ref.of(candidate.token, candidate.name)
            return [Offer("appoint", _("Appoint…"), meant, named=candidate.name)]

        # The appointed candidate is listed before the leader, although it leads only later.
        line = sorted(report.candidates, key=lambda one: one.term is None)
        candidates = Table(
            "candidates",
            _("Candidates"),
            _CANDIDATE,
            line,
            _("Nobody stands."),
            _("in the order in which they lead"),
            appoint,
        )
        empty, hint = _("Nobody has led yet."), _("newest first")
        history = Table("history", _("History"), _TERM, report.history, empty, hint)
        return Detail(facts, [candidates, history], _explanation(report), offers)


def _explanation(report: ElectionInfo) -> list[Text]:
    if report.leader is not None:
        first = _(
            "One candidate leads at a time. If its process dies, or is cut off, the next one leads"
            " when its lease has ended; if it resigns, at once."
        )
    elif report.candidates:
        first = _(
            "Nobody leads at the moment: the last leader’s lease has not ended yet, or no"
            " candidate may lead."
        )
    else:
        first = _("There is no leader and no candidate.")
    return [first, _ORDERS[report.order][1]]
