"""Settings, structured output and images in each service's form, checked on the bytes that it received."""

import json
from itertools import pairwise
from typing import Any, Literal

import pytest
from pydantic import BaseModel, Field

from crew import Agent, CrewExecutor
from crew.errors import DefinitionError, OutputInvalid
from crew.interfaces import ModelSettings
from crew.messages import Image, UserMessage
from crew.providers import Anthropic, OpenAIChat, OpenAIResponses
from tests.support.remote_providers import ERAS, PROTOCOLS, provider, refusal_reasons, retrying_provider, run, worker
from tests.wire import Era, Fault, Model, Protocol, Reply, WireServer


async def sent(protocol: Protocol, era: Era, settings: ModelSettings) -> dict[str, Any]:
    """The body that a request with these settings has; the service took it."""
    async with WireServer(model=Model(era=era)) as server:
        await run(CrewExecutor(worker(provider(server, protocol, era), settings)))
        assert not server.refused, refusal_reasons(server)
        return server.requests[0].body


CASES: list[tuple[Protocol, Era, ModelSettings, dict[str, Any]]] = [
    ("chat", "modern", ModelSettings(max_output_tokens=99), {"max_completion_tokens": 99}),
    ("chat", "modern", ModelSettings(reasoning="low", seed=7), {"reasoning_effort": "low", "seed": 7}),
    ("chat", "classic", ModelSettings(temperature=0.2, stop=("END",)), {"temperature": 0.2, "stop": ["END"]}),
    ("chat", "classic", ModelSettings(tool_choice="required"), {"tool_choice": "required"}),
    (
        "chat",
        "modern",
        ModelSettings(tool_choice="step", parallel_tool_calls=False),
        {"tool_choice": {"type": "function", "function": {"name": "step"}}, "parallel_tool_calls": False},
    ),
    (
        "chat",
        "classic",
        ModelSettings(top_p=0.9, frequency_penalty=0.5, presence_penalty=-0.5),
        {"top_p": 0.9, "frequency_penalty": 0.5, "presence_penalty": -0.5},
    ),
    ("chat", "modern", ModelSettings(extra_body={"service_tier": "flex"}), {"service_tier": "flex"}),
    ("responses", "classic", ModelSettings(top_p=0.9), {"top_p": 0.9}),
    ("responses", "modern", ModelSettings(extra_body={"service_tier": "flex"}), {"service_tier": "flex"}),
    ("messages", "classic", ModelSettings(top_p=0.9, top_k=40), {"top_p": 0.9, "top_k": 40}),
    ("messages", "modern", ModelSettings(extra_body={"service_tier": "auto"}), {"service_tier": "auto"}),
    ("responses", "modern", ModelSettings(max_output_tokens=99), {"max_output_tokens": 99}),
    ("responses", "modern", ModelSettings(reasoning="high"), {"reasoning": {"effort": "high"}}),
    ("responses", "classic", ModelSettings(temperature=0.2), {"temperature": 0.2}),
    ("responses", "modern", ModelSettings(tool_choice="step"), {"tool_choice": {"type": "function", "name": "step"}}),
    ("messages", "modern", ModelSettings(), {"max_tokens": 8192}),
    ("messages", "modern", ModelSettings(max_output_tokens=99, stop=("END",)), {"max_tokens": 99}),
    (
        "messages",
        "modern",
        ModelSettings(reasoning="minimal"),
        {"thinking": {"type": "adaptive"}, "output_config": {"effort": "low"}},
    ),
    ("messages", "modern", ModelSettings(reasoning="none"), {"thinking": {"type": "disabled"}}),
    ("messages", "classic", ModelSettings(temperature=0.2), {"temperature": 0.2}),
    (
        "messages",
        "classic",
        ModelSettings(thinking_tokens=2048, max_output_tokens=100),
        {"thinking": {"type": "enabled", "budget_tokens": 2048}, "max_tokens": 2148},
    ),
    ("messages", "modern", ModelSettings(tool_choice="required"), {"tool_choice": {"type": "any"}}),
    (
        "messages",
        "classic",
        ModelSettings(tool_choice="step", parallel_tool_calls=False),
        {"tool_choice": {"type": "tool", "name": "step", "disable_parallel_tool_use": True}},
    ),
]


@pytest.mark.parametrize(("protocol", "era", "settings", "expected"), CASES)
async def test_a_setting_is_sent_under_the_services_name(
    protocol: Protocol, era: Era, settings: ModelSettings, expected: dict[str, Any]
) -> None:
    """Every setting arrives, under the name that the protocol and era use."""
    body = await sent(protocol, era, settings)
    assert {key: body.get(key) for key in expected} == expected


async def test_thinking_stays_off_if_a_call_is_forced() -> None:
    """The service refuses both together, and the forced call is the more specific setting."""
    settings = ModelSettings(thinking_tokens=2048, tool_choice="required")
    assert "thinking" not in await sent("messages", "classic", settings)


@pytest.mark.parametrize(
    ("model", "settings", "words"),
    [
        ("openai:gpt-5-mini", ModelSettings(temperature=0.5), "temperature=0.5 is not supported"),
        ("openai:gpt-4o", ModelSettings(reasoning="high"), "reasoning='high' is not supported"),
        ("openai-responses:gpt-5", ModelSettings(seed=1), "seed=1 is not supported"),
        ("anthropic:claude-opus-4-8", ModelSettings(thinking_tokens=2000), "use reasoning="),
        ("anthropic:claude-sonnet-4-5", ModelSettings(reasoning="high"), "thinking_tokens="),
        ("anthropic:claude-sonnet-4-5", ModelSettings(thinking_tokens=5), "use at least 1024"),
        ("anthropic:claude-sonnet-4-5", ModelSettings(thinking_tokens=2000, top_k=5), "exclude each other"),
        ("anthropic:claude-opus-4-8", ModelSettings(top_p=0.5), "top_p=0.5 is not supported"),
        ("openai-responses:gpt-4o", ModelSettings(presence_penalty=0.5), "presence_penalty=0.5 is not supported"),
        ("openai:gpt-4o", ModelSettings(temperature=0.5, extra_body={"temperature": 1}), "repeats temperature="),
        ("openai:gpt-5", ModelSettings(extra_body={"max_completion_tokens": 9}), "use max_output_tokens="),
        ("openai:gpt-5", ModelSettings(reasoning="low", extra_body={"reasoning_effort": "x"}), "repeats reasoning="),
        ("anthropic:claude-sonnet-4-5", ModelSettings(thinking_tokens=2000, temperature=0.5), "exclude each other"),
    ],
)
def test_an_unsupported_setting_fails_when_the_executor_is_created(
    model: str, settings: ModelSettings, words: str
) -> None:
    """No setting is silently dropped: the error names the value and an alternative."""
    with pytest.raises(DefinitionError) as caught:
        CrewExecutor(Agent("a", instructions="Hi.", model=model, settings=settings))

    assert words in str(caught.value)


def test_a_backup_must_support_the_settings_too() -> None:
    """The error is raised before the backup is needed."""
    settings = ModelSettings(reasoning="high")

    with pytest.raises(DefinitionError, match="reasoning='high' is not supported"):
        CrewExecutor(Agent("a", model="openai:gpt-5", backup="openai:gpt-4o", settings=settings))

    CrewExecutor(Agent("a", model="openai:gpt-5", backup="anthropic:claude-opus-4-8", settings=settings))


@pytest.mark.parametrize(
    ("made", "profile"),
    [
        (OpenAIChat("gpt-5-mini"), "openai-chat"),
        (OpenAIChat("o4-mini"), "openai-chat"),
        (OpenAIChat("gpt-4o"), "openai-chat-classic"),
        (OpenAIChat("qwen3:8b"), "compatible"),
        (OpenAIResponses("gpt-4.1"), "openai-responses-classic"),
        (OpenAIResponses("gpt-5"), "openai-responses"),
        (Anthropic("claude-3-7-sonnet-20250219"), "anthropic-classic"),
        (Anthropic("claude-sonnet-4-5-20250929"), "anthropic-classic"),
        (Anthropic("claude-opus-4-20250514"), "anthropic-classic"),
        (Anthropic("claude-opus-4-7"), "anthropic-4.7"),
        (Anthropic("claude-opus-4-8"), "anthropic"),
        (Anthropic("claude-sonnet-5"), "anthropic"),
    ],
    ids=repr,
)
def test_the_profile_follows_from_the_models_name(made: Any, profile: str) -> None:
    """Unless a profile is given."""
    assert made.profile == profile


def test_an_unknown_profile_is_refused_with_the_nearest() -> None:
    """The error suggests the nearest name."""
    with pytest.raises(DefinitionError, match="openai-chat"):
        OpenAIChat("gpt-5", profile="openai-chats")


class Part(BaseModel):
    name: str = Field(min_length=1, description="What it is called.")
    price: float | None = Field(default=None, ge=0)


class Order(BaseModel):
    id: int
    state: Literal["open", "sent"] = "open"
    parts: list[Part] = []


class Free(BaseModel):
    words: dict[str, int]


GOOD = '{"id": 1, "state": "sent", "parts": [{"name": "bolt", "price": 0.5}]}'


@pytest.mark.parametrize("streamed", [False, True], ids=["plain", "streamed"])
@pytest.mark.parametrize("era", ERAS)
@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_structured_output_uses_the_services_own_form(protocol: Protocol, era: Era, streamed: bool) -> None:
    """The request holds the schema in the form that the service enforces; the result is an instance of the type."""
    async with WireServer([GOOD], model=Model(era=era)) as server:
        agent = Agent("clerk", instructions="Fill in.", model=provider(server, protocol, era), output=Order)
        result = await run(CrewExecutor(agent), streamed=streamed)
        assert not server.refused, refusal_reasons(server)
        body = server.requests[0].body

    assert result.output == Order.model_validate_json(GOOD)
    form = {
        "chat": lambda: body["response_format"]["json_schema"],
        "responses": lambda: body["text"]["format"],
        "messages": lambda: body["output_config"]["format"],
    }[protocol]()
    assert form["schema"]["additionalProperties"] is False
    assert form.get("strict") is (None if protocol == "messages" else True)


@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_an_invalid_structured_reply_is_repaired_once(protocol: Protocol) -> None:
    """The model gets the validation error; a second invalid reply raises OutputInvalid."""
    async with WireServer(["{}", GOOD, "{}", "nonsense"]) as server:
        agent = Agent("clerk", instructions="Fill in.", model=provider(server, protocol, "classic"), output=Order)
        assert (await CrewExecutor(agent).execute("Go.")).output.id == 1
        assert "Field required" in server.requests[1].raw.decode()

        with pytest.raises(OutputInvalid):
            await CrewExecutor(agent).execute("Go.")

        assert not server.refused, refusal_reasons(server)


@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_a_schema_that_can_not_be_strict_is_still_sent(protocol: Protocol) -> None:
    """An object with arbitrary keys can't be strict: the schema is sent non-strict, or in the system prompt."""
    async with WireServer(['{"words": {"a": 1}}']) as server:
        agent = Agent("clerk", instructions="Fill in.", model=provider(server, protocol, "classic"), output=Free)
        assert (await CrewExecutor(agent).execute("Go.")).output == Free(words={"a": 1})
        assert not server.refused, refusal_reasons(server)
        assert "additionalProperties" in server.requests[0].raw.decode().replace("\\", "")


@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_a_structured_reply_can_be_read_while_it_streams(protocol: Protocol) -> None:
    """`events.partial` is the object so far; a restart empties it."""
    long = Order(id=7, parts=[Part(name="a long name " * 9, price=n) for n in range(9)])

    async with WireServer(lambda *_: long.model_dump_json(), faults={0: Fault("cut")}) as server:
        agent = Agent(
            "clerk", instructions="Fill in.", model=retrying_provider(server, protocol, "classic"), output=Order
        )
        stream = CrewExecutor(agent).execute_stream("Go.")
        assert stream.partial is None
        sizes = []

        async with stream as events:
            async for event in events:
                if event.kind == "text_delta" and events.partial is not None:
                    sizes.append(len(str(events.partial)))
                    assert events.partial.get("id", 7) == 7

    assert server.count == 2
    assert stream.partial == json.loads(long.model_dump_json())
    assert stream.result.output == long
    assert len(set(sizes)) > 3, "it grew"
    assert any(after < before for before, after in pairwise(sizes)), "and restarted once"


@pytest.mark.parametrize("era", ERAS)
@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_a_user_message_may_hold_images(protocol: Protocol, era: Era) -> None:
    """By URL, or as data with its media type."""
    images = (Image(url="https://example.org/a.png"), Image(data="aGVsbG8=", media_type="image/jpeg"))

    async with WireServer(lambda *_: Reply(text="Two pictures."), model=Model(era=era)) as server:
        agent = Agent("eye", instructions="Look.", model=provider(server, protocol, era))
        await CrewExecutor(agent).execute(UserMessage("What is this?", images=images))
        assert not server.refused, refusal_reasons(server)
        wire = json.dumps(server.requests[0].body)

    assert "https://example.org/a.png" in wire
    assert "image/jpeg" in wire
    assert "aGVsbG8=" in wire


async def test_the_default_output_limit_is_lowered_to_fit_the_window() -> None:
    """Anthropic requires a limit; if the default is too large for a small window, it is lowered permanently."""
    async with WireServer(model=Model(window=6000)) as server:
        executor = CrewExecutor(worker(provider(server, "messages", "classic")))
        await run(executor)
        await run(executor)
        assert [request.body["max_tokens"] for request in server.requests] == [8192, 1500, 1500]


@pytest.mark.parametrize("streams", [False, True])
@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_extra_headers_are_sent_with_each_request(protocol: Protocol, streams: bool) -> None:
    """Of two agents that share a provider each sends its own, also once requests reuse their head."""
    async with WireServer() as server:
        shared = provider(server, protocol, "classic")
        plain = CrewExecutor(Agent("plain", model=shared))
        other = CrewExecutor(Agent("other", model=shared, settings=ModelSettings(extra_headers={"X-Team": "blue"})))

        for executor in (other, plain, plain, plain, other, plain):
            if streams:
                async with executor.execute_stream("Hello.") as events:
                    async for _ in events:
                        pass
            else:
                await executor.execute("Hello.")

        assert not server.refused, refusal_reasons(server)
        sent = [request.headers.get("x-team") for request in server.requests]
        assert sent == ["blue", None, None, None, "blue", None]


async def test_secrets_in_headers_are_removed_everywhere(caplog: pytest.LogCaptureFixture) -> None:
    """The value of a header that looks like a secret appears in no message, event or error."""
    secret = "tok-0123456789-abcdef"
    settings = ModelSettings(extra_headers={"X-Proxy-Token": secret, "X-Team": "blue-team-0123"})
    assert secret not in repr(settings)

    async with WireServer([f"Your token is {secret}, blue-team-0123."]) as server:
        agent = Agent("a", model=provider(server, "chat"), settings=settings)
        result = await CrewExecutor(agent).execute("Hello.")

    assert secret not in str(result.transcript)
    assert "blue-team-0123" in result.output
    assert secret not in caplog.text


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"extra_body": {"model": "x"}}, "extra_body['model'] is not accepted"),
        ({"extra_body": {"messages": []}}, "extra_body['messages'] is not accepted"),
        ({"extra_body": {"a": object()}}, "extra_body"),
        ({"extra_headers": {"a b": "c"}}, "not the name of an HTTP header"),
        ({"extra_headers": {"a": "c\nd"}}, "a character that a header can't hold"),
        ({"extra_headers": {"Content-Length": "5"}}, "the HTTP client sets this header"),
        ({"extra_headers": {"a": 5}}, "extra_headers"),
    ],
)
def test_extras_that_replace_what_crew_writes_are_refused(settings: dict[str, Any], words: str) -> None:
    """When the settings are built, so that YAML shows the place."""
    with pytest.raises(DefinitionError) as caught:
        ModelSettings(**settings)

    assert words in str(caught.value)


def test_extras_are_copied() -> None:
    """A change of the caller's objects has no effect."""
    body: dict[str, Any] = {"a": {"b": 1}}
    settings = ModelSettings(extra_body=body)
    body["a"]["b"] = 2
    assert settings.extra_body == {"a": {"b": 1}}
