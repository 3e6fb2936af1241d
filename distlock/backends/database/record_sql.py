"""The statements about records, in SQL with an engine's own words filled in.

One class per engine fills the words in: see mariadb.py, postgresql.py and sqlite.py. There
``apply()`` is one packet that the server carries out without us, so that a client that is stopped
in the middle keeps no row locked. SQLite has no server; there it is a transaction of this process.
"""

from __future__ import annotations

import functools
import json
import math
import zlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Sequence
from typing import Any, ClassVar, NamedTuple, TypeVar

from distlock.backends.database.connection import Connection
from distlock.backends.database.sql import LONGEST, Dialect
from distlock.backends.database.statements import (
    BATCH,
    LeasedRows,
    Statement,
    SweptRows,
    end_of,
    in_list,
    named_values,
)
from distlock.backends.store import (
    Absent,
    Address,
    Change,
    Condition,
    Delete,
    Exists,
    MoveFirst,
    Put,
)

T = TypeVar("T")

#: The tables of distlock.models, which cannot be imported while Django starts.
DIRECTORIES = "database_lock_directory"
RECORDS = "database_lock_record"
SESSIONS = "database_lock_session"

#: Records with these keys: the id of the directory, the keys, and the keys as rows.
_AMONG = f"FROM {RECORDS} o WHERE o.directory = {{0}} AND o.name IN ({{1}})"
#: Shapes of edits for which the texts are kept, at most.
_MOST_SHAPES = 500
#: Microseconds that are added to a session: the server's time, from which it is counted, may be
#: rounded down, on SQLite to a millisecond.
_ROUNDED = 1001


class Edit:
    """The changes of one apply(), one for each key, as its statements need them."""

    def __init__(
        self, directory: str, changes: Sequence[Change], conditions: Collection[Condition]
    ) -> None:
        self.directory = directory
        self.puts = [change for change in changes if isinstance(change, Put)]
        self.move = next((one for one in changes if isinstance(one, MoveFirst)), None)
        self.deleted = [change.key for change in changes if isinstance(change, Delete)]
        #: the keys of all records that it changes
        self.keys = sorted(change.key for change in changes)
        #: sessions that must be alive
        self.sessions = sorted({put.session for put in self.puts if put.session})
        self.conditions = list(conditions)

    @property
    def shape(self) -> tuple[object, ...]:
        """The numbers of changes and the kinds of conditions, on which the texts depend.

        Conditions on the same record are known by the first of them.
        """
        kinds, same = list[object](), dict[object, int]()
        for number, one in enumerate(self.conditions):
            kinds.append(type(one))
            if isinstance(one, Exists):
                alike = one.key, (one.key, one.revision)
                kinds += [one.revision is None, *[same.setdefault(each, number) for each in alike]]
        moves = self.move is not None
        return moves, len(self.puts), len(self.deleted), len(self.sessions), *kinds

    def params(self) -> dict[str, Any]:
        """Return the parameters of all statements that make the changes."""
        params = {
            "directory": self.directory,
            **named_values("deleted", self.deleted),
            **named_values("session", self.sessions),
            **named_values("key", [put.key for put in self.puts]),
            **named_values("value", [put.text for put in self.puts]),
            **named_values("bound", [put.session for put in self.puts]),
        }
        if (move := self.move) is not None:
            params |= {"moved": move.key, "begin": move.prefix, "end": end_of(move.prefix)}
            params |= {"mark": move.mark, "before": move.before, "after": move.after}
        for number, condition in enumerate(self.conditions):
            if isinstance(condition, (Absent, Exists)):
                params[f"other{number}"] = condition.key
            if not isinstance(condition, Absent) and condition.revision is not None:
                params[f"revision{number}"] = condition.revision
        return params


def by_shape(method: Callable[..., T]) -> Callable[..., T]:
    """Remember what a method makes of an Edit, which depends on the shape of that only."""

    @functools.wraps(method)
    def remembered(sql: RecordSQL, edit: Edit, **options: bool) -> T:
        shape = method, edit.shape, *options.values()
        known: T | None = sql.remembered.get(shape)
        if known is None:
            if len(sql.remembered) >= _MOST_SHAPES:
                sql.remembered.clear()
            known = sql.remembered[shape] = method(sql, edit, **options)
        return known

    return remembered


class ApplyResult(NamedTuple):
    """What came of an apply(): the new revision, or why nothing was changed."""

    revision: int | None
    #: the directory has a row
    found: bool = True
    #: all conditions hold
    held: bool = True
    #: it has records of sessions whose time is over
    stale: bool = False
    #: the channels, or their listener_locks(), on which somebody listens for what was changed
    heard: Sequence[str] = ()
    #: of the record that was moved: key, value, and the revisions at which it was put
    moved: Sequence[Any] = ()


#: Bytes of a text that NOTIFY takes, at most.
_LONGEST_TEXT = 7999


class ChangeNotice(NamedTuple):
    """The notification of a change; None for unknown parts."""

    directory: str
    revision: int | None = None
    keys: Collection[str] | None = None

    def text(self) -> str:
        """Return it as one text of the length that NOTIFY takes."""
        keys = None if self.keys is None else sorted(self.keys)
        text = json.dumps([self.directory, self.revision, keys], ensure_ascii=False)
        if len(text.encode()) > _LONGEST_TEXT:
            return ChangeNotice(self.directory, self.revision).text()
        return text

    @classmethod
    def read(cls, text: str) -> ChangeNotice:
        return cls(*json.loads(text))


class RecordSQL(ABC):
    """How one kind of database is spoken to about records."""

    #: begins a packet that only reads: a proxy that splits reads sends several statements to the
    #: primary
    PRIMARY: ClassVar[str] = ""
    #: begins a packet that is planned once: when that was done, the tables may have been empty
    BY_INDEX: ClassVar[str] = ""
    #: the first and the longest pause, in seconds, between two looks for changes
    PAUSES: ClassVar[tuple[float, float]] = (0.05, 1.0)
    #: how to look several keys up one by one, if it does not for a list of them; see _among()
    AMONG: ClassVar[str] = ""
    #: the condition that a directory was not changed while a sweep waited for its row, if needed
    UNCHANGED: ClassVar[str] = ""
    #: the condition that a record may have a text, see Having: it has that, an escape of JSON, or a
    #: character of several bytes
    HAS: ClassVar[str]
    ON_CONFLICT: ClassVar[str] = "ON CONFLICT ({0}) DO NOTHING"
    #: how a record is put: the columns, and what is done if it is there
    PUT: ClassVar[str] = (
        f"INSERT INTO {RECORDS} (directory, name, value, created, revision, session)"
    )
    REPLACE: ClassVar[str] = (
        "ON CONFLICT (directory, name) DO UPDATE SET value = EXCLUDED.value,"
        " revision = EXCLUDED.revision, session = EXCLUDED.session"
    )
    #: finds the first record of a prefix, see MoveFirst, by the id of the directory
    FIRST: ClassVar[str] = (
        f"FROM {RECORDS} r WHERE r.directory = {{0}} AND r.name >= %(begin)s AND r.name < %(end)s"
        " ORDER BY r.name LIMIT 1"
    )
    #: the key of LISTENERS, if the server can tell of changes, and on how many channels
    LISTENS: ClassVar[str] = ""
    CHANNELS: ClassVar[int] = 256
    #: the condition that the directory d has a record of a session that runs, or of none
    IN_USE: ClassVar[str] = (
        f"EXISTS (SELECT 1 FROM {RECORDS} r LEFT JOIN {SESSIONS} s ON s.id = r.session"
        " WHERE r.directory = d.id AND (r.session IS NULL OR s.{0}))"
    )

    def __init__(self, dialect: Dialect) -> None:
        #: the server's time in microseconds since 1970
        self.now = dialect.MICROSECONDS
        #: the texts that by_shape() has made
        self.remembered = dict[tuple[object, ...], Any]()
        #: the next revision of a directory
        self.next = f"{dialect.GREATEST}(revision + 1, {self.now})"
        #: how to find and renew the sessions
        self.sessions = LeasedRows(SESSIONS, ("id",), self.now, dialect.SKIP_LOCKED)
        self._stale = (
            f"EXISTS (SELECT 1 FROM {RECORDS} r JOIN {SESSIONS} s ON s.id = r.session"
            f" WHERE r.directory = {{0}} AND s.{self.sessions.over})"
        )
        self._create = (
            f"INSERT INTO {DIRECTORIES} (name, revision) VALUES (%(directory)s, 0)"
            f" {self.ON_CONFLICT.format('name')}"
        )

    # Records

    def with_keys(self, directory: str, keys: Sequence[str]) -> str:
        """Return ``… r ON …`` for the records of a directory, by its id, that have these keys."""
        if self.AMONG and len(keys) > 1:
            return f"(SELECT o.* {self._among(directory, keys)}) r ON TRUE"
        return f"{RECORDS} r ON r.directory = {directory} AND r.name IN ({', '.join(keys)})"

    def _among(self, directory: str, keys: Sequence[str]) -> str:
        """Return ``FROM … o WHERE …`` for the same records."""
        text = self.AMONG if self.AMONG and len(keys) > 1 else _AMONG
        return text.format(directory, ", ".join(keys), "), (".join(keys))

    @abstractmethod
    def apply(self, connection: Connection, edit: Edit, *, create: bool) -> ApplyResult:
        """Make the changes, or none. ``create``: make the row of the directory if it is missing."""

    def in_use(self, prefix: str) -> Statement:
        """Ask for the names of directories that have records of sessions that run, or of none."""
        text = f"{self.PRIMARY}SELECT d.name FROM {DIRECTORIES} d WHERE"
        in_use = self.IN_USE.format(self.sessions.runs)
        if not prefix:
            return Statement(f"{text} {in_use}")
        begins = "d.name >= %(prefix)s AND d.name < %(end)s"  # LIKE would use no index here
        params = {"prefix": prefix, "end": end_of(prefix)}
        return Statement(f"{text} {begins} AND {in_use}", params)

    def _conditions(self, edit: Edit, directory: str, revision: str) -> str:
        """Return what must be true; the arguments are the id and the revision of the directory.

        All keys are looked for at once: PostgreSQL plans for milliseconds where each is joined.
        """
        records = f"FROM {RECORDS} o WHERE o.directory = {directory}"
        texts, absent, there = ["1 = 1"], list[str](), dict[tuple[str, int | None], str]()
        names = dict[str, str]()  # by key: a condition may be given twice
        for number, condition in enumerate(edit.conditions):
            name, same = f"%(other{number})s", f"%(revision{number})s"
            if isinstance(condition, Absent):
                absent.append(name)
            elif isinstance(condition, Exists):
                names[condition.key] = name
                exactly = "" if condition.revision is None else f" AND o.revision = {same}"
                there[condition.key, condition.revision] = f"o.name = {name}{exactly}"
            else:
                texts.append(f"{revision} = {same}")
        if absent:
            texts.append(f"NOT EXISTS (SELECT 1 {self._among(directory, absent)})")
        if len({key for key, _ in there}) == len(there) > 1:
            some = " OR ".join(f"({text})" for text in there.values())
            # Repeat the names in a list of their own: the index is used for that list only.
            those = self._among(directory, [*names.values()])
            texts.append(f"(SELECT COUNT(*) {those} AND ({some})) = {len(there)}")
        else:
            texts += [f"EXISTS (SELECT 1 {records} AND {text})" for text in there.values()]
        return " AND ".join(texts)

    # Sessions

    def open_session(self, session: str, seconds: float) -> Statement:
        """Insert a session; doing it again does no harm."""
        return Statement(
            f"INSERT INTO {SESSIONS} (id, duration, expires_at)"
            f" VALUES (%(session)s, %(duration)s, {self.now} + %(duration)s)"
            f" {self.ON_CONFLICT.format('id')}",
            {
                "session": session,
                "duration": math.ceil(min(seconds, LONGEST) * 1_000_000) + _ROUNDED,
            },
        )

    def renew(self, sessions: Sequence[str]) -> Statement:
        """Renew those sessions that have not ended."""
        return self.sessions.update(f"expires_at = {self.now} + duration", sessions)

    def there(self, sessions: Sequence[str], records: Sequence[Address]) -> Statement:
        """Ask which of the sessions run, and which of the records are there, and perhaps more.

        Rows are two texts: a session and an empty one, or a directory and a key.
        """
        parts, params = [], dict[str, Any]()
        if sessions:
            alive = self.sessions.running(sessions, also=", ''")
            parts.append(alive.sql)
            params |= alive.params
        if records:
            these, values = _these(records)
            params |= values
            parts.append(
                f"SELECT d.name, r.name FROM {DIRECTORIES} d JOIN {RECORDS} r ON r.directory = d.id"
                f" LEFT JOIN {SESSIONS} s ON s.id = r.session"
                f" WHERE {these} AND (r.session IS NULL OR s.{self.sessions.runs})"
            )
        return Statement(" UNION ALL ".join(parts), params)

    def renew_all(
        self, connection: Connection, sessions: Sequence[str], records: Sequence[Address]
    ) -> list[tuple[str, str]]:
        """Renew, and then ask there(), in one packet."""
        asked = self.there(sessions, records)
        text = f"{self.renew(sessions).sql}; " if sessions else self.PRIMARY
        return connection.ask(asked._replace(sql=text + asked.sql)).rows

    @abstractmethod
    def end(
        self, connection: Connection, sessions: Sequence[str], *, expired: bool
    ) -> Sequence[Address]:
        """Delete sessions with their records, and touch the directories of these.

        Returns the records whose watchers have to be notified. ``expired``: end only those whose
        time is over. That is decided under the lock of the row, so a renewal comes before or after.
        """

    def _ending(self, sessions: Sequence[str], *, expired: bool) -> list[str]:
        """Return the statements of end(), in their order."""
        over = f" AND {self.sessions.over}" if expired else ""
        some = in_list("id", "session", sessions)
        gone = (
            f"{in_list('session', 'session', sessions)}"
            f" AND session NOT IN (SELECT id FROM {SESSIONS} WHERE {some})"
        )
        return [
            f"DELETE FROM {SESSIONS} WHERE {some}{over}",
            self._touch(f"SELECT DISTINCT directory FROM {RECORDS} WHERE {gone}"),
            f"DELETE FROM {RECORDS} WHERE {gone}",
        ]

    def _touch(self, directories: str) -> str:
        return f"UPDATE {DIRECTORIES} SET revision = {self.next} WHERE id IN ({directories})"

    # Looking for changes

    def look(self, directories: Sequence[str]) -> Statement:
        """Ask for name, revision, and the microseconds until the first session ends, if any."""
        first = (
            f"SELECT MIN(s.expires_at) FROM {RECORDS} r JOIN {SESSIONS} s ON s.id = r.session"
            " WHERE r.directory = d.id"
        )
        return Statement(
            f"{self.PRIMARY}SELECT d.name, d.revision, ({first}) - {self.now} FROM {DIRECTORIES} d"
            f" WHERE {in_list('d.name', 'directory', directories)}",
            named_values("directory", directories),
        )

    def look_at_records(self, addresses: Collection[Address]) -> Statement:
        """Ask for directory, key and revision of these records, and perhaps of more."""
        these, params = _these(addresses)
        return Statement(
            f"{self.PRIMARY}SELECT d.name, r.name, r.revision FROM {DIRECTORIES} d"
            f" JOIN {RECORDS} r ON r.directory = d.id WHERE {these}",
            params,
        )

    @classmethod
    def channel_of(cls, directory: str, key: str | None = None) -> str:
        """Return the channel for notifications of changes of a directory, or of one record."""
        name = directory if key is None else f"{directory}\0{key}"
        return f"distlock_records_{zlib.crc32(name.encode()) % cls.CHANNELS}"

    # Sweeping

    def ended(self) -> Statement:
        """Ask for some sessions whose time is over."""
        return Statement(f"SELECT id FROM {SESSIONS} WHERE {self.sessions.over} LIMIT {BATCH}")

    def empty(self, keep: float) -> SweptRows:
        """Return the directories without records that were not changed for ``keep`` seconds."""
        return SweptRows(
            DIRECTORIES,
            f"DELETE FROM {DIRECTORIES}",
            f"revision <= {self.now} - %(kept)s AND NOT EXISTS (SELECT 1 FROM {RECORDS} r"
            f" WHERE r.directory = {DIRECTORIES}.id){self.UNCHANGED}",
            {"kept": int(keep * 1_000_000)},
        )


def _these(addresses: Collection[Address]) -> tuple[str, dict[str, Any]]:
    """Return the condition for these records, and perhaps more, with its parameters."""
    directories = sorted({directory for directory, _ in addresses})
    keys = sorted({key for _, key in addresses})
    condition = (
        f"{in_list('d.name', 'directory', directories)} AND {in_list('r.name', 'key', keys)}"
    )
    return condition, {**named_values("directory", directories), **named_values("key", keys)}
