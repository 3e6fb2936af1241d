"""Reads records: all of a directory, some, or the first of some prefixes, and counts others."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

from distlock.backends.database.record_sql import DIRECTORIES, RECORDS, SESSIONS, RecordSQL
from distlock.backends.database.statements import Statement, end_of, named_values
from distlock.backends.store import KeyRange, Record, Snapshot
from distlock.types.values import decoded


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
        f"{sql.PRIMARY}{sql.BY_INDEX}SELECT {sql.now}, d.revision, r.name, r.value,"
        " r.created, r.revision, r.session, s.expires_at FROM (SELECT 1 AS one) one"
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
    records.sort(key=lambda record: (record.created, record.key))
    now, revision, *_ = rows[0]
    return Snapshot(directory, int(revision or 0), {one.key: one for one in records}, int(now))


def peek_sql(
    sql: RecordSQL,
    directory: str,
    first: Mapping[str, int],
    count: Collection[str],
    listed: KeyRange | None,
) -> Statement:
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
    for number, prefix in enumerate([*first, *count]):
        params |= {f"prefix{number}": prefix, f"end{number}": end_of(prefix)}
        those = (
            f"FROM {RECORDS} r LEFT JOIN {SESSIONS} s ON s.id = r.session{within}"
            f" AND r.name >= %(prefix{number})s AND r.name < %(end{number})s"
        )
        if number < len(first):
            parts.append(
                f"SELECT * FROM (SELECT {sql.now}, 0, r.name, r.value, r.created,"
                f" r.revision, r.session, s.expires_at {those}"
                f" ORDER BY r.name LIMIT {first[prefix]}) first{number}"
            )
        else:
            parts.append(
                f"SELECT {sql.now}, 0, '{number - len(first)}', NULL, COUNT(*), NULL, NULL,"
                f" NULL {those} AND (r.session IS NULL OR s.expires_at > {sql.now})"
            )
    if listed is not None:
        keys, more = _listing(listed, f"FROM {RECORDS} r{within}")
        params |= more
        parts.append(f"SELECT {sql.now}, 0, name{', NULL' * 5} FROM ({keys}) listed")
    text = sql.PRIMARY + sql.BY_INDEX + " UNION ALL ".join(parts)
    return Statement(text, params, prepare=True)


def peeked(
    directory: str,
    rows: Sequence[tuple[Any, ...]],
    count: Collection[str],
    listed: KeyRange | None,
) -> Snapshot:
    """Return what the answer to peek_sql() says."""
    (header,) = [row for row in rows if row[2] is None]
    records = sorted((row for row in rows if row[3] is not None), key=lambda row: str(row[2]))
    counts, prefixes, keys = dict.fromkeys(count, 0), [*count], list[str]()
    for _, _, key, value, number, *_ in rows:
        if key is None or value is not None:
            continue
        if number is None:
            keys.append(key)
        else:
            counts[prefixes[int(key)]] = int(number)
    found = snapshot(directory, [header, *records])
    by_key = {row[2]: found.records[row[2]] for row in records}
    keys.sort(reverse=listed is not None and listed.reverse)
    return replace(found, records=by_key, counts=counts, keys=keys)


def _listing(listed: KeyRange, records: str) -> tuple[str, dict[str, str]]:
    prefix, limit, after, reverse = listed
    start, end = ("", after or end_of(prefix)) if reverse else (after, end_of(prefix))
    text = (
        f"SELECT r.name {records} AND r.name >= %(begin)s AND r.name > %(after)s"
        f" AND r.name < %(end)s ORDER BY r.name {'DESC' if reverse else 'ASC'} LIMIT {limit}"
    )
    return text, {"after": start, "begin": prefix, "end": end}
