"""``manage.py locks election``, ``group``, ``names`` and those of barriers: who is there.

Who leads an election can also be decided here; the others are only looked at.
"""

from __future__ import annotations

from distlock.commands.arguments import YES, option, whole_number
from distlock.commands.exit_codes import NOT_HELD, fail
from distlock.commands.output import Row, age, data, owner
from distlock.commands.verbs import ASKING, CHANGING, RecipeCommand, Show, SignedVerb, Target
from distlock.recipes.barrier import Barrier, BarrierInfo, DoubleBarrier
from distlock.recipes.candidates import Candidate, ElectionInfo, Term
from distlock.recipes.election import Election
from distlock.recipes.group import Group, Member
from distlock.recipes.names import Address, Names
from distlock.types.lease import Kind
from distlock.types.values import quoted


def _election(info: ElectionInfo) -> Row:
    leader = info.leader
    leads = (
        (None, None, None) if leader is None else (quoted(leader.name), leader.owner, leader.term)
    )
    order = f"{info.order}: {quoted(info.appointed)}" if info.appointed else info.order
    return *leads, len(info.candidates), order


def _candidate(one: Candidate) -> Row:
    state = "waits" if one.term is None else "leads"
    since, information = age(one.since), data(one.data)
    return quoted(one.name), state, one.owner, since, one.priority, one.token, information


def _term(term: Term) -> Row:
    ended = term.why or "leads"
    return quoted(term.candidate), term.term, term.owner, term.since, term.until, ended


def _appoint(at: Target, *, candidate: str, signed: dict[str, str], **others: object) -> None:
    election = at.recipe(Election)
    info = at.ask(election.info)
    if candidate not in (one.name for one in info.candidates):
        names = ", ".join(quoted(one.name) for one in info.candidates)
        fail(NOT_HELD, f"{candidate!r} does not stand; those who stand: {names or 'nobody'}")
    at.ask(lambda: election.appoint(candidate, **signed))
    when = "leads as soon as the leader of now has left" if info.order == "appointed" else "is next"
    at.write(f"{quoted(candidate)} {when}.")


def _step_down(
    at: Target, *, term: int, interactive: bool, signed: dict[str, str], **others: object
) -> None:
    election = at.recipe(Election)
    leader = at.ask(election.leader)
    missing = f"nobody leads election {at!r} under term {term}"
    if leader is None or leader.term != term:
        fail(NOT_HELD, missing)
    at.write(
        f"{quoted(leader.name)}, {owner(leader.owner)}, leads {at}. It is told as of a loss; the"
        " next candidate leads once it has resigned."
    )
    at.confirm(interactive, "Ask it to step down?")
    if not at.ask(lambda: election.step_down(term, **signed)):
        fail(NOT_HELD, f"{missing} any more; nothing was done")
    at.succeed("Asked to step down.")


_CANDIDATE = option("candidate CANDIDATE", "The name of one who stands.")
_TERM = option(
    "--term", "That of the leader, as `election show` prints it.", type=whole_number, required=True
)

ELECTION = RecipeCommand(
    Kind.ELECTION,
    "Elections: list, show, history, appoint a leader, ask one to step down.",
    lambda alias, name: Election(name, using=alias).info(),
    ("LEADER", "OWNER", "TERM", "CANDIDATES", "ORDER"),
    _election,
    {
        "history": Show(
            "List who has led, newest first, and why it ended.",
            lambda info: info.history,
            ("CANDIDATE", "TERM", "OWNER", "FROM", "UNTIL", "ENDED"),
            _term,
            key="history",
            nobody="nobody has led in election",
        ),
        "appoint": SignedVerb("Appoint who is to lead next.", _appoint, (_CANDIDATE,), CHANGING),
        "step-down": SignedVerb(
            "Ask the leader of a term to step down. Asks first.", _step_down, (_TERM, YES), ASKING
        ),
    },
    show=Show(
        "Show who leads, and who stands in which order.",
        lambda info: info.candidates,
        ("CANDIDATE", "STATE", "OWNER", "STANDS FOR", "PRIORITY", "TOKEN", "DATA"),
        _candidate,
        nobody="nobody leads or stands in election",
    ),
    list_help="List the elections, and who leads.",
)


def _member(member: Member) -> Row:
    name, since = quoted(member.name), age(member.since)
    return name, member.owner, since, member.token, data(member.data)


GROUP: RecipeCommand[tuple[Member, ...]] = RecipeCommand(
    Kind.GROUP,
    "Groups of processes: list, show.",
    lambda alias, name: Group(name, using=alias).members(),
    ("MEMBERS", "LAST JOINED"),
    lambda members: (len(members), members[-1].since if members else None),
    show=Show(
        "Show who is in a group.",
        lambda members: members,
        ("MEMBER", "OWNER", "THERE FOR", "TOKEN", "DATA"),
        _member,
        nobody="nobody is in group",
    ),
    list_help="List the groups, and how many are in each.",
    entries="members",
)


def _barrier(info: BarrierInfo) -> Row:
    state = "waits" if info.waiting else "empty"
    return "broken" if info.broken else state, len(info.waiting), info.parties


def _barriers(
    kind: Kind, help: str, make: type[Barrier] | type[DoubleBarrier]
) -> RecipeCommand[BarrierInfo]:
    return RecipeCommand(
        kind,
        help,
        lambda alias, name: make(name, using=alias).info(),
        ("STATE", "WAITING", "PARTIES"),
        _barrier,
        show=Show(
            parts=lambda info: info.waiting,
            heading=("SINCE", "TOKEN", "OWNER"),
            row=lambda holder: (holder.since, holder.token, holder.owner),
        ),
    )


BARRIER = _barriers(Kind.BARRIER, "Barriers: list, show.", Barrier)
DOUBLE_BARRIER = _barriers(Kind.DOUBLE_BARRIER, "Double barriers: list, show.", DoubleBarrier)


def _address(one: Address) -> Row:
    kind = "unique" if one.unique else "service"
    return quoted(one.address), kind, one.owner, one.token, quoted(one.name)


NAMES: RecipeCommand[tuple[Address, ...]] = RecipeCommand(
    Kind.NAMES,
    "Registered names: list the namespaces, show one.",
    lambda alias, name: Names(name, using=alias).resolve_all(),
    ("NAMES", "ADDRESSES"),
    lambda addresses: (len({address.name for address in addresses}), len(addresses)),
    show=Show(
        parts=lambda addresses: addresses,
        heading=("ADDRESS", "KIND", "OWNER", "TOKEN", "NAME"),
        row=_address,
    ),
)
