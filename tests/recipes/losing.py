"""A store whose requests and answers are lost."""

from distlock import LockUnavailable, locks
from tests.recipes.wrapping import in_thread


class Losing:
    """Loses the next changes of a directory that are wanted; with ``key`` those of that record.

    - ``replies``: the answers of so many are lost: they are made.
    - ``requests``: so many are not made, and nobody knows.
    - ``late``: so many are not made before come().
    - ``away``: nothing can be read.
    - ``then``: is called when the answer of one was lost.
    """

    def __init__(self, monkeypatch, directory, key=None):
        self._key = key
        self.replies = self.requests = self.late = self.lost = self.asked = 0
        self.away, self.then = False, lambda: None
        self._late = []
        store = locks["default"].store
        for method in ("read", "look"):
            monkeypatch.setattr(store, method, self._reading(getattr(store, method), directory))
        monkeypatch.setattr(store, "apply", self._applying(store.apply, directory))

    def _reading(self, read, wanted):
        def reading(directory, *args, **kwargs):
            if directory == wanted:
                self.asked += 1
                if self.away:
                    raise LockUnavailable("the store is away")
            return read(directory, *args, **kwargs)

        return reading

    def _applying(self, apply, wanted):
        def applying(directory, changes, *args, **kwargs):
            def make():
                return apply(directory, changes, *args, **kwargs)

            if directory != wanted or self._key not in (None, *(one.key for one in changes)):
                return make()
            if self.requests:
                self.requests -= 1
            elif self.late:
                self.late -= 1
                self._late.append(make)
            elif self.replies and make() is not None:
                self.replies -= 1
            else:
                return make()
            self.lost += 1
            then, self.then = self.then, lambda: None
            in_thread(then)()
            raise LockUnavailable("the answer was lost")

        return applying

    def come(self):
        """Let the oldest late one come; return its answer."""
        return self._late.pop(0)()
