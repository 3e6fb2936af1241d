"""What type checkers know of the tasks that ``locked_task`` makes; Celery itself has no types."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ParamSpec, Protocol, TypeVar

from distlock.celery.results import LockedResult

P = ParamSpec("P")
R_co = TypeVar("R_co", covariant=True)


class TypedTask(Protocol[P, R_co]):
    """A Celery task by the parameters of its function and what that returns."""

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
