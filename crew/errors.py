"""The error tree: each error holds its facts as attributes and says in one sentence what to do.

CrewError
├── DefinitionError          a crew, agent, tool or executor was put together wrongly (all problems at once)
├── ConfigError              config.yaml does not say what it must
├── InvalidInput             what was handed to a run is refused (all violations at once)
├── StoreError
│   ├── RunExists            this run id is taken
│   ├── UnknownRun           the store holds no such run
│   └── RunConflict          somebody else carried this run on
├── RunActive                the run is under way in this executor
├── UnknownPause             an answer for a pause that is not pending
├── ProviderError            a model could not be asked, or its answer not be used
│   ├── RequestRejected      400: the request itself is refused
│   │   └── ContextTooLong   … because it outgrew the model's window
│   ├── AuthenticationFailed 401, 403, or no key at all
│   ├── QuotaExceeded        the account has nothing left to spend
│   ├── ContentRefused       the provider's content filter
│   ├── MalformedReply       an answer that is not one
│   ├── ScriptExhausted      a scripted provider has no reply left
│   └── Unavailable          worth trying again: network, 5xx, time-out
│       ├── RateLimited      429
│       └── Overloaded       529
└── RunError                 a run stopped; `.result` holds everything so far
    ├── ContextOverflow      the mandatory part alone is too large
    ├── CompressionFailed    an explicit compression came to nothing
    ├── OutputInvalid        the reply does not fit the agent's output type
    └── BranchesFailed       a parallel group did not come to what its policy asks for
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any


class CrewError(Exception):
    """Whatever this package raises on purpose."""


def describe(error: BaseException) -> str:
    """An error in words, even where its own `__str__` fails."""
    try:
        words = str(error).strip()
    except Exception:  # a foreign error's __str__ may do anything; what it hides must not hide the error
        words = "(its message can't be read)"

    return f"{type(error).__name__}: {words}" if words else type(error).__name__


def suggest(name: str, names: Iterable[str]) -> str:
    """A hint with the nearest of the names, or with all of them."""
    known = sorted(names)
    close = get_close_matches(name, known, n=3, cutoff=0.5)

    if close:
        return f"Did you mean {' or '.join(repr(n) for n in close)}?"

    return f"There is: {', '.join(known[:20])}." if known else "There is none."


def _list_problems(subject: str, problems: Sequence[str]) -> str:
    if len(problems) == 1:
        return f"{subject}: {problems[0]}"

    return f"{subject}, {len(problems)} problems:\n" + "\n".join(f"- {problem}" for problem in problems)


class DefinitionError(CrewError):
    """Something was put together wrongly; every problem is named."""

    def __init__(self, subject: str, problems: str | Sequence[str]) -> None:
        self.subject = subject
        self.problems = (problems,) if isinstance(problems, str) else tuple(problems)
        super().__init__(_list_problems(subject, self.problems))


class ConfigError(CrewError):
    """A configuration file is refused; every problem is named with its place."""

    def __init__(self, path: str, problems: str | Sequence[str]) -> None:
        self.path = path
        self.problems = (problems,) if isinstance(problems, str) else tuple(problems)
        super().__init__(_list_problems(path, self.problems))


@dataclass(frozen=True, slots=True, kw_only=True)
class Violation:
    """One thing that is wrong with an input or a history: where, what, and what would be accepted."""

    rule: str
    text: str
    index: int | None = None
    value: Any = None
    limit: Any = None

    def __str__(self) -> str:
        return self.text


class InvalidInput(CrewError):
    """What was handed in is refused; every violation is named, and nothing was changed."""

    def __init__(self, violations: Sequence[Violation]) -> None:
        self.violations = tuple(violations)
        super().__init__(_list_problems("The input is refused", [violation.text for violation in self.violations]))


class StoreError(CrewError):
    """A run could not be stored or found."""

    def __init__(self, run_id: str, text: str) -> None:
        self.run_id = run_id
        super().__init__(text)


class RunExists(StoreError):
    """A run id is used once."""

    def __init__(self, run_id: str) -> None:
        super().__init__(run_id, f"There is a run {run_id!r} already: leave run_id out, or choose another.")


class UnknownRun(StoreError):
    """No run under this id: it never was, or it has finished."""

    def __init__(self, run_id: str) -> None:
        super().__init__(
            run_id, f"The store holds no run {run_id!r}: it is unknown, or it has finished and can't be carried on."
        )


class RunConflict(StoreError):
    """Two carried the same run on; the second one's step was not stored."""

    def __init__(self, run_id: str, expected: int, found: int) -> None:
        self.expected, self.found = expected, found
        super().__init__(
            run_id,
            f"Run {run_id!r} is at version {found}, not {expected}: somebody else carried it on. Load it again.",
        )


class RunActive(CrewError):
    """The run is under way here."""

    def __init__(self, run_id: str) -> None:
        self.run_id = run_id
        super().__init__(f"Run {run_id!r} is under way in this executor: wait for it, or cancel it first.")


class UnknownPause(CrewError):
    """An answer that nothing waits for."""

    def __init__(self, run_id: str, unknown: Sequence[str], pending: Sequence[str]) -> None:
        self.run_id, self.unknown, self.pending = run_id, tuple(unknown), tuple(pending)
        waiting = ", ".join(repr(p) for p in pending) or "none"
        super().__init__(
            f"Run {run_id!r} does not wait for {', '.join(map(repr, unknown))}; its pending pauses are: {waiting}."
        )


class ProviderError(CrewError):
    """A model could not be asked, or its answer not be used."""

    def __init__(
        self,
        text: str,
        *,
        provider: str = "",
        model: str = "",
        status: int | None = None,
        request_id: str = "",
        retry_after: float | None = None,
    ) -> None:
        self.provider, self.model, self.status = provider, model, status
        self.request_id, self.retry_after = request_id, retry_after
        super().__init__(text)


class RequestRejected(ProviderError):
    """The provider refuses the request itself; the same one would be refused again."""


class ContextTooLong(RequestRejected):
    """The request outgrew the model's window."""

    def __init__(self, text: str, *, maximum: int | None = None, **facts: Any) -> None:
        self.maximum = maximum
        super().__init__(text, **facts)


class AuthenticationFailed(ProviderError):
    """No key, or not the right one."""


class QuotaExceeded(ProviderError):
    """The account's quota, credit or spend limit is used up: waiting does not help."""


class ContentRefused(ProviderError):
    """The provider's content filter stopped the request or the reply."""


class MalformedReply(ProviderError):
    """The answer is not one: no choice, broken JSON, a page of HTML."""


class ScriptExhausted(ProviderError):
    """A scripted provider has no reply left."""


class Unavailable(ProviderError):
    """Not now: network, time-out, 5xx. Worth trying again."""


class RateLimited(Unavailable):
    """Too many requests."""


class Overloaded(Unavailable):
    """The provider has more work than it can do."""


class RunError(CrewError):
    """A run stopped. `result` holds everything so far, where there was a run."""

    def __init__(self, text: str, *, result: Any = None) -> None:
        self.result = result
        super().__init__(text)


class ContextOverflow(RunError):
    """What must be in the request is larger than the request may be; `items` says what it is made of."""

    def __init__(self, text: str, *, limit: int, items: Sequence[tuple[str, int]] = (), result: Any = None) -> None:
        self.limit, self.items = limit, tuple(items)
        parts = "; ".join(f"{name}: {size}" for name, size in self.items)
        super().__init__(f"{text} It is made of {parts}." if parts else text, result=result)


class CompressionFailed(RunError):
    """A compression that was asked for came to nothing; the history is as it was."""


class OutputInvalid(RunError):
    """The reply does not fit the agent's output type, and one repair round did not help."""


class BranchesFailed(RunError):
    """A parallel group did not come to what its policy asks for."""
