"""From an answer of Anthropic's Messages, whole or in pieces, to a reply."""

from __future__ import annotations

import re
from typing import Any

from crew.errors import ContentRefused, RequestRejected
from crew.interfaces import Delta, FinishReason, ModelReply, ModelRequest, ModelSettings, OnDelta
from crew.message_rules.profiles import get_profile
from crew.messages import ProviderData, ToolCall, Usage
from crew.providers.anthropic_render import DEFAULT_OUTPUT_TOKENS, check_anthropic_settings, render_request
from crew.providers.anthropic_turns import STALE_REASONING, THINKING_BLOCKS, Writer
from crew.providers.connection import Connection
from crew.providers.sdk_clients import anthropic_client
from crew.providers.wire import drop_stale_reasoning, priced_usage, to_json_bytes

_FINISH: dict[str, FinishReason] = {
    "end_turn": "stop",
    "stop_sequence": "stop",
    "pause_turn": "stop",
    "tool_use": "calls",
    "max_tokens": "length",
    "model_context_window_exceeded": "length",
    "refusal": "refusal",
}
_SIGNED_FIELDS = {"thinking": ("type", "thinking", "signature"), "redacted_thinking": ("type", "data")}


def decode_reply(answer: Any, writer: Writer) -> ModelReply:
    """The reply in a whole answer."""
    blocks = answer["content"]
    finish = answer.get("stop_reason") or "end_turn"
    raw = {
        place: to_json_bytes(block["input"]).decode()
        for place, block in enumerate(blocks)
        if block["type"] == "tool_use"
    }

    if finish == "max_tokens" and len(blocks) - 1 in raw:
        # The service parses what was written of a call that the limit cut off, and hands it out as if it were whole.
        # Without its last character it is seen to be none, and is not run.
        raw[len(blocks) - 1] = raw[len(blocks) - 1][:-1]

    return _build_reply(answer, blocks, raw, finish, answer.get("usage") or {}, writer)


def _build_reply(
    head: Any, blocks: list[Any], raw: dict[int, str], finish: str, usage: Any, writer: Writer
) -> ModelReply:
    text = "".join(block["text"] for block in blocks if block["type"] == "text")
    calls = tuple(
        ToolCall(id=blocks[place]["id"], name=blocks[place]["name"], arguments=arguments)
        for place, arguments in sorted(raw.items())
    )
    reason = _FINISH.get(finish, "calls" if calls else "stop")

    if reason == "refusal" and not text and not calls:
        raise ContentRefused(f"{writer[0]} ({writer[1]}) refused to answer.", provider=writer[0], model=writer[1])

    return ModelReply(
        text=text,
        calls=calls,
        usage=decode_usage(usage, writer),
        finish_reason=reason,
        provider_data=_thinking_items(blocks, writer),
        model=head.get("model") or writer[1],
        response_id=head.get("id") or "",
    )


def _thinking_items(blocks: list[Any], writer: Writer) -> ProviderData | None:
    """Thinking as it was signed, and where it stood among text and calls; of those only the place is kept."""
    if not any(block["type"] in THINKING_BLOCKS for block in blocks):
        return None

    items: list[dict[str, Any]] = []

    for block in blocks:
        kind = block["type"]

        if kind in THINKING_BLOCKS:
            items.append({key: block[key] for key in _SIGNED_FIELDS[kind]})
        elif kind == "text":
            items.append({"type": kind, "length": len(block["text"])})
        elif kind == "tool_use":
            items.append({"type": kind, "call_id": block["id"]})

    return ProviderData(provider=writer[0], model=writer[1], items=tuple(items))


def decode_usage(bill: Any, writer: Writer) -> Usage:
    """What Anthropic bills: its input excludes what was read from or written to the cache."""
    read, write = bill.get("cache_read_input_tokens") or 0, bill.get("cache_creation_input_tokens") or 0
    details = bill.get("output_tokens_details") or {}
    return priced_usage(
        *writer,
        input=(bill.get("input_tokens") or 0) + read + write,
        output=bill.get("output_tokens") or 0,
        read=read,
        write=write,
        reasoning=details.get("thinking_tokens") or 0,
    )


class StreamDecoder:
    """Puts the pieces of a streamed answer together; a call's arguments stay the text that the model wrote."""

    def __init__(self, on_delta: OnDelta) -> None:
        self._on_delta = on_delta
        self._head: dict[str, Any] = {}
        self._usage: dict[str, Any] = {}
        self._blocks: list[dict[str, Any]] = []
        self._raw: dict[int, str] = {}
        self._finish = ""
        self.is_complete = False

    def add(self, event: Any) -> None:
        """One event."""
        match event["type"]:
            case "message_start":
                self._head = event["message"]
                self._usage = dict(self._head.get("usage") or {})
            case "content_block_start":
                block = dict(event["content_block"])
                self._blocks.append(block)

                if block["type"] == "tool_use":
                    self._raw[len(self._blocks) - 1] = ""
            case "content_block_delta":
                self._add_delta(event["index"], event["delta"])
            case "message_delta":
                self._finish = event["delta"].get("stop_reason") or ""
                self._usage.update((k, v) for k, v in (event.get("usage") or {}).items() if v is not None)
            case "message_stop":
                self.is_complete = True
            case _:
                pass  # pings, and kinds that are not there yet

    def _add_delta(self, index: int, delta: Any) -> None:
        block = self._blocks[index]

        match delta["type"]:
            case "text_delta":
                block["text"] += delta["text"]
                self._on_delta(Delta(text=delta["text"]))
            case "thinking_delta":
                block["thinking"] += delta["thinking"]
                self._on_delta(Delta(text=delta["thinking"], kind="thinking"))
            case "signature_delta":
                block["signature"] = delta["signature"]
            case "input_json_delta":
                if text := delta["partial_json"]:
                    self._raw[index] += text
                    self._on_delta(Delta(text=text, kind="arguments"))
            case _:
                pass  # citations, and kinds that are not there yet

    def reply(self, writer: Writer) -> ModelReply:
        """The whole reply."""
        return _build_reply(self._head, self._blocks, self._raw, self._finish, self._usage, writer)


_VERSION = re.compile(r"claude-(?:[a-z]+-)?(\d+)(?:[-.](\d{1,2})(?!\d))?")
_BAD_SIGNATURE = re.compile(r"Invalid `(signature|data)` in|thinking` blocks? in the latest|cannot be modified")

_OUTPUT_TOO_LARGE = re.compile(r"`max_tokens` exceed context limit: \d+ \+ \d+ > (\d+)")


class Anthropic:
    """Answers through Anthropic's Messages: `Anthropic("claude-sonnet-4-5")`.

    Key and address come from ANTHROPIC_API_KEY and ANTHROPIC_BASE_URL where they are not given. `profile` names the
    rules that the requests keep; by default they follow from the model's version. `timeout` is for one request, in
    seconds.
    """

    is_remote = True

    def __init__(
        self,
        model: str,
        *,
        base_url: str | None = None,
        api_key: str | None = None,
        profile: str | None = None,
        timeout: float = 300.0,
        name: str = "anthropic",
    ) -> None:
        self.name, self.model = name, model
        self.secrets = () if api_key is None else (api_key,)
        self._rules = get_profile(profile or _default_profile(model))
        self.profile = self._rules.name
        self._output = DEFAULT_OUTPUT_TOKENS
        self._connection = Connection(
            lambda: anthropic_client(api_key=api_key, base_url=base_url, timeout=timeout),
            "/v1/messages",
            name,
            model,
        )

    def __repr__(self) -> str:
        return f"Anthropic({self.model!r}, profile={self.profile!r})"

    def check(self, settings: ModelSettings) -> None:
        """Whether this model knows these settings."""
        check_anthropic_settings(settings, self._rules, self.model)

    async def complete(self, request: ModelRequest, on_delta: OnDelta | None = None) -> ModelReply:
        """Ask, and wait for the whole reply; pieces of it go to `on_delta` on their way."""
        try:
            return await self._ask(request, on_delta)
        except RequestRejected as error:
            distrusted = _BAD_SIGNATURE.search(str(error)) and drop_stale_reasoning(request, STALE_REASONING)

            if not distrusted and not (request.settings.max_output_tokens is None and self._lowers_output_limit(error)):
                raise

        # Thinking that the service does not know again is dropped whole, an output limit of ours that is too large
        # for the window is lowered, and the same question asked once more.
        return await self._ask(request, on_delta)

    def _lowers_output_limit(self, error: RequestRejected) -> bool:
        """Whether our own output limit was what did not fit, and a smaller one is known now."""
        found = _OUTPUT_TOO_LARGE.search(str(error))
        fitting = int(found[1]) // 4 if found else self._output

        if fitting >= self._output:
            return False

        self._output = fitting
        return True

    async def _ask(self, request: ModelRequest, on_delta: OnDelta | None) -> ModelReply:
        writer = (self.name, self.model)
        body = render_request(request, writer, self._rules, stream=on_delta is not None, default_output=self._output)

        if on_delta is None:
            return await self._connection.send(body, lambda answer: decode_reply(answer, writer))

        gathering = StreamDecoder(on_delta)
        await self._connection.stream(body, gathering.add)

        if not gathering.is_complete:
            raise self._connection.truncated_stream()

        return gathering.reply(writer)

    async def aclose(self) -> None:
        """Close the connections of the running event loop; they open again on the next request."""
        await self._connection.aclose()


def _default_profile(model: str) -> str:
    found = _VERSION.search(model)

    if not found:
        return "anthropic"

    version = (int(found[1]), int(found[2] or 0))
    return "anthropic-classic" if version < (4, 7) else "anthropic-4.7" if version < (4, 8) else "anthropic"
