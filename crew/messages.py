"""Message types, the manifest of a request, token usage, and the append-only transcript; all are immutable values."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, islice
from operator import is_
from typing import Annotated, Any, Literal, Self, overload

from pydantic import Discriminator, GetCoreSchemaHandler
from pydantic_core import CoreSchema, core_schema

from crew.errors import MessageNotLoaded
from crew.token_usage import Usage as Usage  # noqa: PLC0414 - this module exports it
from crew.token_usage import add_costs as add_costs  # noqa: PLC0414 - this module exports it

OMITTED = "[Omitted]"
NO_OUTPUT = "(no output)"
SUMMARY_HEADING = "[Conversation Summary]"

Origin = Literal["user", "route", "then", "branch", "join", "answer", "marker", "output"]
"""The source of a user message: the user, an answer to a pause, or the framework (route, then, branch, …)."""

_LONE_SURROGATE = re.compile("[\ud800-\udfff]")


def replace_surrogates(text: str) -> str:
    """Replace lone surrogates, which can't be encoded as UTF-8, by U+FFFD."""
    return text if text.isascii() else _LONE_SURROGATE.sub("\ufffd", text)


class HasCache:
    """A private cache on a frozen value, for its rendered forms; equality and serialization ignore it."""

    __slots__ = ("_cache",)
    _cache: dict[str, Any]

    def cache(self) -> dict[str, Any]:
        """The cache, created on first use; its keys are set by the modules that store values in it."""
        try:
            cache = self._cache
        except AttributeError:
            cache = {}
            object.__setattr__(self, "_cache", cache)  # the subclasses are frozen

        return cache


@dataclass(frozen=True, slots=True, kw_only=True)
class Image:
    """An image in a user message: a URL, or base64 data with its media type."""

    url: str = ""
    data: str = ""
    media_type: str = "image/png"


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCall:
    """A tool call that the model requested; `arguments` is the JSON text exactly as the model wrote it."""

    id: str
    name: str
    arguments: str = "{}"


def replace_surrogates_in_call(call: ToolCall) -> ToolCall:
    """Replace lone surrogates in the id, name and arguments of a call."""
    if call.id.isascii() and call.name.isascii() and call.arguments.isascii():
        return call

    return replace(
        call,
        id=replace_surrogates(call.id),
        name=replace_surrogates(call.name),
        arguments=replace_surrogates(call.arguments),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolResult:
    """The result of one tool call, as the text that is sent to the model. `retry`: the tool raised `ToolRetry`."""

    call_id: str
    text: str
    name: str = ""
    outcome: Literal["ok", "error", "unknown", "retry"] = "ok"


@dataclass(frozen=True, slots=True, kw_only=True)
class ProviderData:
    """Opaque parts of a reply (thinking, reasoning items); sent back only to the provider and model that wrote them.

    An item that belongs to a tool call has its id under `call_id`, so that both are removed together.
    """

    provider: str
    model: str
    items: tuple[dict[str, Any], ...] = ()


Disposition = Literal["kept", "masked", "cut", "text_only", "marker", "summarised", "evicted"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ManifestLine:
    """One message of a request, or one that was removed from it: its treatment, the rule applied, and its tokens."""

    id: str
    disposition: Disposition
    reason: str = ""
    tokens: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """What one request contained, stored as the difference from the same agent's previous request.

    The first `same_messages` messages equal those of the previous request; `tail` lists the messages after them, in
    order, and `removed` those that the previous request contained and this one does not. `moved_by` names the rule
    that changed the front of the request; it is empty if the front did not change. `digest` is a hash of the whole
    request and `prefix_digest` a hash of the part that is unchanged; it equals the previous request's `digest` if the
    front did not change. `cached_predicted` estimates how many of `tokens_estimated` the prompt cache serves.
    """

    agent: str
    turn: int
    model: str
    messages: int
    tokens_estimated: int
    count_method: Literal["estimated", "calibrated", "exact"]
    overhead_tokens: int
    window: int
    window_source: str
    same_messages: int
    moved_by: str
    digest: str
    prefix_digest: str
    cached_predicted: int
    tail: tuple[ManifestLine, ...] = ()
    removed: tuple[ManifestLine, ...] = ()
    repairs: tuple[str, ...] = ()
    tokens_billed: int | None = None
    cached_billed: int | None = None
    output_billed: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SystemMessage(HasCache):
    """An instruction inside the conversation; never evicted."""

    text: str = field(kw_only=False)
    id: str = ""
    time: float = 0.0
    role: Literal["system"] = "system"


@dataclass(frozen=True, slots=True, kw_only=True)
class UserMessage(HasCache):
    """A message of the user, or of the framework on the user's behalf; `origin` says which."""

    text: str = field(kw_only=False)
    images: tuple[Image, ...] = ()
    origin: Origin = "user"
    id: str = ""
    time: float = 0.0
    role: Literal["user"] = "user"


@dataclass(frozen=True, slots=True, kw_only=True)
class AssistantMessage(HasCache):
    """A model's reply: text, tool calls, or both. In the transcript, `manifest` describes the request it answers."""

    text: str = field(default="", kw_only=False)
    calls: tuple[ToolCall, ...] = ()
    agent: str = ""
    provider_data: ProviderData | None = None
    manifest: Manifest | None = field(default=None, compare=False, repr=False)
    id: str = ""
    time: float = 0.0
    role: Literal["assistant"] = "assistant"


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolMessage(HasCache):
    """The results of all tool calls of one assistant message, in the order of the calls."""

    results: tuple[ToolResult, ...] = field(kw_only=False)
    id: str = ""
    time: float = 0.0
    role: Literal["tool"] = "tool"


@dataclass(frozen=True, slots=True, kw_only=True)
class SummaryMessage(HasCache):
    """Replaces the messages whose ids are in `covers`; sent to the model as user text that is marked as data."""

    text: str = field(kw_only=False)
    covers: tuple[str, ...] = ()
    id: str = ""
    time: float = 0.0
    role: Literal["summary"] = "summary"


Message = Annotated[
    SystemMessage | UserMessage | AssistantMessage | ToolMessage | SummaryMessage,
    Discriminator("role"),
]


def message_size(message: Message) -> int:
    """How many messages this counts as: a tool message counts one for each result."""
    return max(1, len(message.results)) if isinstance(message, ToolMessage) else 1


def opens_conversation(message: Message) -> bool:
    """Whether a conversation can start with this message; providers require a user message first."""
    return isinstance(message, UserMessage | SummaryMessage)


def is_empty(message: Message) -> bool:
    """Whether the message has no content; providers reject such messages."""
    match message:
        case AssistantMessage():
            return not message.calls and not message.text.strip()
        case UserMessage():
            return not message.images and not message.text.strip()
        case ToolMessage():
            return not message.results
        case SystemMessage() | SummaryMessage():
            return not message.text.strip()


def mask_results(message: ToolMessage) -> ToolMessage:
    """The message with the text of every result omitted; cached, so that it is rendered once."""
    cache = message.cache()
    masked: ToolMessage | None = cache.get("masked")

    if masked is None:
        masked = replace(message, results=tuple(replace(result, text=OMITTED) for result in message.results))
        cache["masked"] = masked

    return masked


def without_calls(message: AssistantMessage) -> AssistantMessage:
    """The reply without its tool calls; cached, so that it is rendered once."""
    cache = message.cache()
    text_only: AssistantMessage | None = cache.get("text_only")

    if text_only is None:
        text_only = cache["text_only"] = replace(message, calls=(), provider_data=None)

    return text_only


class Transcript(Sequence[Message]):
    """The messages of a run by their positions, in order; append-only.

    `append` returns a new transcript. Transcripts share one list, and each one stores its length, so that an append
    takes constant time. A second append to the same transcript copies the list.

    A stored conversation is loaded in part: of the positions before `start`, a transcript then has only the messages in
    `older`. The length counts all positions, an iteration yields the loaded messages.
    """

    __slots__ = ("_checked", "_items", "_older", "_size", "start")

    def __init__(
        self, messages: Sequence[Message] = (), *, start: int = 0, older: Mapping[int, Message] | None = None
    ) -> None:
        self._items, self.start = list(messages), start
        self._older = dict(sorted(older.items())) if older else {}
        self._size = start + len(self._items)
        # Shared with the list: how many of its first messages `mapped` left unchanged, and under which mark.
        self._checked: list[tuple[object, int]] = [(None, 0)]

    def append(self, message: Message) -> Self:
        """A new transcript that ends with this message."""
        own = self._size - self.start
        items = self._items if len(self._items) == own else self._items[:own]
        items.append(message)
        return self._with(items, self._older, self._size + 1)

    def _with(self, items: list[Message], older: dict[int, Message], size: int) -> Self:
        made = object.__new__(type(self))
        made._items, made._older, made._size, made.start = items, older, size, self.start
        made._checked = self._checked if items is self._items else [(None, 0)]
        return made

    def get(self, position: int) -> Message | None:
        """The message at this position; None if there is none, or if it is not loaded."""
        if self.start <= position < self._size:
            return self._items[position - self.start]

        return self._older.get(position)

    def numbered(self) -> Iterator[tuple[int, Message]]:
        """The loaded messages with their positions."""
        return chain(self._older.items(), enumerate(self._recent(), self.start))

    def newest_first(self) -> Iterator[tuple[int, Message]]:
        """The loaded messages with their positions, from the end."""
        for index in range(self._size - self.start - 1, -1, -1):
            yield self.start + index, self._items[index]

        yield from reversed(self._older.items())

    def until(self, size: int) -> Transcript:
        """The transcript of the first positions, so many of them; not fewer than `start`."""
        return self._with(self._items, self._older, max(size, self.start))

    def loaded(self) -> Transcript:
        """The loaded messages alone, numbered from 0."""
        return Transcript(list(self)) if self.start else self

    def mapped(self, change: Callable[[Message], Message], mark: object) -> Transcript:
        """Each loaded message changed, at its position; this transcript if no message differs.

        Messages that did not change before under the same mark are not looked at again.
        """
        own, (known, count) = self._size - self.start, self._checked[0]
        first = min(count, own) if known is mark else 0
        before = self._items[first:own]
        after, older = [*map(change, before)], {place: change(item) for place, item in self._older.items()}

        if all(map(is_, after, before)) and all(map(is_, older.values(), self._older.values())):
            self._checked[0] = (mark, max(own, count) if known is mark else own)
            return self

        return self._with([*self._items[:first], *after], older, self._size)

    def _recent(self) -> Iterator[Message]:
        return islice(self._items, self._size - self.start)

    def __len__(self) -> int:
        return self._size

    @overload
    def __getitem__(self, index: int) -> Message: ...
    @overload
    def __getitem__(self, index: slice) -> list[Message]: ...
    def __getitem__(self, index: int | slice) -> Message | list[Message]:
        if isinstance(index, slice):
            positions = range(*index.indices(self._size))
            return [self[i] for i in positions] if self.start else [self._items[i] for i in positions]

        position = range(self._size)[index]

        if position >= self.start:
            return self._items[position - self.start]

        try:
            return self._older[position]
        except KeyError:
            raise MessageNotLoaded(position, self.start) from None

    def __iter__(self) -> Iterator[Message]:
        return chain(self._older.values(), self._recent())

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Transcript) and self._size == other._size and list(self) == list(other)

    def __hash__(self) -> int:
        return hash(self._size)

    def __repr__(self) -> str:
        return f"Transcript({self._size} messages)"

    @classmethod
    def __get_pydantic_core_schema__(cls, source: object, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_after_validator_function(
            cls,
            handler(list[Message]),
            serialization=core_schema.plain_serializer_function_ser_schema(list, return_schema=handler(list[Message])),
        )
