"""Something of each kind of the coordination family, for the tests of its pages."""

from __future__ import annotations

import threading
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from distlock.conf import locks
from distlock.exceptions import LockError
from distlock.recipes import (
    Barrier,
    Config,
    CountDownLatch,
    Counter,
    DoubleBarrier,
    Election,
    Event,
    Group,
    Names,
    Progress,
    Queue,
    RateLimiter,
    Topic,
)
from distlock.recipes.description import Ref
from tests.contract.watch import eventually

NAME = "one"


@dataclass
class Scene:
    """A name in the backend "default"; ``refs`` are what the actions on it are about."""

    state: Any  #: a callable that returns what an action would change
    refs: dict[str, Ref]
    #: where an action is offered, if that is not on the page that comes first
    pages: dict[str, dict[str, str]] = field(default_factory=dict)
    forms: dict[str, dict[str, str]] = field(default_factory=dict)
    close: Any = lambda: None

    def form(self, action, **more):
        """Return what confirms an action."""
        return {
            "ref": str(self.refs[action]),
            "confirmed": "yes",
            "reason": "a test",
            **self.forms.get(action, {}),
            **more,
        }


def stand(leader, *others):
    """Let the first one lead, and the others wait in threads; returns what ends it for all."""

    def wait(other):
        with suppress(LockError):
            other.campaign()

    leader.campaign()
    threads = [threading.Thread(target=wait, args=[other], daemon=True) for other in others]
    for thread in threads:
        thread.start()
    eventually(lambda: len(leader.candidates()) == 1 + len(others))

    def resign():
        for one in (leader, *others):
            with suppress(LockError):
                one.resign()
        return not any(thread.is_alive() for thread in threads)

    def end():
        eventually(resign)
        resign()

    return end


def election():
    """A leader, and one who waits."""
    leader, other = Election(NAME, "ada"), Election(NAME, "bob")
    close = stand(leader, other)

    def state():
        orders = locks["default"].store.read(f"election:{NAME}").records["orders"].value
        return orders.get("appointed"), orders.get("step_down")

    return Scene(
        state,
        {
            "appoint": Ref("default", NAME, leader.candidates()[1].token, "bob"),
            "step-down": Ref("default", NAME, leader.term, "ada"),
        },
        close=close,
    )


def group():
    member = Group(NAME, "worker-1", data={"queue": "mail"})
    token = member.join()

    def close():
        with suppress(LockError):
            member.leave()

    return Scene(
        lambda: [each.token for each in member.members()],
        {"remove": Ref("default", NAME, token, "worker-1")},
        close=close,
    )


def config():
    value = Config(NAME)
    first = value.set({"host": "mx0"}, who="ada")
    version = value.set({"host": "mx1"}, who="ada")
    return Scene(
        lambda: value.get().version,
        {
            "edit": Ref("default", NAME, version),
            "rollback": Ref("default", NAME, version, str(first)),
        },
        forms={"edit": {"value": '{"host": "mx2"}'}},
    )


def progress():
    work = Progress(NAME, total=10, unit="rows").start()
    token = Progress.get(NAME).token
    return Scene(
        lambda: Progress.get(NAME).cancelling,
        {"cancel": Ref("default", NAME, token)},
        close=work.finish,
    )


def queue():
    """An item that waits, one that is being delivered, and one that was put aside."""
    letters = Queue(NAME, max_deliveries=1)
    dead, _taken, _ready = (letters.put({"to": who}) for who in ("ada", "bob", "eve"))
    letters.get().nack()
    delivery = letters.get()

    def close():
        with suppress(LockError):
            delivery.ack()

    def state():
        info = letters.info()
        return info.ready, info.dead, [one.token for one in info.deliveries]

    return Scene(
        state,
        {
            "retry": Ref("default", NAME, dead, str(dead)),
            "release": Ref("default", NAME, delivery.token, str(delivery.id)),
            "discard": Ref("default", NAME, dead, str(dead)),
        },
        {"release": {"state": "delivered"}},
        close=close,
    )


def broken(barrier):
    barrier.abort()
    return Scene(lambda: barrier.broken, {})


def event():
    flag = Event(NAME)
    flag.set()
    return Scene(flag.is_set, {})


def latch():
    parts = CountDownLatch(NAME, 3)
    parts.count_down()
    return Scene(lambda: parts.count, {})


def counter():
    number = Counter(NAME)
    number.add(3)
    return Scene(number.get, {})


def ratelimiter():
    limiter = RateLimiter(NAME, 3, 3600)
    limiter.acquire(2)
    return Scene(lambda: limiter.info().taken, {})


def topic():
    news = Topic(NAME)
    news.publish({"gold": 61.4})
    return Scene(lambda: len(news.history()), {})


def names():
    registration = Names(NAME).register("front desk", "10.0.0.7:631", data={"floor": 2})
    return Scene(lambda: registration.held, {}, close=registration.unregister)


SCENES = {
    "election": election,
    "group": group,
    "barrier": lambda: broken(Barrier(NAME, 2)),
    "doublebarrier": lambda: broken(DoubleBarrier(NAME, 2)),
    "event": event,
    "countdownlatch": latch,
    "counter": counter,
    "ratelimiter": ratelimiter,
    "queue": queue,
    "config": config,
    "topic": topic,
    "names": names,
    "progress": progress,
}
#: the permission of each action
ACTIONS = {
    ("election", "appoint"): "appoint_leader",
    ("election", "step-down"): "step_down_leader",
    ("queue", "retry"): "retry_dead_letter",
    ("queue", "release"): "release_delivery",
    ("queue", "discard"): "purge_queue",
    ("progress", "cancel"): "cancel_progress",
    ("config", "edit"): "edit_config",
    ("config", "rollback"): "edit_config",
}
