"""What PostgreSQL says beside its answers.

A commit waits for the synchronous standby, if there is one. Whoever ends that wait, as with
pg_cancel_backend(), makes the statement succeed, with a warning that the standby may not have it:
https://www.postgresql.org/docs/current/warm-standby.html#SYNCHRONOUS-REPLICATION-HA
"""

from __future__ import annotations

from typing import Any

#: where in the server the warning comes from, which all languages have in common
_SOURCE = "syncrep.c"
#: its words in English, for drivers and servers that do not tell the source
_WORDS = "synchronous replication"


class Notices:
    """The notices of one session, of which only one kind counts."""

    def __init__(self) -> None:
        self._unreplicated = False

    def unreplicated(self) -> bool:
        """Return whether a commit may not have reached the standby since this was asked last."""
        heard, self._unreplicated = self._unreplicated, False
        return heard

    def heard(self, notice: Any) -> None:
        """Note what psycopg 3 has heard: a Diagnostic."""
        source = str(notice.source_file or "")
        if source.endswith(_SOURCE) or (not source and _WORDS in str(notice.message_primary)):
            self._unreplicated = True

    def append(self, text: str) -> None:
        """Note what psycopg 2 has heard, which takes this object for a list."""
        if _WORDS in text:
            self._unreplicated = True


def listen(wrapper: Any) -> Notices:
    """Return what is heard from now on, on a Django connection that is open."""
    notices = Notices()
    if wrapper.vendor == "postgresql":
        if hasattr(wrapper.connection, "add_notice_handler"):
            wrapper.connection.add_notice_handler(notices.heard)
        else:
            wrapper.connection.notices = notices
    return notices
