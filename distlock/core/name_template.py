"""Names of locks that are made from the arguments of a call."""

from __future__ import annotations

import inspect
import string
from collections.abc import Callable, Mapping
from typing import Any


class NameTemplate:
    """``"report:{account_id}"``, filled in from a call's arguments by name, defaults included.

    The syntax is that of ``str.format`` (https://docs.python.org/3/library/string.html#formatstrings),
    with fields named after the function's parameters; ``{account.pk}`` and ``{kind!r}`` work.
    """

    def __init__(self, template: str, function: Callable[..., Any]) -> None:
        """Raise ValueError if the template names something that is no parameter of the function."""
        self.template = template
        self.signature = inspect.signature(function)
        parameters = self.signature.parameters
        for field in fields(template):
            if field not in parameters:
                known = ", ".join(parameters) or "none"
                raise ValueError(
                    f"name {template!r} mentions {field!r}, which is no parameter of"
                    f" {function.__qualname__}(); its parameters are: {known}"
                )

    def name(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str:
        """Return the name for one call; TypeError if the function cannot be called like this."""
        bound = self.signature.bind(*args, **kwargs)
        bound.apply_defaults()
        return self.template.format(**bound.arguments)


def fields(template: str) -> list[str]:
    """Return the names that a template mentions; ValueError if it is none."""
    mentioned = []
    for _, field, spec, _ in string.Formatter().parse(template):
        if field is None:
            continue
        # "account.pk" and "items[0]" begin with the parameter's name
        mentioned.append(field.replace("[", ".").split(".")[0])
        mentioned.extend(fields(spec or ""))
    return mentioned
