"""One claim that contends for its lock: the protocol, and the wait."""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import replace
from typing import TypeAlias

from kazoo.exceptions import KazooException, NoNodeError
from kazoo.protocol.serialization import Create2, GetChildren, GetData, SetData, Sync

from distlock.backends.background import answer_due
from distlock.backends.base import PendingLease
from distlock.backends.zookeeper import tree
from distlock.backends.zookeeper.client import (
    ContenderNode,
    Grant,
    Grants,
    ZooKeeperClient,
    ZooKeeperSession,
)
from distlock.backends.zookeeper.requests import LOST, Reply
from distlock.concurrency.clock import clock
from distlock.concurrency.pending import Pending
from distlock.concurrency.steps import Steps, Wait
from distlock.exceptions import LockUnavailable
from distlock.types.lease import Claim, Holder, Lease

#: Seconds after which a waiter looks whether the connection has broken.
_LONGEST_WAIT = 1.0
#: After a wait of more seconds the grant writes its own start time; else reports show the node's.
_LONG_WAIT = 1.0

_EPHEMERAL_SEQUENTIAL = 1 | 2

#: Yields what it waits for, and ends with the names of all contenders' nodes, the holder first.
_FindsQueue: TypeAlias = Generator[Reply, Reply, list[str]]


class ZooKeeperContender:
    """One claim that contends for its lock. The protocol, after ZooKeeper's "Recipes":

    1. Create an ephemeral, numbered node ``<nonce>-`` below the node of the lock, and list the
       children of that, both in one round trip. If the node of the lock is missing, make it and
       start again.
    2. The contender with the lowest number has the lock. Its token is the ``czxid`` of its node.
    3. Every other contender watches the node just before its own by reading it. When that node is
       gone it lists again, because its contender may have given up instead of having had the lock.
    4. After the connection broke, find out whether the own node was made: sync, then look for the
       nonce. If the session is over, so is the node: start again.
    5. A contender that gives up deletes its node, as soon as it is known whether there is one.

    ``steps()`` and ``cancel()`` run in the caller's thread or task. ``_protocol()`` is a generator
    that begins in the caller's thread. It goes on in the thread that has the answer it waits for:
    the client's, or the caller's when it cancels the watch.
    """

    def __init__(
        self,
        client: ZooKeeperClient,
        grants: Grants,
        claim: Claim,
        deadline: float | None,
        *,
        wait: bool,
    ) -> None:
        self._client = client
        self._grants = grants
        self._claim = claim
        self._waits = wait
        self._deadline = float("inf") if deadline is None else deadline
        self._first_answer_due = answer_due(deadline) or float("inf")
        self._pending: Pending[Lease | None] = Pending()
        self._progress = self._protocol()
        self._parent = f"{client.options.root}/{tree.escaped(claim.name)}"
        self._asked_at = 0.0  # when the request was sent that the latest answer is to
        #: Since when it is not known whether someone is ahead; None while someone is.
        self._unsure_since: float | None = clock()
        self._session: ZooKeeperSession | None = None  # in which a node was asked for
        self._node: ContenderNode | None = None  # while it is known to be there
        self._watch: tuple[str, Reply] | None = None  # on the node ahead
        self._connecting: Reply | None = None  # what it waits for without a connection

    # The caller

    def steps(self) -> PendingLease:
        """Contend until there is a lease, or someone else has had the lock until the deadline.

        LockUnavailable if the servers did not answer. If it fails, the caller has to cancel().
        """
        self._go_on()
        if (yield from self._answered()):
            lease = self._pending.take()
            if lease is not None:
                self._grants.note_taken(lease)
            return lease
        lease = self._abandon()
        if lease is None and self._unsure_since is not None:
            raise self._unavailable("does not answer" if self._client.connected else "")
        return lease

    def _answered(self) -> Steps[bool]:
        """Wait for the answer; False if there is something else to decide before."""
        while (until := self._wakes_at()) > clock():
            if (yield Wait(self._pending, until)):
                return True
        return self._pending.answered  # by an interrupt, too, if this thread ran the protocol

    def cancel(self) -> None:
        """Give up, and free the lock if it was granted by then."""
        if lease := self._abandon():
            self._grants.drop(lease)

    def _abandon(self) -> Lease | None:
        """Give up; return the lease if the lock was granted by then."""
        lease, watch, connecting = self._pending.abandon(), self._watch, self._connecting
        if lease is not None:
            self._grants.note_taken(lease)
        elif watch is not None:
            self._client.watches.cancel(*watch)
        elif connecting is not None and self._session is None:  # nothing was sent
            self._client.forget(connecting)
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

    def _unavailable(self, problem: str) -> LockUnavailable:
        error = self._client.unavailable(problem)
        error.maybe_applied = self._session is not None
        return error

    # The protocol

    def _go_on(self, reply: Reply | None = None) -> None:
        """Go on to the next answer that has to be waited for."""
        try:
            awaited = self._progress.send(reply)
        except StopIteration:
            return
        except KazooException as error:
            self._pending.fail(self._client.unavailable("refuses", error))
        except LockUnavailable as error:
            self._pending.fail(error)
        except Exception as error:
            # A mistake, which must not be waited for; or an interrupt, as Celery's soft time limit,
            # of a caller that has given up, or that has its answer already.
            if not self._pending.fail(error):
                raise
        else:
            awaited.then(self._go_on)

    def _protocol(self) -> Generator[Reply, Reply | None, None]:
        """Contend until the lock is granted or refused, or nobody wants it any more."""
        looks_again = not self._waits
        find_queue: Callable[[], _FindsQueue]
        find_queue = self._join if self._client.connected else self._recover
        try:
            while True:
                try:
                    queue = yield from find_queue()
                    if self._pending.abandoned:
                        return
                    own = self._node.path.rpartition("/")[2] if self._node else ""
                    if own not in queue:  # someone removed it
                        find_queue = self._join
                        continue
                    ahead = queue[: queue.index(own)]
                    if not ahead:
                        if self._grant():
                            return
                        find_queue = self._recover
                        continue
                    if self._waits and clock() < self._deadline:
                        yield from self._wait_for(ahead[-1], is_holder=len(ahead) == 1)
                        if self._pending.abandoned:
                            return
                    elif looks_again:
                        looks_again = False  # the server may not have carried out a release by then
                    else:
                        self._unsure_since = None
                        self._pending.resolve(None)
                        return
                    find_queue = self._list
                except LOST:
                    looks_again = not self._waits
                    find_queue = self._recover
        except GeneratorExit:
            # An interrupt has left this to the garbage collector, which may run in a thread that
            # has a mutex of ours. The claim is taken back all the same: see Cleanup.
            self._node = None
            raise
        finally:
            if self._node is not None:
                self._client.delete_node(self._node.session, self._node.path)

    def _join(self) -> _FindsQueue:
        """Make the own node, step 1."""
        while not self._pending.abandoned:
            session = self._session = self._client.session
            assert session is not None, "it is connected"
            self._node = None
            sent_at = self._asked_at = clock()
            self._unsure_since = self._unsure_since or sent_at
            create = Create2(
                f"{self._parent}/{self._claim.nonce}-",
                tree.to_data(self._claim, session),
                self._client.options.acl,
                _EPHEMERAL_SEQUENTIAL,
            )
            # The servers answer one session in order: both answers come in one round trip.
            created, listed = self._client.send_all([create, GetChildren(self._parent, None)])
            yield listed
            if not isinstance(created.error, NoNodeError):
                path, stat = created.get()
                self._node = ContenderNode(session, path, stat.czxid, sent_at)
                return _nodes(listed)
            yield from tree.make_parent(self._client, self._parent)
        return []

    def _list(self) -> _FindsQueue:
        """List all nodes, step 2; there may be none left."""
        self._asked_at = clock()
        listed = yield self._client.send(GetChildren(self._parent, None))
        return _nodes(listed)

    def _wait_for(self, node: str, *, is_holder: bool) -> Generator[Reply, Reply, None]:
        """Wait until the node ahead has gone, step 3."""
        self._claim.refused_by = None
        self._unsure_since = None
        self._asked_at = clock()
        path = f"{self._parent}/{node}"
        watch = self._client.watches.add(path, self._note_holder if is_holder else None)
        self._watch = path, watch
        # If the caller gives up from now on, it cancels the watch itself.
        if self._pending.abandoned:
            self._client.watches.cancel(path, watch)
        yield watch
        self._watch = None
        if not isinstance(watch.error, NoNodeError):
            watch.get()

    def _note_holder(self, reply: Reply) -> None:
        """Note who has the lock, for the caller; since when, its node alone does not tell."""
        if reply.error is None:
            data = tree.NodeData.read(*reply.get())
            self._claim.refused_by = Holder(
                data.owner, data.token, description=data.description, renews=data.renews
            )

    def _recover(self) -> _FindsQueue:
        """Find the own node by its nonce, step 4: the answer to its request may have been lost.

        The request for it may even be on its way still, where servers write slowly; its server has
        passed it on to the leader. A sync goes that way, too, and is answered after all that the
        leader had got before. The leader refuses later requests over a connection that the session
        has left. So a node that is not seen now will never be there, and one more can be made.
        """
        client = self._client
        self._unsure_since = self._unsure_since or clock()
        if not client.connected:
            self._connecting = client.when_connected()
            yield self._connecting
            self._connecting = None
            if client.dead:
                raise self._unavailable("")
        session = client.session
        if session is None or session is not self._session:
            return (yield from self._join())  # the old session took its nodes along
        self._asked_at = clock()
        listed = yield client.send_all([Sync(self._parent), GetChildren(self._parent, None)])[-1]
        queue = _nodes(listed)
        own = [node for node in queue if tree.nonce_of(node) == self._claim.nonce]
        for node in own[1:]:
            client.delete_node(session, f"{self._parent}/{node}")
        self._node = None
        if own:
            path = f"{self._parent}/{own[0]}"
            read = yield client.send(GetData(path, None))
            if not isinstance(read.error, NoNodeError):
                _, stat = read.get()
                if stat.ephemeralOwner == session.id:
                    self._node = ContenderNode(session, path, stat.czxid, float("-inf"))
        return queue

    def _grant(self) -> bool:
        """Give the lock to the caller; False if the session has ended."""
        node = self._node
        if node is None or node.session.over or self._client.session is not node.session:
            return False
        lease = self._lease(node)
        self._grants.add(Grant(lease, self._client, node))
        self._node = None  # it is the grant's
        if not self._pending.resolve(lease):
            self._grants.drop(lease)
        elif self._waits and clock() - node.created_after > _LONG_WAIT:
            self._client.send(SetData(self._parent, tree.held_mark(node.czxid), -1))
        return True

    def _lease(self, node: ContenderNode) -> Lease:
        """Return a lease that ends before the leader can end the session."""
        claim, timeout = self._claim, node.session.timeout
        duration = self._client.options.lease_of(timeout)
        if duration < claim.duration:
            claim = replace(claim, duration=duration)
        counted_from = self._client.counted_from(self._asked_at)
        unproven = timeout - duration
        return claim.granted(node.czxid, min(self._asked_at, counted_from + unproven))


def _nodes(listed: Reply) -> list[str]:
    """Return the nodes of all contenders in a reply, in order; none if there is no such parent."""
    return [] if isinstance(listed.error, NoNodeError) else tree.in_order(listed.get())
