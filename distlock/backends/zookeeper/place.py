"""A place in line for a lock: from the wish to the verdict, or to its withdrawal.

Everything here but ``give_up`` runs on the client's thread, one step after another: each step sends
something and says what comes next, so that nobody's thread is needed for waiting.
"""

from __future__ import annotations

from collections.abc import Callable

from kazoo.exceptions import NoNodeError

from distlock.backends.zookeeper import paths
from distlock.backends.zookeeper.client import Client, Session
from distlock.backends.zookeeper.leavings import remove
from distlock.backends.zookeeper.node import Node
from distlock.backends.zookeeper.parents import is_there, make_parent
from distlock.backends.zookeeper.record import written
from distlock.backends.zookeeper.requests import CreateInLine, GetChildren, GetData, Reply, Sync
from distlock.backends.zookeeper.verdict import Verdict
from distlock.backends.zookeeper.watches import News, Watch
from distlock.clock import clock
from distlock.types.lease import Claim, Lease


class Place:
    """One claim in line below the node of its lock.

    ``earlier`` is one's own last node there, which held the lock until it was left.
    """

    def __init__(
        self,
        client: Client,
        claim: Claim,
        *,
        wait: bool,
        earlier: Node | None,
        on_grant: Callable[[Place, Node], Lease],
    ) -> None:
        self.client = client
        self.claim = claim
        self.waits = wait
        self.verdict = Verdict()
        self.parent = f"{client.options.root}/{paths.escaped(claim.name)}"
        self.asked_at = 0.0  # when the request was sent whose answer is the latest evidence
        self.has_waited = False
        self.is_sent = False  # whether anything can have reached the servers
        #: Since when it is not known whether someone is ahead; None while someone is.
        self.unsure_since: float | None = clock()
        self._earlier = earlier
        self._on_grant = on_grant
        self._session: Session | None = None
        self._node: Node | None = None  # while it is known to be there
        self._watch: Watch | None = None
        self._looks = 0

    def begin(self) -> None:
        """Get in line as soon as there is a connection."""
        if self.client.connected:
            self._join()
        else:
            self._when_connected(self._join)

    def give_up(self) -> Lease | None:
        """Leave the line; return the lease if the lock has been had by then.

        The own node is removed now, or as soon as it is known whether there is one.
        """
        lease = self.verdict.renounce()
        watch = self._watch
        if lease is None and watch is not None and self.client.watches.cancel(watch):
            self._leave()
        return lease

    # Getting in line

    def _join(self) -> None:
        if not self._goes_on():
            return
        self._session, self._node = self.client.session, None
        self._be_unsure()
        self.is_sent = True
        self.asked_at = sent_at = clock()
        prefix = f"{self.parent}/{self.claim.nonce}-"
        data = written(self.claim, self._session)
        create = CreateInLine(prefix, data, self.client.options.encoded_acl)
        if self._earlier is None:
            # The servers answer one session in order: both answers come in one round trip.
            created, listed = self.client.send_all([create, GetChildren(self.parent, None)])
            listed.then(lambda listed: self._joined(sent_at, created, listed))
        else:
            created = self.client.send(create)
            created.then(lambda created: self._joined(sent_at, created, None))

    def _joined(self, sent_at: float, created: Reply, listed: Reply | None) -> None:
        earlier, self._earlier = self._earlier, None
        session = self._session
        if isinstance(created.error, NoNodeError):
            if self._goes_on():
                make_parent(self.client, self.parent, self._made_parent)
        elif created.lost or session is None:
            self._when_connected(self._recover)
        elif created.error is not None:
            self._refuse(created.error)
        else:
            path, stat = created.value
            self._node = Node(session, path, stat.czxid, sent_at)
            if listed is not None:
                self._look(listed)
            elif earlier is not None and self._node.follows(earlier):
                self._grant()
            else:
                self._list()

    def _made_parent(self, made: Reply) -> None:
        if is_there(made) or isinstance(made.error, NoNodeError):
            self._join()
        elif made.lost:
            self._when_connected(self._join)
        else:
            self._refuse(made.error)

    # Looking who is ahead

    def _list(self) -> None:
        if self._goes_on():
            self.asked_at = clock()
            self.client.send(GetChildren(self.parent, None)).then(self._look)

    def _look(self, listed: Reply) -> None:
        """Find out from the nodes in line whether the lock is had."""
        if not self._goes_on():
            return
        if listed.lost:
            self._when_connected(self._recover)
            return
        if listed.error is not None and not isinstance(listed.error, NoNodeError):
            self._refuse(listed.error)
            return
        line = paths.in_order(listed.value or ())
        own = self._node.name if self._node else ""
        if own not in line:
            self._join()  # someone removed it
            return
        ahead = line[: line.index(own)]
        if not ahead:
            self._grant()
        elif self.waits:
            self._stand_behind(ahead)
        elif self._looks == 0:
            self._looks += 1  # who is ahead may be about to leave, as yet unheard of
            self._list()
        else:
            self._leave()
            self.verdict.deny()

    def _stand_behind(self, ahead: list[str]) -> None:
        self.has_waited = True
        self.unsure_since = None
        self.asked_at = clock()
        self._watch = watch = Watch(f"{self.parent}/{ahead[-1]}", self._on_news)
        # Whoever gives up from now on cancels the watch; whoever has done so before is seen here.
        if self._goes_on():
            self.client.watches.begin(watch)

    def _on_news(self, news: News) -> None:
        watch, self._watch = self._watch, None
        if not self._goes_on():
            return
        if news is News.LOST:
            self._when_connected(self._recover)
        elif news is News.REFUSED and watch is not None and watch.reply is not None:
            self._refuse(watch.reply.error)
        else:
            self._list()  # who is gone may have waited too; and the own node may be gone as well

    # After the connection broke

    def _when_connected(self, step: Callable[[], None]) -> None:
        self._be_unsure()
        self.client.when_connected(lambda: self._despair() if self.client.dead else step())

    def _be_unsure(self) -> None:
        if self.unsure_since is None:
            self.unsure_since = clock()

    def _recover(self) -> None:
        """Find the own node again, by its nonce: the answer that told of it may have been lost.

        The request for it may even be on its way still, where servers write slowly; its server has
        passed it on to the leader. A sync goes that way, too, and is answered after all that the
        leader had got before. What comes to the leader later over a connection that the session has
        left is refused. So a node that is not seen now will never be there, and one more can be
        made.
        """
        if self.client.session is not self._session:
            self._join()  # the old session took its nodes along
            return
        self._looks = 0
        self.asked_at = clock()
        _, listed = self.client.send_all([Sync(self.parent), GetChildren(self.parent, None)])
        listed.then(self._recovered)

    def _recovered(self, listed: Reply) -> None:
        line = paths.in_order(listed.value or ())
        mine = [node for node in line if paths.nonce_of(node) == self.claim.nonce]
        if listed.lost:
            self._when_connected(self._recover)
        elif not mine:
            self._join()
        else:
            path = f"{self.parent}/{mine[0]}"
            found = self.client.send(GetData(path, None))
            found.then(lambda found: self._identify(path, found, listed))

    def _identify(self, path: str, found: Reply, listed: Reply) -> None:
        session = self._session
        if found.lost or session is None:
            self._when_connected(self._recover)
        elif found.error is not None or found.value[1].ephemeralOwner != session.id:
            self._join()
        else:
            self._node = Node(session, path, found.value[1].czxid, float("-inf"))
            self._look(listed)

    # The end

    def _grant(self) -> None:
        session, node = self._session, self._node
        if node is None or session is None or session.over or self.client.session is not session:
            self._when_connected(self._recover)
        elif not self.verdict.grant(lambda: self._on_grant(self, node)):
            self._leave()

    def _refuse(self, error: Exception | None) -> None:
        self._leave()
        self.verdict.deny(self.client.unavailable("refuses", error))

    def _despair(self) -> None:
        error = self.client.unavailable()
        error.maybe_applied = self.is_sent
        self.verdict.deny(error)

    def _goes_on(self) -> bool:
        """Return whether anyone still wants the lock; if not, leave."""
        if self.verdict.is_unwanted:
            self._leave()
        return not self.verdict.is_unwanted

    def _leave(self) -> None:
        node, self._node = self._node, None
        if node is not None:
            remove(self.client, node.session, node.path)
