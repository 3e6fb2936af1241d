"""A log: numbered entries, of which the last ones are kept. Config and Topic are made of it.

The directory of a log has

- ``last``: the last entry: its number, what it says, who appended it, when and why; and the number
  of the first entry that is kept. Each append writes it on the condition that nobody else has, so
  numbers come one after the other.
- ``e/NUMBER``: the same of each entry that is kept, put in the same change.
"""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta

from distlock.activity import current_activity
from distlock.backends.recipe_records import Done, Plan
from distlock.backends.store import Absent, Change, Delete, Exists, Put, Record, Snapshot
from distlock.concurrency.steps import Steps
from distlock.exceptions import StaleToken
from distlock.recipes.recipe import Recipe, checked_json, deadline_of
from distlock.recipes.semaphore import checked_count
from distlock.types.arguments import checked_text
from distlock.types.owners import current_owner

#: The key of the last entry.
LAST = "last"
#: Records that one change removes at the most: ``keep`` may have become much smaller.
_MOST_REMOVED = 50
#: Seconds that others may be faster each time, until one who appends without a limit gives up.
MOST_BUSY = 30.0


class Log(Recipe):
    """A recipe whose state is a log."""

    def __init__(self, name: str, keep: int, using: str) -> None:
        """``keep``: how many entries are kept; an append removes the older ones."""
        super().__init__(name, using)
        self._keep = checked_count("keep", keep)

    def _append(
        self,
        argument: str,
        value: object,
        comment: str = "",
        author: str | None = None,
        *,
        if_version: int | None = None,
        above: int = 0,
    ) -> Steps[Record]:
        """Append an entry that says ``value``, which errors call ``argument``; return its record.

        - ``author``: None says what goes on here, see distlock.activity, or else host and process.
        - ``if_version``: raise StaleToken unless this is the number of the last entry.
        - ``above``: the entry gets a greater number than this.

        Raises TypeError or ValueError for bad texts, and a value that is no JSON or too large;
        LockUnavailable with ``maybe_applied`` if it may be in the log, once, or may be yet.
        """
        if author is None:
            owner = current_owner()
            author = current_activity() or f"{owner.host}:{owner.pid}"
        said = {
            "value": value,
            "comment": checked_text("comment", comment),
            "author": checked_text("author", author),
            "at": time.time_ns() // 1000,
        }
        checked_json(argument, value, said)

        def plan(found: Snapshot) -> Plan:
            last, (before, first) = found.records.get(LAST), numbers_of(found)
            if if_version not in (None, before):
                raise StaleToken(
                    f"{self.kind} {self.name!r} on {self.using!r} has version {before}, and not"
                    f" if_version={if_version}: it was not set"
                )
            number = max(before, above) + 1
            kept = max(first, min(number - self._keep + 1, first + _MOST_REMOVED))
            entry = {**said, "number": number, "first": kept}
            changes: list[Change] = [Put(LAST, entry), Put(entry_key(number), entry)]
            changes += [Delete(entry_key(old)) for old in range(first, kept)]
            return Plan(changes, [Exists(LAST, last.revision) if last else Absent(LAST)], entry)

        done: Done = yield self._change(plan, deadline_of(MOST_BUSY), keys=[LAST])
        assert done.revision is not None, "each plan has changes"
        return Record(LAST, done.result, done.revision, done.revision)


def entry_key(number: int) -> str:
    """Return the key of an entry; the order of keys is that of numbers."""
    return f"e/{number:020d}"


def numbers_of(found: Snapshot) -> tuple[int, int]:
    """Return the number of the last entry, and of the first one that is kept."""
    last = found.records.get(LAST)
    return (last.value["number"], last.value["first"]) if last else (0, 1)


def entries(found: Snapshot) -> list[Record]:
    """Return the entries that were found, in the order of their numbers."""
    return [found.records[key] for key in sorted(found.records) if key != LAST]


def moment_of(record: Record) -> datetime:
    """Return when an entry was appended, by the clock of that machine."""
    return datetime.fromtimestamp(0, UTC) + timedelta(microseconds=record.value["at"])
