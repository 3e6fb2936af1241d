"""Names of locks as templates, filled in from a call's arguments or a command's options."""

from __future__ import annotations

import inspect
import string
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from distlock.types.arguments import checked_name

#: A name with fields for the arguments of a call, or a function of these that returns the name.
Template = str | Callable[..., str]

_NO_NAME = (AttributeError, LookupError, TypeError, ValueError)


class NameTemplate:
    """``"report:{account_id}"``, filled in by name.

    The syntax is that of ``str.format`` (https://docs.python.org/3/library/string.html#formatstrings);
    ``{account.pk}`` and ``{kind!r}`` work.
    """

    def __init__(
        self, template: str, known: Collection[str], whose: tuple[str, str], prefix: str = ""
    ) -> None:
        """Prepare a template whose fields are among ``known``.

        ``whose``: what the fields are and of what, for messages: ``("parameter", "report()")``.
        ``prefix`` stands before each name. Raises ValueError if the template mentions something
        else, or is a name that no lock can have.
        """
        self._template = template
        self._prefix = prefix
        try:
            self._fields = _fields(template)
        except ValueError as error:
            raise ValueError(f"name {template!r} is no template: {error}") from None
        for field in self._fields:
            if field not in known:
                kind, owner = whose
                raise ValueError(
                    f"name {template!r} mentions {field!r}, which is no {kind} of {owner}; its"
                    f" {kind}s are: {', '.join(known) or 'none'}"
                )
        if not self._fields:
            checked_name(prefix + template.format())

    def fill_in(self, values: Mapping[str, Any]) -> str:
        """Return the name for these values; ValueError if no lock can be called so."""
        try:
            name = self._template.format(**values)
        except _NO_NAME as error:
            shown = {field: values[field] for field in self._fields if field in values}
            raise _no_name(shown, error) from error
        return checked_name(self._prefix + name)


class CallName:
    """The name of the lock for each call of a function, from the call's arguments and defaults."""

    def __init__(
        self, template: Template, function: Callable[..., Any], what: str = "", prefix: str = ""
    ) -> None:
        """Prepare the names for the calls of ``function``.

        ``template`` is a NameTemplate, or a function that gets the arguments and returns the name.
        ``what`` begins each message. ValueError if no call can give a name.
        """
        self._what = f"{what}: " if what else ""
        self._prefix = prefix
        self._signature = inspect.signature(function)
        self._function: Callable[..., str] | None = None
        if callable(template):
            self._function = template
            return
        called = getattr(function, "__qualname__", repr(function))  # partial() has none
        whose = "parameter", f"{called}()"
        try:
            self._names = NameTemplate(template, self._signature.parameters, whose, prefix)
        except ValueError as error:
            raise ValueError(f"{self._what}{error}") from None

    def __call__(self, args: Sequence[Any] | None, kwargs: Mapping[str, Any] | None) -> str:
        """Return the name for one call.

        Raises TypeError if the function cannot be called like this, ValueError if no lock can be
        called what comes out.
        """
        try:
            bound = self._signature.bind(*(args or ()), **(kwargs or {}))
            bound.apply_defaults()
            if self._function is None:
                return self._names.fill_in(bound.arguments)
            try:
                name = self._function(*bound.args, **bound.kwargs)
            except _NO_NAME as error:
                raise _no_name(bound.arguments, error) from error
            return checked_name(self._prefix + name if isinstance(name, str) else name)
        except (TypeError, ValueError) as error:
            if not self._what:
                raise
            raise type(error)(f"{self._what}{error}") from error.__cause__


def _no_name(values: Mapping[str, Any], error: Exception) -> ValueError:
    shown = ", ".join(f"{name}={value!r}" for name, value in values.items())
    return ValueError(f"there is no name for {shown}: {error}")


def _fields(template: str) -> list[str]:
    """Return the names that a template mentions; ValueError if it is none."""
    mentioned = []
    for _, field, spec, _ in string.Formatter().parse(template):
        if field is None:
            continue
        # "account.pk" and "items[0]" begin with the parameter's name
        mentioned.append(field.replace("[", ".").split(".")[0])
        mentioned.extend(_fields(spec or ""))
    return mentioned
