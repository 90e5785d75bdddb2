"""The exceptions that Crew raises; each one holds its facts as typed attributes.

CrewError
├── DefinitionError          a crew, agent, tool or executor is defined wrongly (lists all problems)
├── ConfigError              a configuration file is invalid (lists all problems)
├── InvalidInput             the input, history or answers of a run are invalid (lists all violations)
├── StoreError               the store can't save or load a run
│   ├── RunExists            the run id is already in use
│   ├── UnknownRun           the store has no unfinished run with this id
│   │   └── RunExpired       the run left a `MemoryStore`, which keeps only the newest runs
│   └── RunConflict          another process already resumed or cancelled the run
├── RunActive                this executor, or another process, is already running the run
├── ConversationBusy         another turn of the conversation is under way
├── ConversationPaused       the last turn of the conversation waits for an answer
├── MessageNotLoaded         a transcript that is loaded in part does not hold the message at this position
├── CrewChanged              a stored run needs what the crew no longer has, or `strict` found changes
├── UnknownPause             the run has no pending pause with this id
├── ProviderError            a model request failed, or its reply is unusable
│   ├── RequestRejected      400: the provider rejects the request
│   │   └── ContextTooLong   the request exceeds the model's context window
│   ├── AuthenticationFailed 401, 403, or no API key
│   ├── QuotaExceeded        the account's quota or credit is used up
│   ├── ContentRefused       the provider's content filter blocked the request or the reply
│   ├── RedirectRefused      the server redirects the request to another server
│   ├── MalformedReply       the reply can't be parsed
│   │   └── ReplyTooLarge    the reply exceeds a limit of its size
│   ├── ScriptExhausted      a scripted provider has no reply left
│   └── Unavailable          temporary, can be retried: network error, timeout, 5xx
│       ├── Unreachable      nothing listens at the address, or its host is unknown
│       ├── RateLimited      429
│       └── Overloaded       529
└── RunError                 a run failed; `.result` holds its history, transcript and usage so far
    ├── ContextOverflow      the messages that must be sent exceed the limit
    ├── CompressionFailed    a compression request produced no usable summary
    ├── OutputInvalid        the reply does not match the agent's output type
    ├── NoOutput             the run has no output of the agent's type: it paused, failed, or a limit ended it
    └── BranchesFailed       a parallel group did not meet its `on_error` policy
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any, TypedDict, Unpack


class CrewError(Exception):
    """Base class of all errors that Crew raises."""


_PYDANTIC_ADVICE = re.compile(r"\n *For further information visit https://errors\.pydantic\.dev/\S+")


def describe(error: BaseException) -> str:
    """The error's type and message, without pydantic's links; works even if its `__str__` raises."""
    try:
        text = str(error).strip()

        if "errors.pydantic.dev" in text:  # much faster than the pattern, and a message may have 100 MB
            text = _PYDANTIC_ADVICE.sub("", text).strip()
    except Exception:  # the __str__ of a user's exception may raise anything
        text = "(the error message can't be read: __str__ raised)"

    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def abbreviate(value: object) -> str:
    """The repr of a value, at most 80 characters of it; works even if its `__repr__` raises."""
    try:
        text = repr(value)
    except Exception:  # the __repr__ of a user's object may raise anything
        text = f"<{type(value).__name__}>"

    return text if len(text) <= 80 else f"{text[:79]}…"


def suggest(name: str, names: Iterable[str], label: str = "Available") -> str:
    """A hint that lists the closest matches among the names, or all names after the label if none is close."""
    known = sorted(names)
    close = get_close_matches(name, known, n=3, cutoff=0.5)

    if close:
        return f"Did you mean {' or '.join(repr(n) for n in close)}?"

    return f"{label}: {', '.join(known[:20])}." if known else "None are available."


def _list_problems(subject: str, problems: Sequence[str]) -> str:
    if len(problems) == 1:
        # A problem of a file can start with the file's name, line and column.
        return problems[0] if problems[0].startswith(f"{subject}:") else f"{subject}: {problems[0]}"

    return f"{subject}, {len(problems)} problems:\n" + "\n".join(f"- {problem}" for problem in problems)


class DefinitionError(CrewError):
    """A crew, agent, tool or executor is defined wrongly; `problems` lists everything that is wrong."""

    def __init__(self, subject: str, problems: str | Sequence[str]) -> None:
        self.subject = subject
        self.problems = (problems,) if isinstance(problems, str) else tuple(problems)
        super().__init__(_list_problems(subject, self.problems))


class ConfigError(CrewError):
    """A configuration file is invalid; `problems` lists everything that is wrong, with its location."""

    def __init__(self, path: str, problems: str | Sequence[str]) -> None:
        self.path = path
        self.problems = (problems,) if isinstance(problems, str) else tuple(problems)
        super().__init__(_list_problems(path, self.problems))


@dataclass(frozen=True, slots=True, kw_only=True)
class Violation:
    """One rule that an input or a history breaks: the offending value, its position, and the accepted limit."""

    rule: str
    text: str
    index: int | None = None
    value: object = None
    limit: object = None

    def __str__(self) -> str:
        return self.text


class InvalidInput(CrewError):
    """The input, history or answers are invalid; `violations` lists every broken rule, and the run is unchanged."""

    def __init__(self, violations: Sequence[Violation]) -> None:
        self.violations = tuple(violations)
        super().__init__(_list_problems("Invalid input", [violation.text for violation in self.violations]))


class StoreError(CrewError):
    """The store can't save or load a run."""

    def __init__(self, run_id: str, text: str) -> None:
        self.run_id = run_id
        super().__init__(text)


class RunExists(StoreError):
    """The run id is already in use."""

    def __init__(self, run_id: str) -> None:
        super().__init__(run_id, f"Run {run_id!r} already exists: omit run_id, or choose another one.")


class UnknownRun(StoreError):
    """The store has no run with this id, or it has finished, so that it can't be resumed."""

    def __init__(self, run_id: str, text: str = "", *, is_finished: bool = False) -> None:
        unknown = f"The store has no run {run_id!r}, and no conversation with this id."
        finished = f"The run {run_id!r} has finished and can't be resumed or cancelled."
        self.is_finished = is_finished
        super().__init__(run_id, text or (finished if is_finished else unknown))


class RunExpired(UnknownRun):
    """The run, or the conversation, left a `MemoryStore`, which keeps only the newest ones, `kept` of them.

    `max_age` is for how many seconds it keeps them, if that is limited.
    """

    def __init__(
        self,
        id: str,
        kept: int,
        *,
        what: str = "Run",
        option: str = "max_unfinished",
        max_age: float | None = None,
    ) -> None:
        self.kept, self.max_age = kept, max_age
        options = f"{option}={kept}" if max_age is None else f"{option}={kept}, max_age={max_age:g}"
        text = f"{what} {id!r} is no longer in memory: MemoryStore({options}) keeps the newest ones."
        advice = "Start it again; to keep all runs, raise these bounds or use a file: CrewExecutor(store='runs.db')."
        super().__init__(id, f"{text} {advice}")


class RunConflict(StoreError):
    """Another process changed the run in the meantime; this step was not stored."""

    def __init__(self, run_id: str, expected: int, found: int) -> None:
        self.expected, self.found = expected, found
        super().__init__(
            run_id,
            f"Another process already resumed or cancelled this run. "
            f"Run {run_id!r} is at version {found}, expected {expected}; load it again."
            if found
            else f"Run {run_id!r} has finished or was erased; expected version {expected}.",
        )


class RunActive(CrewError):
    """This executor, or another live process, is already running the run; `owner` describes that process.

    `advice` is for runs that another system drives.
    """

    def __init__(self, run_id: str, owner: str = "", advice: str = "") -> None:
        self.run_id, self.owner = run_id, owner

        if advice:
            super().__init__(f"Run {run_id!r} belongs to {owner}: {advice}.")
            return

        advice = "wait until it ends, or cancel it first"
        super().__init__(
            f"Run {run_id!r} is running in {owner}: {advice}. take_over=True (--take-over) takes it from that process."
            if owner
            else f"Run {run_id!r} is already running in this executor: {advice}."
        )


class ConversationBusy(CrewError):
    """Another turn of this conversation is under way: the run `run_id`, or "" before it is stored.

    `is_enclosing` is whether the call is part of that turn, which a tool may start: it can't wait for its end.
    """

    def __init__(self, conversation_id: str, run_id: str = "", *, is_enclosing: bool = False) -> None:
        self.conversation_id, self.run_id, self.is_enclosing = conversation_id, run_id, is_enclosing
        run = f", run {run_id!r}" if run_id else ""
        wait = "Wait until it ends, or pass on_busy='wait'."
        advice = "This call is part of it: use another conversation." if is_enclosing else wait
        super().__init__(f"Another turn of the conversation {conversation_id!r} is under way{run}. {advice}")


class ConversationPaused(CrewError):
    """The last turn of this conversation, the run `run_id`, waits for answers to `pauses` (of the class `Pause`)."""

    def __init__(self, conversation_id: str, run_id: str, pauses: Sequence[Any]) -> None:
        self.conversation_id, self.run_id, self.pauses = conversation_id, run_id, tuple(pauses)
        pending = "; ".join(f"{pause.id}: {pause.text}" for pause in self.pauses)
        advice = f"Answer with executor.resume({run_id!r}, {{pause_id: answer}}), or pass on_paused='cancel'."
        super().__init__(f"The conversation {conversation_id!r} waits for an answer. {advice} Pending: {pending}")


class MessageNotLoaded(CrewError):
    """A transcript that is loaded in part does not hold the message at `position`; from `start` on it has all."""

    def __init__(self, position: int, start: int) -> None:
        self.position, self.start = position, start
        text = f"The message at position {position} is not loaded: this transcript is complete from {start} on."
        super().__init__(f"{text} Read older messages with `await executor.transcript(conversation_id)`.")


class CrewChanged(CrewError):
    """A stored run can't be resumed with this crew. Nothing was changed.

    `missing` is what the run needs and the crew does not have, `changed` what else is different, if `strict` asks.
    """

    def __init__(self, run_id: str, crew: str, missing: Sequence[str], changed: Sequence[str] = ()) -> None:
        self.run_id, self.crew, self.missing, self.changed = run_id, crew, tuple(missing), tuple(changed)
        why = (
            f"Run {run_id!r} needs {', '.join(missing)}, which the crew {crew!r} does not have."
            if missing
            else f"The crew {crew!r} changed since run {run_id!r} was started: {'; '.join(changed)}."
        )
        advice = "" if missing else ", resume without strict"
        super().__init__(f"{why} Resume it with the crew that started it{advice}, or call executor.cancel(run_id).")


class UnknownPause(CrewError):
    """The run has no pending pause with this id."""

    def __init__(self, run_id: str, unknown: Sequence[str], pending: Sequence[str]) -> None:
        self.run_id, self.unknown, self.pending = run_id, tuple(unknown), tuple(pending)
        expected = ", ".join(map(repr, pending)) or "none"
        super().__init__(
            f"Run {run_id!r} has no pending pause {', '.join(map(repr, unknown))}. Pending pauses: {expected}."
        )


class ProviderFacts(TypedDict, total=False):
    """The keyword arguments that every `ProviderError` accepts."""

    provider: str
    model: str
    status: int | None
    request_id: str
    retry_after: float | None
    may_retry: bool


class ProviderError(CrewError):
    """A model request failed, or its reply is unusable. `may_retry` is False if the service forbids a retry."""

    def __init__(
        self,
        text: str,
        *,
        provider: str = "",
        model: str = "",
        status: int | None = None,
        request_id: str = "",
        retry_after: float | None = None,
        may_retry: bool = True,
    ) -> None:
        self.provider, self.model, self.status = provider, model, status
        self.request_id, self.retry_after, self.may_retry = request_id, retry_after, may_retry
        super().__init__(text)


class RequestRejected(ProviderError):
    """The provider rejects the request; retrying the same request does not help."""


class ContextTooLong(RequestRejected):
    """The request exceeds the model's context window of `maximum` tokens, if the provider reports that number."""

    def __init__(self, text: str, *, maximum: int | None = None, **facts: Unpack[ProviderFacts]) -> None:
        self.maximum = maximum
        super().__init__(text, **facts)


class AuthenticationFailed(ProviderError):
    """The API key is missing, invalid, or lacks permission."""


class QuotaExceeded(ProviderError):
    """The account's quota, credit or spend limit is used up; retrying does not help."""


class ContentRefused(ProviderError):
    """The provider's content filter blocked the request or the reply."""


class MalformedReply(ProviderError):
    """The reply can't be parsed: no choices, invalid JSON, an HTML page."""


class ReplyTooLarge(MalformedReply):
    """The reply exceeds a limit of its size. It is not retried: another attempt would cost as much again."""


class RedirectRefused(ProviderError):
    """The server redirects the request to another server, or in a way that drops it; nothing was sent there."""


class ScriptExhausted(ProviderError):
    """A scripted provider has no reply left."""


class Unavailable(ProviderError):
    """A temporary failure that can be retried: network error, timeout, 5xx."""


class Unreachable(Unavailable):
    """No connection could be made: nothing listens at the address, or its host is unknown."""


class RateLimited(Unavailable):
    """The provider received too many requests (429)."""


class Overloaded(Unavailable):
    """The provider is overloaded (529)."""


class RunError(CrewError):
    """A run failed. `result` is its `RunResult` so far, or None if the run had not started."""

    def __init__(self, text: str, *, result: Any = None) -> None:
        self.result = result  # a RunResult, which this module can't import
        super().__init__(text)


class ContextOverflow(RunError):
    """The messages that must be sent exceed `limit`; `items` holds the name and size of each part."""

    def __init__(self, text: str, *, limit: int, items: Sequence[tuple[str, int]] = (), result: Any = None) -> None:
        self.limit, self.items = limit, tuple(items)
        parts = "; ".join(f"{name}: {size}" for name, size in self.items)
        super().__init__(f"{text} Parts: {parts}." if parts else text, result=result)


class CompressionFailed(RunError):
    """A compression request produced no usable summary; the history is unchanged."""


class OutputInvalid(RunError):
    """The reply does not match the agent's output type, even after one retry."""


class NoOutput(RunError):
    """`result.output` was read, but the run has no output of its agent's type; `result.answer` says why."""


class BranchesFailed(RunError):
    """A parallel group did not meet its `on_error` policy."""
