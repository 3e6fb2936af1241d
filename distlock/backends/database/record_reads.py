"""Reads records: all of a directory, some, or the first of some prefixes, and counts others."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Any

from distlock.backends.database.record_sql import DIRECTORIES, RECORDS, SESSIONS, RecordSQL
from distlock.backends.database.statements import Statement, end_of, in_list, named_values
from distlock.backends.reading import first_keys, list_keys
from distlock.backends.store import Having, KeyRange, Peek, Record, Snapshot
from distlock.types.values import decoded

#: the columns of a record
_RECORD = "r.name, r.value, r.created, r.revision, r.session, s.expires_at"


def read_sql(sql: RecordSQL, directory: str, keys: Collection[str] = ()) -> Statement:
    """Ask for a directory: time, its revision, and of each record its columns.

    With ``keys`` only of these. There is always one row at least.
    """
    some = [*keys]
    records = f"{RECORDS} r ON r.directory = d.id"
    if some:  # MariaDB looks for keys in the index only if the directory is no column
        directory_id = f"(SELECT id FROM {DIRECTORIES} WHERE name = %(directory)s)"
        records = sql.with_keys(directory_id, [f"%(key{n})s" for n in range(len(some))])
    return Statement(
        f"{sql.PRIMARY}{sql.BY_INDEX}SELECT {sql.now}, d.revision, {_RECORD}"
        " FROM (SELECT 1 AS one) one"
        f" LEFT JOIN {DIRECTORIES} d ON d.name = %(directory)s"
        f" LEFT JOIN {records}"
        f" LEFT JOIN {SESSIONS} s ON s.id = r.session",
        {"directory": directory, **named_values("key", some)},
        prepare=True,
    )


def snapshot(directory: str, rows: Sequence[tuple[Any, ...]]) -> Snapshot:
    """Return what the answer to read_sql() says."""
    records = []
    for now, _, key, text, created, revision, session, expires_at in rows:
        if key is None:  # the directory is empty
            continue
        rest = None if session is None else (int(expires_at) - int(now)) / 1_000_000
        value = decoded(text)
        records.append(Record(key, value, int(created), int(revision), session, rest))
    now, revision, *_ = rows[0]
    return Snapshot.of(directory, int(revision or 0), records, int(now))


def peek_sql(sql: RecordSQL, directory: str, peek: Peek) -> Statement:
    """Ask for a directory as read_sql() does, but only for the first records of some prefixes.

    One row has no key: it says the revision. A row without a value says, in place of
    ``created``, how many records have keys that begin with a prefix; its key is the place of
    the prefix in ``count``. A row with neither is a key that was listed.
    """
    params = {"directory": directory}
    parts = [
        f"SELECT {sql.now}, (SELECT revision FROM {DIRECTORIES} WHERE name = %(directory)s),"
        " NULL, NULL, NULL, NULL, NULL, NULL"
    ]
    within = f" WHERE r.directory = (SELECT id FROM {DIRECTORIES} WHERE name = %(directory)s)"
    for number, prefix in enumerate([*peek.first, *peek.count]):
        params |= {f"prefix{number}": prefix, f"end{number}": end_of(prefix)}
        those = (
            f"FROM {RECORDS} r LEFT JOIN {SESSIONS} s ON s.id = r.session{within}"
            f" AND r.name >= %(prefix{number})s AND r.name < %(end{number})s"
        )
        if number < len(peek.first):
            parts.append(
                f"SELECT * FROM (SELECT {sql.now}, 0, {_RECORD} {those}"
                f" ORDER BY r.name LIMIT {peek.first[prefix]}) first{number}"
            )
        else:
            parts.append(
                f"SELECT {sql.now}, 0, '{number - len(peek.first)}', NULL, COUNT(*), NULL, NULL,"
                f" NULL {those} AND (r.session IS NULL OR s.expires_at > {sql.now})"
            )
    if peek.listed is not None:
        keys, more = _listing(peek.listed, f"FROM {RECORDS} r{within}")
        params |= more
        parts.append(f"SELECT {sql.now}, 0, name{', NULL' * 5} FROM ({keys}) listed")
    text = sql.PRIMARY + sql.BY_INDEX + " UNION ALL ".join(parts)
    return Statement(text, params, prepare=True)


def peeked(directory: str, rows: Sequence[tuple[Any, ...]], peek: Peek) -> Snapshot:
    """Return what the answer to peek_sql() says."""
    (header,) = [row for row in rows if row[2] is None]
    counts, prefixes, keys = dict.fromkeys(peek.count, 0), [*peek.count], list[str]()
    for _, _, key, value, number, *_ in rows:
        if key is None or value is not None:
            continue
        if number is None:
            keys.append(key)
        else:
            counts[prefixes[int(key)]] = int(number)
    found = snapshot(directory, [header, *(row for row in rows if row[3] is not None)])
    by_key = {key: found.records[key] for key in sorted(found.records)}
    keys.sort(reverse=peek.listed is not None and peek.listed.reverse)
    return replace(found, records=by_key, counts=counts, keys=keys)


def _listing(listed: KeyRange, records: str) -> tuple[str, dict[str, str]]:
    prefix, limit, after, reverse = listed
    start, end = ("", after or end_of(prefix)) if reverse else (after, end_of(prefix))
    text = (
        f"SELECT r.name {records} AND r.name >= %(begin)s AND r.name > %(after)s"
        f" AND r.name < %(end)s ORDER BY r.name {'DESC' if reverse else 'ASC'} LIMIT {limit}"
    )
    return text, {"after": start, "begin": prefix, "end": end}


def read_many_sql(
    sql: RecordSQL,
    directories: Sequence[str],
    keys: Collection[str],
    peek: Peek | None,
    having: Having | None = None,
) -> Statement:
    """Ask for several directories, which are rows as of read_sql() or peek_sql().

    The second column is the name of the directory; one that has no row is left out. Of a prefix of
    peek() all records are asked for, or the first one.
    """
    params = {**named_values("directory", directories), **named_values("key", [*keys])}
    these = in_list("d.name", "directory", directories)
    if peek is None:
        some = f" AND {in_list('r.name', 'key', [*keys])}" if keys else ""
        if having is not None:
            begins = f"SUBSTR(r.value, 1, {len(having.beginning)}) = %(beginning)s"
            some += f" AND ({sql.HAS} OR NOT {begins})"
            params |= {**having._asdict(), "escape": "\\u"}
        return Statement(
            f"{sql.PRIMARY}SELECT {sql.now}, d.name, d.revision, {_RECORD} FROM {DIRECTORIES} d"
            f" LEFT JOIN {RECORDS} r ON r.directory = d.id{some}"
            f" LEFT JOIN {SESSIONS} s ON s.id = r.session WHERE {these}",
            params,
        )
    return _peek_many_sql(sql, these, params, peek)


def _peek_many_sql(sql: RecordSQL, these: str, params: dict[str, Any], peek: Peek) -> Statement:
    parts = [
        f"SELECT {sql.now}, d.name, d.revision{', NULL' * 6} FROM {DIRECTORIES} d WHERE {these}"
    ]
    listed = [peek.listed.prefix] if peek.listed else []
    for number, prefix in enumerate([*peek.first, *peek.count, *listed]):
        params |= {f"prefix{number}": prefix, f"end{number}": end_of(prefix)}
        within = f"{{0}}.name >= %(prefix{number})s AND {{0}}.name < %(end{number})s".format
        those = (
            f"FROM {DIRECTORIES} d JOIN {RECORDS} r ON r.directory = d.id AND {within('r')}"
            f" LEFT JOIN {SESSIONS} s ON s.id = r.session WHERE {these}"
        )
        place = number - len(peek.first)
        if place < 0:
            one = f"SELECT MIN(o.name) FROM {RECORDS} o WHERE o.directory = d.id AND {within('o')}"
            only = f" AND r.name = ({one})" if peek.first[prefix] == 1 else ""
            parts.append(f"SELECT {sql.now}, d.name, 0, {_RECORD} {those}{only}")
        elif place < len(peek.count):
            parts.append(
                f"SELECT {sql.now}, d.name, 0, '{place}', NULL, COUNT(*), NULL, NULL, NULL {those}"
                f" AND (r.session IS NULL OR s.expires_at > {sql.now}) GROUP BY d.name"
            )
        else:
            parts.append(f"SELECT {sql.now}, d.name, 0, r.name{', NULL' * 5} {those}")
    return Statement(sql.PRIMARY + " UNION ALL ".join(parts), params)


def many_of(
    rows: Sequence[tuple[Any, ...]], directories: Sequence[str], peek: Peek | None
) -> dict[str, Snapshot]:
    """Return by directory what the answer to read_many_sql() says."""
    by_directory: dict[str, list[tuple[Any, ...]]] = {one: [] for one in directories}
    for now, directory, *columns in rows:
        by_directory[directory].append((now, *columns))
    nothing = [(rows[0][0] if rows else 0, None, *[None] * 6)]
    found = {}
    for directory, own in by_directory.items():
        if peek is None:
            found[directory] = snapshot(directory, own or nothing)
            continue
        seen = peeked(directory, own or nothing, peek)
        kept = first_keys(seen.records, peek.first)
        records = {key: seen.records[key] for key in kept}
        keys = list_keys(seen.keys, peek.listed)
        found[directory] = replace(seen, records=records, keys=keys)
    return found
