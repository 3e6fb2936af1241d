"""From the arguments of a call to the name of a task's lock."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from distlock.celery.options import Template
from distlock.core.name_template import NameTemplate
from distlock.core.queueing_owners import PREFIX
from distlock.types.names import checked_name


class CallName:
    """How one option of a task names a lock for each call; every error names all three."""

    def __init__(
        self, task: str, option: str, template: Template, body: Callable[..., Any]
    ) -> None:
        """Raise ValueError if the template cannot be filled in by any call of ``body``."""
        self._what = f"task {task}: {option}={template!r}"
        self._prefix = PREFIX if option == "queueing_lock" else ""
        self._signature = inspect.signature(body)
        if isinstance(template, str):
            try:
                names = NameTemplate(template, body)
                if "{" not in template and "}" not in template:
                    checked_name(self._prefix + template)
            except ValueError as error:
                raise ValueError(f"{self._what}: {error}") from None
            self._named = names.name
        else:
            function = template
            self._named = lambda args, kwargs: function(*args, **kwargs)

    def __call__(self, args: Sequence[Any] | None, kwargs: Mapping[str, Any] | None) -> str:
        """Return the name for one call.

        Raises TypeError if the task cannot be called like this, ValueError if no lock can be
        called what comes out.
        """
        try:
            bound = self._signature.bind(*(args or ()), **(kwargs or {}))
        except TypeError as error:
            raise TypeError(f"{self._what}: {error}") from None
        bound.apply_defaults()
        try:
            name = self._named(bound.args, bound.kwargs)
        except (AttributeError, LookupError, TypeError, ValueError) as error:
            shown = ", ".join(f"{name}={value!r}" for name, value in bound.arguments.items())
            raise ValueError(
                f"{self._what} gives no name for the arguments {shown}: {error}"
            ) from error
        try:
            return checked_name(self._prefix + name if isinstance(name, str) else name)
        except (TypeError, ValueError) as error:
            raise type(error)(f"{self._what}: {error}") from None
