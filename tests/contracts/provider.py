"""The contract of every Provider: derive a class and provide a `provider` that answers."""

from __future__ import annotations

import asyncio

import pytest

from crew.errors import ProviderError
from crew.interfaces import Delta, ModelReply, ModelRequest, Provider, ToolSpec
from crew.message_rules import PROFILES
from crew.messages import AssistantMessage, ToolCall, ToolMessage, ToolResult, UserMessage

LOOK = ToolSpec(name="look", description="Look.", parameters={"type": "object", "properties": {}})
PLAIN = ModelRequest(messages=(UserMessage("hi", id="m1"),), instructions="Answer.", agent="a", run_id="r")


class ProviderContract:
    """`provider` answers with text, `calling` with a call of `look`, `failing` with an error."""

    @pytest.fixture
    def provider(self) -> Provider:
        raise NotImplementedError

    @pytest.fixture
    def calling(self) -> Provider:
        raise NotImplementedError

    @pytest.fixture
    def failing(self) -> Provider:
        raise NotImplementedError

    def test_provider_has_name_model_and_profile(self, provider: Provider) -> None:
        """The profile exists."""
        assert isinstance(provider, Provider)
        assert provider.name
        assert provider.model
        assert provider.profile in PROFILES

    async def test_reply_has_text_usage_and_model(self, provider: Provider) -> None:
        """The usage is that of one request."""
        reply = await provider.complete(PLAIN)
        assert isinstance(reply, ModelReply)
        assert reply.text
        assert reply.calls == ()
        assert reply.usage.requests == 1
        assert reply.usage.output_tokens > 0
        assert reply.model

    async def test_deltas_add_up_to_the_reply(self, provider: Provider) -> None:
        """Streamed and returned text are equal."""
        pieces: list[Delta] = []
        reply = await provider.complete(PLAIN, pieces.append)
        assert "".join(piece.text for piece in pieces if piece.kind == "text") == reply.text

    async def test_calls_have_ids(self, calling: Provider) -> None:
        """Each call has an id, a name and its arguments as text; the conversation continues with the result."""
        request = ModelRequest(messages=PLAIN.messages, tools=(LOOK,), agent="a", run_id="r")
        reply = await calling.complete(request)
        assert [call.name for call in reply.calls] == ["look"]
        assert all(isinstance(call, ToolCall) and call.id and isinstance(call.arguments, str) for call in reply.calls)
        assert reply.finish_reason == "calls"
        results = tuple(ToolResult(call_id=call.id, name=call.name, text="found") for call in reply.calls)
        asked = AssistantMessage(reply.text, calls=reply.calls, provider_data=reply.provider_data, id="m2")
        messages = (*PLAIN.messages, asked, ToolMessage(results, id="m3"))
        assert await calling.complete(ModelRequest(messages=messages, tools=(LOOK,), agent="a", run_id="r", turn=1))

    async def test_failure_is_a_provider_error(self, failing: Provider) -> None:
        """Errors of an SDK are translated."""
        with pytest.raises(ProviderError):
            await failing.complete(PLAIN)

    async def test_requests_are_not_modified_and_can_be_concurrent(self, provider: Provider) -> None:
        """Requests are values; concurrent ones don't mix."""
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(provider.complete(PLAIN)) for _ in range(20)]

        assert all(task.result().text for task in tasks)
        assert PLAIN.messages == (UserMessage("hi", id="m1"),)
