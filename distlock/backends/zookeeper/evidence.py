"""From when on the servers count the time-out of a session, as far as this side can know."""

from __future__ import annotations

from collections import deque

#: The leader alone ends sessions. Another server tells it twice in a tick whom it has heard of; so
#: what a server has heard, the leader knows after this part of a session of five ticks, or more.
REPORTED_AFTER = 1 / 10
#: Evidence is kept in steps of this part of that time.
_STEP = 1 / 4
_MOST = 64


class Evidence:
    """When requests were sent that a server has answered, all on one connection.

    ``begun_at`` is from before the connection was made: that was for the leader to confirm.
    """

    def __init__(self, begun_at: float) -> None:
        self.session_timeout = 0.0  # unknown yet
        self._times = deque([begun_at], maxlen=_MOST)
        self._begun_at = begun_at

    def add(self, sent_at: float) -> None:
        """Note that a request was answered which was sent at this time."""
        if sent_at - self._times[-1] >= self.session_timeout * REPORTED_AFTER * _STEP:
            self._times.append(sent_at)

    def counted_from(self, at: float) -> float:
        """Return from when on the leader counts at the least, if a request of ``at`` was answered.

        That answer says that the session was alive, and that its server was in touch with the
        leader; so that knows what the server had heard well before.
        """
        latest = at - self.session_timeout * REPORTED_AFTER
        times = reversed(list(self._times))  # a copy, because answers go on coming
        return next((time for time in times if time <= latest), self._begun_at)
