"""What the records of one process leave behind in its memory."""

from distlock.backends import local_store
from distlock.backends.store import Put


def test_a_watch_that_has_ended_leaves_no_timer(monkeypatch):
    timers, call_after = [], local_store.call_after

    def note(seconds, action):
        timers.append(call_after(seconds, action))
        return timers[-1]

    monkeypatch.setattr(local_store, "call_after", note)
    store = local_store.LocalStore()
    session = store.open_session(600)
    revision = store.apply("group:a", [Put("h/1", "a member", session.id)], [])
    for number in range(20):
        watch = store.watch("group:a", revision)
        revision = store.apply("group:a", [Put("value", number)], [])
        assert watch.answered
    store.watch("group:a", revision).abandon()
    assert len(timers) > 20
    assert not any(timer.cancel() for timer in timers)
