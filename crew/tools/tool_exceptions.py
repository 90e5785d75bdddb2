"""Exceptions that a tool raises on purpose: for its model, for the whole run, or about a write in doubt."""

from __future__ import annotations


class ToolRetry(Exception):
    """The model receives exactly these words as the result, and may call the tool again with other arguments."""

    def __init__(self, words: str) -> None:
        super().__init__(_checked(words, "ToolRetry needs the words for the model"))

    @property
    def words(self) -> str:
        return str(self.args[0])


class StopRun(Exception):
    """The run ends now, with `stop_reason="stopped"`; the reason is in `result.stop_text`.

    Raised in a branch, or in an agent that is called as a tool, it ends the whole run.
    """

    def __init__(self, reason: str) -> None:
        super().__init__(_checked(reason, "StopRun needs a reason"))

    @property
    def reason(self) -> str:
        return str(self.args[0])


class EffectUnknown(Exception):
    """The call may or may not have taken effect, for example because a connection was lost before the answer.

    A call of a tool with `effect="write"` is in doubt then, and is not repeated. For other tools it is an error.
    """


RaisedOnPurpose = StopRun | EffectUnknown | ToolRetry

PRECEDENCE: tuple[type[RaisedOnPurpose], ...] = (StopRun, EffectUnknown, ToolRetry)


def raised_on_purpose(error: BaseException) -> RaisedOnPurpose | None:
    """The error if it is one of these, or one within a group of errors, as a `TaskGroup` raises it.

    Of several, the one that ends the run counts, then a write in doubt, which no retry may hide.
    """
    for kind in PRECEDENCE:
        if (found := _find(error, kind)) is not None:
            return found

    return None


def _find(error: BaseException, kind: type[RaisedOnPurpose]) -> RaisedOnPurpose | None:
    if isinstance(error, kind):
        return error

    inner = error.exceptions if isinstance(error, BaseExceptionGroup) else ()
    return next((found for one in inner if (found := _find(one, kind)) is not None), None)


def _checked(text: object, problem: str) -> str:
    if not isinstance(text, str) or not text.strip():
        raise ValueError(f"{problem}, not {text!r}")

    return text
