"""One claim that contends for its lock: the protocol, and the wait."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from kazoo.exceptions import NoNodeError

from distlock.backends.base import PendingLease
from distlock.backends.zookeeper import tree
from distlock.backends.zookeeper.client import Client, Session
from distlock.backends.zookeeper.grants import ContenderNode, Grant, Grants
from distlock.backends.zookeeper.requests import (
    GetChildren,
    GetData,
    Reply,
    SetData,
    Sync,
    create_ephemeral,
)
from distlock.backends.zookeeper.watches import NodeWatch, WatchEnd
from distlock.concurrency.clock import clock
from distlock.concurrency.pending import Pending
from distlock.concurrency.steps import Wait
from distlock.types.lease import Claim, Lease

#: Seconds that the servers have for their first answer, however short the caller's limit is: a lock
#: that is free must be had within any limit.
_FIRST_ANSWER = 0.5
#: Seconds after which a waiter looks whether the connection has broken.
_LONGEST_WAIT = 1.0
#: Waits longer than this many seconds are not counted among the time that a lock is held.
_LONG_WAIT = 1.0


class Contender:
    """One claim that contends for its lock. The protocol, after ZooKeeper's "Recipes":

    1. Create an ephemeral, numbered node ``<nonce>-`` below the node of the lock, and list the
       children of that, both in one round trip. If the node of the lock is missing, make it and
       start again.
    2. Whose node has the lowest number has the lock. Its token is the ``czxid`` of that node.
    3. Everyone else watches the node just before the own one by reading it, and lists again when
       it is gone: that one may have given up, too.
    4. After the connection broke, find out whether the own node was made: sync, then look for the
       nonce. If the session is over, so is the node: start again.
    5. Who gives up deletes the own node, as soon as it is known whether there is one.

    ``steps()`` and ``cancel()`` run in the caller's thread or task. The rest runs on the thread of
    the client, where each answer leads to the next request.
    """

    def __init__(
        self, client: Client, grants: Grants, claim: Claim, deadline: float | None, *, wait: bool
    ) -> None:
        self._client = client
        self._grants = grants
        self._claim = claim
        self._waits = wait
        self._deadline = float("inf") if deadline is None else deadline
        self._first_answer_due = clock() + _FIRST_ANSWER
        self._pending: Pending[Lease | None] = Pending()
        self._parent = f"{client.options.root}/{tree.escaped(claim.name)}"
        self._is_sent = False  # whether anything can have reached the servers
        self._asked_at = 0.0  # when the request was sent that the latest answer is to
        self._has_waited = False
        #: Since when it is not known whether someone is ahead; None while someone is.
        self._unsure_since: float | None = clock()
        self._session: Session | None = None
        self._node: ContenderNode | None = None  # while it is known to be there
        self._watch: NodeWatch | None = None
        self._tries = 0

    # The caller

    def steps(self) -> PendingLease:
        """Contend until there is a lease, or someone else has had the lock until the deadline.

        LockUnavailable if the servers did not answer.
        """
        try:
            if self._client.connected:
                self._join()
            else:
                self._when_connected(self._join)
            while (until := self._wakes_at()) > clock():
                if (yield Wait(self._pending, until)):
                    return self._take()
            lease = self._abandon()
            if lease is None and self._unsure_since is not None:
                raise self._unavailable("does not answer" if self._client.connected else "")
            return lease
        except BaseException:
            self.cancel()
            raise

    def cancel(self) -> None:
        """Give up, and free the lock if it was granted by then."""
        if lease := self._abandon():
            self._grants.drop(lease)

    def _take(self) -> Lease | None:
        lease = self._pending.take()
        if lease is not None:
            self._grants.note_taken(lease)
        return lease

    def _abandon(self) -> Lease | None:
        """Give up; return the lease if the lock was granted by then."""
        lease = self._pending.abandon()
        watch = self._watch
        if lease is None and watch is not None and self._client.watches.cancel(watch):
            self._leave()
        if lease is not None:
            self._grants.note_taken(lease)
        return lease

    def _wakes_at(self) -> float:
        """Return when there is something to decide: by the caller's limit, and by the servers'."""
        now, options, until = clock(), self._client.options, self._deadline
        if (unsure_since := self._unsure_since) is not None:
            # How long it makes sense to wait without an answer, or without a connection.
            silence = max(options.timeout, options.session_timeout if self._waits else 0.0)
            until = min(max(until, self._first_answer_due), unsure_since + silence)
            if now < self._deadline:  # it may be known by then that someone is ahead
                until = min(until, self._deadline)
        return min(until, now + min(options.timeout, _LONGEST_WAIT))

    # Step 1: the own node

    def _join(self) -> None:
        if not self._goes_on():
            return
        self._session, self._node = self._client.session, None
        self._be_unsure()
        self._is_sent = True
        self._asked_at = sent_at = clock()
        create = create_ephemeral(
            f"{self._parent}/{self._claim.nonce}-",
            tree.to_data(self._claim, self._session),
            self._client.options.acl,
        )
        # The servers answer one session in order: both answers come in one round trip.
        created, listed = self._client.send_all([create, GetChildren(self._parent, None)])
        listed.then(lambda listed: self._joined(sent_at, created, listed))

    def _joined(self, sent_at: float, created: Reply, listed: Reply) -> None:
        session = self._session
        if isinstance(created.error, NoNodeError):
            if self._goes_on():
                tree.make_parent(self._client, self._parent, self._made_parent)
        elif created.lost or session is None:
            self._when_connected(self._recover)
        elif created.error is not None:
            self._refuse(created.error)
        else:
            path, stat = created.value
            self._node = ContenderNode(session, path, stat.czxid, sent_at)
            self._look(listed)

    def _made_parent(self, made: Reply) -> None:
        if tree.is_there(made) or isinstance(made.error, NoNodeError):
            self._join()
        elif made.lost:
            self._when_connected(self._join)
        else:
            self._refuse(made.error)

    # Steps 2 and 3: who is ahead

    def _list(self) -> None:
        if self._goes_on():
            self._asked_at = clock()
            self._client.send(GetChildren(self._parent, None)).then(self._look)

    def _look(self, listed: Reply) -> None:
        """Grant the lock if the own node is the first of all contenders; else wait or give up."""
        if not self._goes_on():
            return
        if listed.lost:
            self._when_connected(self._recover)
            return
        if listed.error is not None and not isinstance(listed.error, NoNodeError):
            self._refuse(listed.error)
            return
        queue = tree.in_order(listed.value or ())
        own = self._node.name if self._node else ""
        if own not in queue:
            self._join()  # someone removed it
            return
        ahead = queue[: queue.index(own)]
        if not ahead:
            self._grant()
        elif self._waits and clock() < self._deadline:
            self._watch_predecessor(ahead[-1])
        elif not self._waits and self._tries == 0:
            self._tries += 1  # the server may not have carried out a release by then
            self._list()
        else:
            self._leave()
            self._unsure_since = None
            self._pending.resolve(None)

    def _watch_predecessor(self, node: str) -> None:
        self._has_waited = True
        self._unsure_since = None
        self._asked_at = clock()
        self._watch = watch = NodeWatch(f"{self._parent}/{node}", self._on_watch_end)
        # A caller who gives up from now on cancels the watch; one who did before is seen here.
        if self._goes_on():
            self._client.watches.add(watch)

    def _on_watch_end(self, reason: WatchEnd) -> None:
        watch, self._watch = self._watch, None
        if not self._goes_on():
            return
        if reason is WatchEnd.DISCONNECTED:
            self._when_connected(self._recover)
        elif reason is WatchEnd.REFUSED and watch is not None and watch.reply is not None:
            self._refuse(watch.reply.error)
        else:
            self._list()

    # Step 4: after the connection broke

    def _when_connected(self, step: Callable[[], None]) -> None:
        self._be_unsure()
        self._client.when_connected(lambda: self._fail() if self._client.dead else step())

    def _be_unsure(self) -> None:
        if self._unsure_since is None:
            self._unsure_since = clock()

    def _recover(self) -> None:
        """Find the own node again, by its nonce: the answer to its request may have been lost.

        The request for it may even be on its way still, where servers write slowly; its server has
        passed it on to the leader. A sync goes that way, too, and is answered after all that the
        leader had got before. What comes to the leader later over a connection that the session has
        left is refused. So a node that is not seen now will never be there, and one more can be
        made.
        """
        if self._client.session is not self._session:
            self._join()  # the old session took its nodes along
            return
        self._tries = 0
        self._asked_at = clock()
        _, listed = self._client.send_all([Sync(self._parent), GetChildren(self._parent, None)])
        listed.then(self._recovered)

    def _recovered(self, listed: Reply) -> None:
        session = self._session
        queue = tree.in_order(listed.value or ())
        own = [node for node in queue if tree.nonce_of(node) == self._claim.nonce]
        if listed.lost or session is None:
            self._when_connected(self._recover)
        elif not own:
            self._join()
        else:
            lowest, *others = [f"{self._parent}/{node}" for node in own]
            for path in others:
                self._client.delete_node(session, path)
            found = self._client.send(GetData(lowest, None))
            found.then(lambda found: self._identify(session, lowest, found, listed))

    def _identify(self, session: Session, path: str, found: Reply, listed: Reply) -> None:
        if found.lost:
            self._when_connected(self._recover)
        elif found.error is not None or found.value[1].ephemeralOwner != session.id:
            self._join()
        else:
            self._node = ContenderNode(session, path, found.value[1].czxid, float("-inf"))
            self._look(listed)

    # Step 5: the end

    def _grant(self) -> None:
        session, node = self._session, self._node
        if node is None or session is None or session.over or self._client.session is not session:
            self._when_connected(self._recover)
            return
        lease = self._lease(session, node)
        self._grants.add(Grant(lease, self._client, node))
        if not self._pending.resolve(lease):
            self._grants.drop(lease)
        elif self._has_waited and clock() - node.created_after > _LONG_WAIT:
            self._client.send(SetData(self._parent, tree.held_mark(node.czxid), -1))

    def _lease(self, session: Session, node: ContenderNode) -> Lease:
        """Return a lease that ends before the leader can end the session."""
        claim = self._claim
        duration = self._client.options.lease_of(session.timeout)
        if duration < claim.duration:
            claim = replace(claim, duration=duration)
        counted_from = self._client.counted_from(self._asked_at)
        unproven = session.timeout - duration
        return claim.granted(node.czxid, min(self._asked_at, counted_from + unproven))

    def _refuse(self, error: Exception | None) -> None:
        self._leave()
        self._pending.fail(self._client.unavailable("refuses", error))

    def _fail(self) -> None:
        self._pending.fail(self._unavailable(""))

    def _unavailable(self, problem: str) -> Exception:
        error = self._client.unavailable(problem)
        error.maybe_applied = self._is_sent
        return error

    def _goes_on(self) -> bool:
        """Return whether anyone still wants the lock; if not, leave."""
        if self._pending.abandoned:
            self._leave()
            return False
        return True

    def _leave(self) -> None:
        node, self._node = self._node, None
        if node is not None:
            self._client.delete_node(node.session, node.path)
