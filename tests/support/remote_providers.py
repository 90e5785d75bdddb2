"""The ways to a model: three protocols, two eras, plain and streamed; and runs on them."""

from collections.abc import Sequence
from typing import Any

import anthropic  # noqa: F401 - loaded here, so that no time limit of a test pays for it
import openai  # noqa: F401 - as above

from crew import Agent, CrewExecutor, tool
from crew.interfaces import ModelSettings, Provider
from crew.providers import Anthropic, OpenAIChat, OpenAIResponses, Retrying, RetryPolicy
from crew.runs import RunResult
from crew.runs.events import Event
from tests.wire import Era, Protocol, WireServer

PROTOCOLS: tuple[Protocol, ...] = ("chat", "responses", "messages")
ERAS: tuple[Era, ...] = ("classic", "modern")
MODELS = {"chat": "gpt-5", "responses": "gpt-5", "messages": "claude-sonnet-4-5"}
KEY = "sk-secret-0123456789"
TRIES = RetryPolicy(attempts=4, timeout=30.0)
IMPATIENT = RetryPolicy(attempts=4, timeout=0.3)


async def no_sleep(_: float) -> None:
    """Waits cost a test nothing."""


def provider(server: WireServer, protocol: Protocol, era: Era = "modern", **more: Any) -> Provider:
    """A provider of ours that talks to the server, as its users make it."""
    suffix = "" if era == "modern" else "-classic"
    options: dict[str, Any] = {"api_key": KEY, **more}
    model = options.pop("model", MODELS[protocol])

    if protocol == "messages":
        return Anthropic(model, **{"base_url": server.url, "profile": f"anthropic{suffix}", **options})

    if protocol == "chat":
        return OpenAIChat(model, **{"base_url": server.openai_url, "profile": f"openai-chat{suffix}", **options})

    return OpenAIResponses(model, **{"base_url": server.openai_url, "profile": f"openai-responses{suffix}", **options})


def patient(
    server: WireServer, protocol: Protocol, era: Era = "modern", *, policy: RetryPolicy = TRIES, **more: Any
) -> Provider:
    """The same, asked again without waiting."""
    return Retrying(provider(server, protocol, era, **more), policy=policy, sleep=no_sleep)


def thinking(protocol: Protocol, era: Era) -> ModelSettings:
    """The settings that switch thinking on, where the era has any."""
    if era == "modern":
        return ModelSettings(reasoning="high")

    return ModelSettings(thinking_tokens=1024) if protocol == "messages" else ModelSettings()


@tool
async def step(n: int) -> str:
    """Go one step on.

    Args:
        n: The step's number.
    """
    return f"step {n} is done"


def worker(model: Provider | str, settings: ModelSettings | None = None, **more: Any) -> Agent:
    """An agent that steps on."""
    return Agent(
        "worker", instructions="Work.", model=model, tools=[step], settings=settings or ModelSettings(), **more
    )


async def run(executor: CrewExecutor, goal: str = "Go.", *, streamed: bool = False, **more: Any) -> RunResult:
    """A run to its end, plain or streamed."""
    if not streamed:
        return await executor.execute(goal, **more)

    stream = executor.execute_stream(goal, **more)

    async with stream as events:
        async for _ in events:
            pass

    return stream.result


async def watched(executor: CrewExecutor, goal: str = "Go.") -> tuple[Sequence[Event], RunResult]:
    """A streamed run with all its events."""
    stream = executor.execute_stream(goal)

    async with stream as events:
        seen = [event async for event in events]

    return seen, stream.result


def said(server: WireServer) -> list[str]:
    """Why requests were refused, to show when a test fails."""
    return [f"{request.protocol} {request.index}: {request.message}" for request in server.refused]
