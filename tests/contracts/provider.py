"""What every Provider must do: derive a class, give it a `provider` that answers, and these tests run against it."""

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
    """`provider` answers in words, `calling` with a call of `look`, `failing` with an error."""

    @pytest.fixture
    def provider(self) -> Provider:
        raise NotImplementedError

    @pytest.fixture
    def calling(self) -> Provider:
        raise NotImplementedError

    @pytest.fixture
    def failing(self) -> Provider:
        raise NotImplementedError

    def test_it_says_who_it_is(self, provider: Provider) -> None:
        """A name, a model, and a profile that exists."""
        assert isinstance(provider, Provider)
        assert provider.name
        assert provider.model
        assert provider.profile in PROFILES

    async def test_words_come_back(self, provider: Provider) -> None:
        """Text, usage of one request, and the model's name."""
        reply = await provider.complete(PLAIN)
        assert isinstance(reply, ModelReply)
        assert reply.text
        assert reply.calls == ()
        assert reply.usage.requests == 1
        assert reply.usage.output_tokens > 0
        assert reply.model

    async def test_pieces_add_up_to_the_reply(self, provider: Provider) -> None:
        """What is streamed is what is returned."""
        pieces: list[Delta] = []
        reply = await provider.complete(PLAIN, pieces.append)
        assert "".join(piece.text for piece in pieces if piece.kind == "text") == reply.text

    async def test_calls_come_back_with_ids(self, calling: Provider) -> None:
        """Each call has an id, a name and arguments as text; and the conversation goes on with its result."""
        request = ModelRequest(messages=PLAIN.messages, tools=(LOOK,), agent="a", run_id="r")
        reply = await calling.complete(request)
        assert [call.name for call in reply.calls] == ["look"]
        assert all(isinstance(call, ToolCall) and call.id and isinstance(call.arguments, str) for call in reply.calls)
        assert reply.finish_reason == "calls"
        results = tuple(ToolResult(call_id=call.id, name=call.name, text="found") for call in reply.calls)
        asked = AssistantMessage(reply.text, calls=reply.calls, provider_data=reply.provider_data, id="m2")
        messages = (*PLAIN.messages, asked, ToolMessage(results, id="m3"))
        assert await calling.complete(ModelRequest(messages=messages, tools=(LOOK,), agent="a", run_id="r", turn=1))

    async def test_a_failure_is_one_of_ours(self, failing: Provider) -> None:
        """Errors of a vendor are translated at the door."""
        with pytest.raises(ProviderError):
            await failing.complete(PLAIN)

    async def test_a_request_is_left_alone_and_may_be_sent_at_once_by_many(self, provider: Provider) -> None:
        """Requests are values; concurrent ones don't mix."""
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(provider.complete(PLAIN)) for _ in range(20)]

        assert all(task.result().text for task in tasks)
        assert PLAIN.messages == (UserMessage("hi", id="m1"),)
