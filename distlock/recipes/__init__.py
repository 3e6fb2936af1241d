"""Coordination primitives that are built on locks, and on the records of a backend's store.

barrier     Barrier, DoubleBarrier: so many wait for each other
generation  the state of a barrier in its records, and the changes that can be made of it
event       Event: one process sets it, all others see it
counter     Counter: a number that all processes add to, exactly; CountDownLatch: wait until
            something has happened a number of times
rate_limiter  RateLimiter: at most so many permits in any period
permits     what a rate limiter has granted, and since when it counts
log         Config: one value in all processes, with versions; Topic: messages that every
            subscriber gets, in order
following   what changes in the directory of a recipe, look by look
election    Election: of several candidates one leads at a time
candidacy   one candidate, from when it is to stand until it has left
candidates  the records of an election: who stands, who is next, who has led
group       Group: which processes are there, and who has come or gone
names       Names: a name or a number that nobody else has, and the address registered under it
progress    Progress: the progress of a piece of work, live for all observers;
            track(): a loop that reports its progress
report      the values of a progress, also as a bar on a terminal
queue       Queue, Mailbox: items that are delivered until they are acknowledged
queue_operations  what is done with a queue by hand: its items in pages, dead letters, a purge
queue_records  the steps that change the records of a queue
queue_items  what the records of a queue say, which keys they have, whose deliveries have gone
delivery    one delivery of an item of a queue
membership  a record of this process, for as long as it keeps it
cells        values that are ready to be shown
description  what a recipe looks like and what may be done with it, as plain values
election_description  of an election: who leads, is next, and has led
log_description       of configuration and topics: the value and its versions, the last messages
progress_description  of progress: how far it is, live
queue_description     of a queue: its items in pages, and one item
queue_actions         what may be done to a queue, on a page or in a terminal
recipe      what all recipes over records do
"""

from __future__ import annotations

from distlock.locking.base_lock import BaseLock
from distlock.locking.lock import Lock
from distlock.locking.multilock import MultiLock
from distlock.locking.shared import RWLock, Semaphore
from distlock.recipes.barrier import Barrier, BarrierInfo, DoubleBarrier
from distlock.recipes.candidates import Candidate, ElectionInfo, Term
from distlock.recipes.counter import CountDownLatch, Counter, CounterInfo, LatchInfo
from distlock.recipes.delivery import Delivery
from distlock.recipes.election import Election
from distlock.recipes.event import Event, EventInfo
from distlock.recipes.group import Change, Group, Member
from distlock.recipes.log import Config, Message, Topic, Value
from distlock.recipes.names import Address, Names, Registration
from distlock.recipes.progress import Progress, atrack, track
from distlock.recipes.queue import Mailbox, Queue
from distlock.recipes.queue_items import DeliveryInfo, QueueInfo, QueueItem
from distlock.recipes.queue_operations import ItemInfo, ItemPage
from distlock.recipes.rate_limiter import RateInfo, RateLimiter
from distlock.recipes.report import Report, bar
from distlock.types.lease import Kind, LockInfo

__all__ = [
    "Address",
    "Barrier",
    "BarrierInfo",
    "Candidate",
    "Change",
    "Config",
    "CountDownLatch",
    "Counter",
    "CounterInfo",
    "Delivery",
    "DeliveryInfo",
    "DoubleBarrier",
    "Election",
    "ElectionInfo",
    "Event",
    "EventInfo",
    "Group",
    "ItemInfo",
    "ItemPage",
    "LatchInfo",
    "Mailbox",
    "Member",
    "Message",
    "MultiLock",
    "Names",
    "Progress",
    "Queue",
    "QueueInfo",
    "QueueItem",
    "RWLock",
    "RateInfo",
    "RateLimiter",
    "Registration",
    "Report",
    "Semaphore",
    "Term",
    "Topic",
    "Value",
    "atrack",
    "bar",
    "lock_of",
    "track",
]


def lock_of(info: LockInfo) -> BaseLock:
    """Return a lock object for an ``info`` from a backend, to look at the lock or to break it."""
    if info.kind is Kind.SEMAPHORE:
        return Semaphore(info.name, using=info.using)
    if info.kind is Kind.RWLOCK:
        return RWLock(info.name, using=info.using).reader()
    return Lock(info.name, using=info.using)
