"""The statement that looks at some records of a directory, and counts others."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from distlock.backends.database.record_sql import DIRECTORIES, RECORDS, SESSIONS, RecordSQL
from distlock.backends.database.statements import Statement
from distlock.backends.store import KeyRange


def peek(
    sql: RecordSQL,
    directory: str,
    first: Mapping[str, int],
    count: Collection[str],
    listed: KeyRange | None,
) -> Statement:
    """Ask for a directory as read() does, but only for the first records of some prefixes.

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
        params |= {f"prefix{number}": prefix, f"end{number}": _end_of(prefix)}
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


def _listing(listed: KeyRange, records: str) -> tuple[str, dict[str, str]]:
    prefix, limit, after, reverse = listed
    start, end = ("", after or _end_of(prefix)) if reverse else (after, _end_of(prefix))
    text = (
        f"SELECT r.name {records} AND r.name >= %(begin)s AND r.name > %(after)s"
        f" AND r.name < %(end)s ORDER BY r.name {'DESC' if reverse else 'ASC'} LIMIT {limit}"
    )
    return text, {"after": start, "begin": prefix, "end": end}


def _end_of(prefix: str) -> str:
    """Return the first text, by code points, after those that begin with a prefix."""
    return prefix[:-1] + chr(ord(prefix[-1]) + 1)
