"""Something of each kind of the coordination family, for the tests of its pages."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from distlock.admin.coordination.cells import Ref
from distlock.exceptions import LockError
from distlock.recipes import Group
from distlock.recipes.config import Config

NAME = "one"


@dataclass
class Scene:
    """A name in the backend "default"; ``refs`` are what the actions on it are about."""

    state: Any  #: a callable that returns what an action would change
    refs: dict[str, Ref]
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
    version = value.set({"host": "mx1"}, author="ada")
    return Scene(
        lambda: value.get().version,
        {"edit": Ref("default", NAME, version)},
        {"edit": {"value": '{"host": "mx2"}'}},
    )


SCENES = {"group": group, "config": config}
#: the permission of each action
ACTIONS = {
    ("group", "remove"): "remove_member",
    ("config", "edit"): "edit_config",
}
