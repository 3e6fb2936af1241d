"""Where locks and those in line for them are in ZooKeeper's tree."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache
from urllib.parse import quote, unquote

#: What a component of a path must not contain, and the escape character itself. ZooKeeper counts in
#: UTF-16, so whatever is beyond the first plane is made of surrogates, which it refuses.
_ESCAPED = re.compile("[^\x20-\x24\x26-\x2e\x30-\x7e\xa0-\ud7ff\uf900-\uffef]")
_DOTS = re.compile(r"\.\.?")
_IN_LINE = re.compile(r"([0-9a-f]{32})-(-?\d+)")
_SEQUENCES = 2**32


@lru_cache(1024)
def escaped(name: str) -> str:
    """Return a lock's name as one component of a path; most names stay as they are."""
    if _DOTS.fullmatch(name):
        return name.replace(".", "%2E")
    return _ESCAPED.sub(lambda found: quote(found[0], safe=""), name)


def unescaped(component: str) -> str:
    """Return the name of a lock from its component."""
    return unquote(component)


def nonce_of(node: str) -> str | None:
    """Return the nonce of the claim that a node in line stands for; None for a foreign node."""
    found = _IN_LINE.fullmatch(node)
    return found[1] if found else None


def number_of(node: str) -> int:
    """Return the sequence number of a node in line."""
    return int(node.rpartition("-")[2])


def in_order(nodes: Iterable[str]) -> list[str]:
    """Return the nodes in line, the holder first; foreign nodes are left out.

    Sequence numbers are Java's ints, which go on below zero after 2,147,483,647.
    """
    numbers = {node: int(found[2]) for node in nodes if (found := _IN_LINE.fullmatch(node))}
    if numbers and max(numbers.values()) - min(numbers.values()) > _SEQUENCES // 2:
        numbers = {node: number % _SEQUENCES for node, number in numbers.items()}
    return sorted(numbers, key=numbers.__getitem__)


def ancestors(path: str) -> list[str]:
    """Return ``path`` and what is above it, the highest first, without the root."""
    parts = path.strip("/").split("/")
    return ["/" + "/".join(parts[: end + 1]) for end in range(len(parts))]
