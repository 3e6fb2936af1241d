"""One entry for each recipe: what generic code needs before it looks at the recipe itself.

The admin's pages, ``manage.py locks KIND``, the models behind the permissions, and the sweep are
made from these entries. Importing this module imports no recipe.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from functools import cached_property
from typing import TYPE_CHECKING, Any

from django.utils.functional import Promise
from django.utils.module_loading import import_string
from django.utils.translation import gettext_lazy as _

from distlock.types.lease import Kind

if TYPE_CHECKING:
    from distlock.typed import Description  # a stub


@dataclass(frozen=True)
class Entry:
    """A recipe.

    - ``plural``: what JSON calls a list of them.
    - ``path``: of its subclass of Description, in distlock.recipes: ``module.Class``.
    - ``help``: what the terminal says of its commands.
    - ``labels``: what people call one of them, and all of them.
    - ``permissions``: for what may be done to them, beside the one to see them.
    - ``keep``: how long the sweep leaves the records of what nobody is part of any more, from the
      last change on. None: forever.
    """

    kind: Kind
    plural: str
    path: str
    help: str
    labels: tuple[Promise, Promise]
    permissions: tuple[tuple[str, Promise], ...] = ()
    keep: timedelta | None = None

    @property
    def model(self) -> str:
        """The name of the model that stands for it in permissions and in the admin's log."""
        return self.kind.title().replace("-", "")

    @cached_property
    def description(self) -> Description[Any]:
        """Its Description; this imports the recipe."""
        return import_string(f"distlock.recipes.{self.path}")()  # type: ignore[no-any-return]


#: In the order in which the admin and the terminal list them.
ENTRIES = (
    Entry(
        Kind.ELECTION,
        "elections",
        "election_description.ElectionDescription",
        "Elections: list, show, history, appoint a leader, ask one to step down.",
        (_("election"), _("elections")),
        (
            ("appoint_leader", _("Can appoint the leader of an election")),
            ("step_down_leader", _("Can ask a leader to step down")),
        ),
        keep=timedelta(days=30),
    ),
    Entry(
        Kind.GROUP,
        "groups",
        "group.GroupDescription",
        "Groups of processes: list, show.",
        (_("group of processes"), _("groups of processes")),
        keep=timedelta(days=1),
    ),
    Entry(
        Kind.BARRIER,
        "barriers",
        "barrier.BarrierDescription",
        "Barriers: list, show.",
        (_("barrier"), _("barriers")),
        keep=timedelta(),
    ),
    Entry(
        Kind.DOUBLE_BARRIER,
        "double_barriers",
        "barrier.DoubleBarrierDescription",
        "Double barriers: list, show.",
        (_("double barrier"), _("double barriers")),
        keep=timedelta(),
    ),
    Entry(
        Kind.EVENT,
        "events",
        "event.EventDescription",
        "Events: list, show.",
        (_("event"), _("events")),
    ),
    Entry(
        Kind.COUNT_DOWN_LATCH,
        "count_down_latches",
        "counter.LatchDescription",
        "Latches that are counted down: list, show.",
        (_("latch"), _("latches")),
        keep=timedelta(days=1),
    ),
    Entry(
        Kind.COUNTER,
        "counters",
        "counter.CounterDescription",
        "Counters: list, show.",
        (_("counter"), _("counters")),
    ),
    Entry(
        Kind.RATE_LIMITER,
        "rate_limiters",
        "rate_limiter.RateLimiterDescription",
        "Rate limiters: list, show.",
        (_("rate limiter"), _("rate limiters")),
        # longer than the longest period, in which its permits count
        keep=timedelta(days=8),
    ),
    Entry(
        Kind.QUEUE,
        "queues",
        "queue_description.QueueDescription",
        "Queues: list, show, dead letters, retry, release, purge, resize.",
        (_("queue"), _("queues")),
        (
            ("retry_dead_letter", _("Can put dead letters back into their queue")),
            ("release_delivery", _("Can take an item of a queue back from its consumer")),
            ("purge_queue", _("Can remove all items of a queue")),
        ),
    ),
    Entry(
        Kind.CONFIG,
        "configs",
        "log_description.ConfigDescription",
        "Configuration values: list, get, set, history, rollback.",
        (_("configuration value"), _("configuration")),
        (("edit_config", _("Can change a configuration value, and roll it back")),),
    ),
    Entry(
        Kind.TOPIC,
        "topics",
        "log_description.TopicDescription",
        "Topics: list, show the last messages.",
        (_("topic"), _("topics")),
    ),
    Entry(
        Kind.NAMES,
        "namespaces",
        "names.NamesDescription",
        "Registered names: list the namespaces, show one.",
        (_("namespace"), _("registered names")),
    ),
    Entry(
        Kind.PROGRESS,
        "progress",
        "progress_description.ProgressDescription",
        "Progress of work: list, show, watch it live, ask it to end.",
        (_("progress report"), _("progress")),
        (("cancel_progress", _("Can cancel work that reports its progress")),),
        keep=timedelta(days=1),
    ),
)
#: The same by kind.
BY_KIND = {entry.kind: entry for entry in ENTRIES}
#: Of those that the sweep clears, for how long it leaves their records.
KEPT = {entry.kind: entry.keep for entry in ENTRIES if entry.keep is not None}
