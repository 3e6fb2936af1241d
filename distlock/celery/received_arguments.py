"""The arguments of a call as the task's body gets them from a worker: names are made from these.

The caller and the worker must find one name for one call, however an argument was spelled: an enum
member arrives as its value, a tuple as a list, a pydantic model as the model that Celery validates.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection
from types import CellType, FunctionType
from typing import Any

from celery.app import base
from celery.exceptions import SoftTimeLimitExceeded
from kombu.serialization import dumps, loads

from distlock.exceptions import LockError

#: Serializers return these as they are.
_PLAIN = frozenset({bool, float, int, str, type(None)})

#: Errors that other code raises inside of whatever runs, and that kombu wraps into one of its own.
_INTERRUPTS = (SoftTimeLimitExceeded, LockError)

#: Validates the arguments of a call and returns them.
Validation = Callable[..., tuple[tuple[Any, ...], dict[str, Any]]]


class ReceivedArguments:
    """Makes, from the arguments of a call, those that the body of a task gets in a worker.

    A caller's arguments become the same as the worker's, and those of the worker stay as they are:

    1. where Celery validates (``pydantic=True``), a model is dumped, as Celery does;
    2. each value goes through the serializer of the task and back; one that the serializer refuses,
       which only a direct or an eager call can have, stays as it is;
    3. dictionaries get one order;
    4. where Celery validates, it does so.
    """

    def __init__(self, task: Any, body: Callable[..., Any]) -> None:
        """``task`` is a class of tasks, ``body`` what its callers call.

        TypeError if Celery validates arguments in a way that is not known here.
        """
        self._task = task
        self._signature = inspect.signature(body)
        self._validate = _validation(body)

    def __call__(
        self, bound: inspect.BoundArguments, fields: Collection[str] | None
    ) -> inspect.BoundArguments:
        """Return the arguments with defaults; only ``fields`` need to be right, None for all.

        Raises what the validation raises.
        """
        if self._validate is None:
            bound.apply_defaults()
            self._convert(bound, fields)
            return bound
        args, kwargs = bound.args, bound.kwargs
        # Celery before 5.7 cannot send models: there is nothing to dump.
        if dump := getattr(self._task, "_dump_pydantic_arguments", None):
            args, kwargs = dump(args, kwargs)
        bound = self._signature.bind(*args, **kwargs)
        self._convert(bound, None)
        args, kwargs = self._validate(*bound.args, **bound.kwargs)
        bound = self._signature.bind(*args, **kwargs)
        given = set(bound.arguments)
        bound.apply_defaults()  # Celery does not validate these
        self._convert(bound, bound.arguments.keys() - given)
        return bound

    def _convert(self, bound: inspect.BoundArguments, fields: Collection[str] | None) -> None:
        for name, value in bound.arguments.items():
            if fields is not None and name not in fields:
                continue
            match self._signature.parameters[name].kind:
                case inspect.Parameter.VAR_POSITIONAL:
                    value = tuple(map(self._received, value))
                case inspect.Parameter.VAR_KEYWORD:
                    value = _in_order({key: self._received(each) for key, each in value.items()})
                case _:
                    value = self._received(value)
            bound.arguments[name] = value

    def _received(self, value: Any) -> Any:
        if type(value) in _PLAIN:
            return value
        serializer = self._task.serializer or self._task._get_app().conf.task_serializer
        try:
            kind, encoding, message = dumps(value, serializer)  # type: ignore[no-untyped-call]
            value = loads(message, kind, encoding, accept=[kind])  # type: ignore[no-untyped-call]
        except Exception as error:
            for interrupt in (error, error.__context__):
                if isinstance(interrupt, _INTERRUPTS):
                    raise interrupt from None
        return _in_order(value)


def _in_order(value: Any) -> Any:
    """Return the value with its dictionaries in the order of their keys."""
    if type(value) is dict:
        return {key: _in_order(value[key]) for key in sorted(value, key=repr)}
    if type(value) in (list, tuple):
        return type(value)(map(_in_order, value))
    return value


def _validation(body: Callable[..., Any]) -> Validation | None:
    """Return what Celery's ``pydantic=True`` does before it calls the body; None without it.

    Celery has wrapped the function of the task. This is the wrapper with another function inside,
    which returns its arguments.
    """
    wrapper: Any = getattr(body, "__func__", body)
    if getattr(wrapper, "__globals__", None) is not vars(base):
        return None
    function, cells = wrapper.__wrapped__, wrapper.__closure__
    replaced = tuple(CellType(_given) if cell.cell_contents is function else cell for cell in cells)
    if replaced == cells:
        raise TypeError("pydantic=True works in another way in this version of Celery")
    validate = FunctionType(wrapper.__code__, wrapper.__globals__, closure=replaced)
    if wrapper is body:
        return validate

    def validate_bound(*args: Any, **kwargs: Any) -> Any:
        args, kwargs = validate(None, *args, **kwargs)
        return args[1:], kwargs

    return validate_bound


def _given(*args: Any, **kwargs: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    return args, kwargs
