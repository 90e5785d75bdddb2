"""`Failure`: the error of a step as data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Self

from crew.errors import ContextOverflow, CrewError, OutputInvalid, RunError, describe


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """An error as data: it is committed with the fact that it followed, and raised afterwards.

    `limit` and `items` are those of a `ContextOverflow`.
    """

    kind: Literal["overflow", "output", "error"]
    text: str
    limit: int = 0
    items: tuple[tuple[str, int], ...] = ()

    @classmethod
    def of(cls, error: BaseException) -> Self:
        """The facts of an error."""
        match error:
            case ContextOverflow():
                return cls(kind="overflow", text=str(error), limit=error.limit, items=error.items)
            case OutputInvalid():
                return cls(kind="output", text=str(error))
            case CrewError():
                return cls(kind="error", text=str(error))
            case _:
                return cls(kind="error", text=describe(error))

    def as_error(self) -> RunError:
        """The error, where another process met it: of an error that is not Crew's, the text alone is left."""
        match self.kind:
            case "overflow":
                error = ContextOverflow(self.text, limit=self.limit)
                error.items = self.items  # the text lists them already
                return error
            case "output":
                return OutputInvalid(self.text)
            case "error":
                return RunError(self.text)
