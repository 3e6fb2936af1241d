"""Names of locks as templates, filled in from a call's arguments or a command's options."""

from __future__ import annotations

import inspect
import re
import string
import warnings
from collections.abc import Callable, Collection, Mapping, Sequence
from enum import Enum
from typing import Any

from distlock.exceptions import UnfilledTemplate
from distlock.types.owners import callers_level
from distlock.types.values import checked_name

#: A name with fields for the arguments of a call, or a function of these that returns the name.
Template = str | Callable[..., str]

#: Makes the arguments that a name is for from those of a call; with the parameters that it is made
#: from, None for all.
Conversion = Callable[[inspect.BoundArguments, Collection[str] | None], inspect.BoundArguments]

_NO_NAME = (AttributeError, LookupError, TypeError, ValueError)

#: A field such as {account_id}, {account.pk} or {kind!r}; a dictionary or a set in a name has none.
_FIELD = re.compile(r"\{[^\W\d]\w*([.\[!:][^{}]*)?\}")


def warn_if_unfilled(name: str, lock: object) -> None:
    """Warn of a name that looks like a template; Python shows it once for each place."""
    if (field := _FIELD.search(name)) and not getattr(lock, "name_is_filled_in", False):
        warnings.warn(
            f"lock {name!r}: {field[0]} was not filled in, so all callers share one lock. Is"
            " an f missing before the string? If you mean it literally, ignore"
            " distlock.UnfilledTemplate",
            UnfilledTemplate,
            stacklevel=callers_level(),
        )


class NameTemplate:
    """``"report:{account_id}"``, filled in by name.

    The syntax is that of ``str.format`` (https://docs.python.org/3/library/string.html#formatstrings);
    ``{account.pk}`` and ``{kind!r}`` work. Values that say the same are written in one way: an enum
    member whose value is a str or an int as this value, dictionaries and sets in one order, and a
    tuple as a list. None is refused, as of a row that is not saved yet: ``{kind!s}`` takes it, too.
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
            self.fields = frozenset(fields := _fields(template))
        except ValueError as error:
            raise ValueError(f"name {template!r} is not a template: {error}") from None
        for field in fields:
            if field not in known:
                kind, owner = whose
                raise ValueError(
                    f"name {template!r} mentions {field!r}, which is not a {kind} of {owner}; its"
                    f" {kind}s are: {', '.join(known) or 'none'}"
                )
        if not fields:
            checked_name(prefix + template.format())

    def fill_in(self, values: Mapping[str, Any]) -> str:
        """Return the name for these values; ValueError if no lock can be called so."""
        try:
            name = _FORMATTER.vformat(self._template, (), values)
        except _NO_NAME as error:
            shown = {field: values[field] for field in sorted(self.fields) if field in values}
            raise _no_name(shown, error) from error
        return checked_name(self._prefix + name)


class CallName:
    """The name of the lock for each call of a function, from the call's arguments and defaults."""

    def __init__(
        self,
        template: Template,
        function: Callable[..., Any],
        what: str = "",
        prefix: str = "",
        convert: Conversion | None = None,
    ) -> None:
        """Prepare the names for the calls of ``function``.

        ``template`` is a NameTemplate, or a function that gets the arguments and returns the name.
        ``what`` begins each message. ``convert`` makes the arguments that the name is for; its
        errors are raised as they are. ValueError if no call can give a name.
        """
        self._what = f"{what}: " if what else ""
        self._prefix = prefix
        self._signature = inspect.signature(function)
        self._convert = convert
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
            return self._name(args or (), kwargs or {})
        except (TypeError, ValueError) as error:
            # A subclass may have another constructor.
            if not self._what or type(error) not in (TypeError, ValueError):
                raise
            raise type(error)(f"{self._what}{error}") from error.__cause__

    def _name(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> str:
        bound = self._signature.bind(*args, **kwargs)
        fields = None if self._function is not None else self._names.fields
        if self._convert is not None and fields != frozenset():
            bound = self._convert(bound, fields)
        bound.apply_defaults()
        if self._function is None:
            return self._names.fill_in(bound.arguments)
        try:
            name = self._function(*bound.args, **bound.kwargs)
        except _NO_NAME as error:
            raise _no_name(bound.arguments, error) from error
        return checked_name(self._prefix + name if isinstance(name, str) else name)


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


class _Formatter(string.Formatter):
    """Writes values that say the same in one way."""

    def format_field(self, value: Any, spec: str) -> Any:
        if value is None:
            raise ValueError(
                "None does not distinguish one lock from another. If you mean it, write !s after"
                " the field, as in {kind!s}"
            )
        return super().format_field(_one_spelling(value), spec)

    def convert_field(self, value: Any, conversion: Any) -> Any:
        return super().convert_field(_one_spelling(value) if conversion else value, conversion)


_FORMATTER = _Formatter()


class _Written:
    """A container, as it is written in a name."""

    def __init__(self, text: str) -> None:
        self._text = text

    def __repr__(self) -> str:
        return self._text


def _one_spelling(value: Any) -> Any:
    if isinstance(value, Enum) and isinstance(value.value, (str, int)):
        return value.value
    kind = type(value)
    if kind in (list, tuple):
        return _Written(f"[{', '.join(repr(_one_spelling(each)) for each in value)}]")
    if kind is dict:
        texts = [f"{_one_spelling(k)!r}: {_one_spelling(v)!r}" for k, v in value.items()]
    elif kind in (set, frozenset):
        texts = [repr(_one_spelling(each)) for each in value]
    else:
        return value
    return _Written(f"{{{', '.join(sorted(texts))}}}")
