"""What type checkers know of locked tasks."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Concatenate, Literal, ParamSpec, Protocol, TypeVar, overload

# In `typing` from Python 3.13 on. Type checkers know it, whether it is installed or not.
from typing_extensions import TypeVar as TypeVarWithDefault

from distlock.celery.task import LockedResult

P = ParamSpec("P")
R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)
Bind = TypeVarWithDefault(
    "Bind", Literal[True], Literal[False], covariant=True, default=Literal[False]
)

class TypedTask(Protocol[P, R_co]):
    """What is known of a task: its function's parameters, and what that returns."""

    name: str

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R_co: ...
    def delay(self, *args: P.args, **kwargs: P.kwargs) -> LockedResult: ...
    def delay_on_commit(self, *args: P.args, **kwargs: P.kwargs) -> None: ...
    def apply_async(
        self,
        args: Sequence[Any] | None = None,
        kwargs: Mapping[str, Any] | None = None,
        task_id: str | None = None,
        **options: Any,
    ) -> LockedResult: ...
    def unqueue(self, *args: P.args, **kwargs: P.kwargs) -> str | None: ...
    def AsyncResult(self, task_id: str, **kwargs: Any) -> LockedResult: ...

    # Its other attributes are Celery's. A signature may lack arguments that a chain adds later.
    def __getattr__(self, name: str) -> Any: ...

class TaskMaker(Protocol[Bind]):
    """What ``locked_task`` returns; with ``bind=True`` the task lacks the function's ``self``."""

    @overload
    def __call__(
        self: TaskMaker[Literal[False]], function: Callable[P, R], /
    ) -> TypedTask[P, R]: ...
    @overload
    def __call__(
        self: TaskMaker[Literal[True]], function: Callable[Concatenate[Any, P], R], /
    ) -> TypedTask[P, R]: ...
