"""What the worker processes do in the scenarios of family.py."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

from django.db.models import F

from distlock import LockBusy
from distlock.recipes import Barrier, Config, Election, Group, Mailbox, Names, Progress
from distlock.recipes.names import Registration
from locksite.demo.controller import Controller
from locksite.demo.models import Counter

#: what register() has got, until unregister()
_registered: list[Registration] = []


def lead(controller: Controller, election: str, candidate: str) -> None:
    """Stand for election; lead until the next line of input, or until the end."""
    controller.send(stands=True)
    with Election(election, candidate) as leading:
        controller.send(leads=leading.term)
        controller.receive()


def be_member(controller: Controller, group: str, member: str) -> None:
    """Be in a group until the next line of input."""
    with Group(group, member):
        controller.send(joined=True)
        controller.receive()


def meet(controller: Controller, counter: int, barrier: str, parties: int) -> int:
    """Add 1, wait for the others, and return what all have added."""
    Counter.objects.filter(pk=counter).update(value=F("value") + 1)
    Barrier(barrier, parties).wait()
    value: int = Counter.objects.values_list("value", flat=True).get(pk=counter)
    return value


def read_letters(controller: Controller, mailbox: str, number: int) -> list[Any]:
    """Read so many letters, and say of each that it was read."""
    letters = []
    with_box = Mailbox(mailbox)
    for _ in range(number):
        with with_box.get() as letter:
            letters.append(letter.body)
    return letters


def watch_price(controller: Controller, config: str, last: int) -> Any:
    """Watch a value until it is ``last``; return what was seen last."""
    controller.send(watching=True)
    for value in Config(config).changes():
        if value.value == last:
            return value.value
    return None


def register(controller: Controller, names: str, name: str) -> tuple[bool, int]:
    """Register a name, and take a number; return whether it was free, and the number."""
    book = Names(names)
    try:
        _registered.append(book.register(name, "ipp://127.0.0.1:631"))
    except LockBusy:
        return False, book.unique_number()
    return True, book.unique_number()


def unregister(controller: Controller) -> None:
    """Give back what register() has got."""
    while _registered:
        _registered.pop().unregister()


def work(controller: Controller, progress: str, steps: int, then_wait: bool) -> None:
    """Work, and report how far it is; in the middle wait for the next line, if asked to."""
    with Progress(progress, total=steps, unit="tickets") as report:
        for step in range(steps):
            time.sleep(0.01)
            report.advance()
            if then_wait and step == steps // 2:
                controller.send(waits=True)
                controller.receive()


TASKS: Mapping[str, Callable[..., Any]] = {
    "lead": lead,
    "be_member": be_member,
    "meet": meet,
    "read_letters": read_letters,
    "watch_price": watch_price,
    "register": register,
    "unregister": unregister,
    "work": work,
}
