"""Providers of each protocol and era that send their requests to the local server, and runs with them."""

import json
from typing import Any

import anthropic  # noqa: F401 - imported here, so that no test time-out includes the import
import openai  # noqa: F401 - as above

from crew import Agent, CrewExecutor, tool
from crew.interfaces import ModelSettings, Provider
from crew.providers import Anthropic, OpenAIChat, OpenAIResponses, Retrying, RetryPolicy
from crew.runs import RunResult
from tests.wire import Era, Protocol, WireServer

PROTOCOLS: tuple[Protocol, ...] = ("chat", "responses", "messages")
ERAS: tuple[Era, ...] = ("classic", "modern")
MODELS = {"chat": "gpt-5", "responses": "gpt-5", "messages": "claude-sonnet-4-5"}
KEY = "sk-secret-0123456789"
FOUR_ATTEMPTS = RetryPolicy(attempts=4, timeout=30.0)
SHORT_TIMEOUT = RetryPolicy(attempts=4, timeout=2.0)  # longer than a busy machine stalls


async def no_sleep(_: float) -> None:
    """Return at once."""


def provider(server: WireServer, protocol: Protocol, era: Era = "modern", **more: Any) -> Provider:
    """A provider that sends its requests to the local server."""
    suffix = "" if era == "modern" else "-classic"
    options: dict[str, Any] = {"api_key": KEY, **more}
    model = options.pop("model", MODELS[protocol])

    if protocol == "messages":
        return Anthropic(model, **{"base_url": server.url, "profile": f"anthropic{suffix}", **options})

    if protocol == "chat":
        return OpenAIChat(model, **{"base_url": server.openai_url, "profile": f"openai-chat{suffix}", **options})

    return OpenAIResponses(model, **{"base_url": server.openai_url, "profile": f"openai-responses{suffix}", **options})


def retrying_provider(
    server: WireServer, protocol: Protocol, era: Era = "modern", *, policy: RetryPolicy = FOUR_ATTEMPTS, **more: Any
) -> Provider:
    """The same provider, with retries that do not wait."""
    return Retrying(provider(server, protocol, era, **more), policy=policy, sleep=no_sleep)


def thinking(protocol: Protocol, era: Era) -> ModelSettings:
    """The settings that switch reasoning on, if the era supports it."""
    if era == "modern":
        return ModelSettings(reasoning="high")

    return ModelSettings(thinking_tokens=1024) if protocol == "messages" else ModelSettings()


@tool
async def step(n: int) -> str:
    """Take one step.

    Args:
        n: The number of the step.
    """
    return f"step {n} is done"


@tool(name="step")
async def long_step(n: int) -> str:
    """Take one step.

    Args:
        n: The number of the step.
    """
    return f"Step {n} is done. " + "It left a note of some length behind, as tools do. " * 14


@tool(name="step")
async def report_step(n: int) -> str:
    """Read a part of the report.

    Args:
        n: The number of the part.
    """
    words = "The quick brown fox jumps over the lazy dog. " if n % 3 else json.dumps({"part": n, "ok": True}) + "\n"
    return f"part {n}\n" + words * (4 + n % 40)


def worker(model: Provider | str, settings: ModelSettings | None = None, **more: Any) -> Agent:
    """An agent with the tool `step`."""
    return Agent(
        "worker", instructions="Work.", model=model, tools=[step], settings=settings or ModelSettings(), **more
    )


async def run(executor: CrewExecutor, goal: str = "Go.", *, streamed: bool = False, **more: Any) -> RunResult:
    """Run to the end, with or without streaming."""
    if not streamed:
        return await executor.execute(goal, **more)

    stream = executor.execute_stream(goal, **more)

    async with stream as events:
        async for _ in events:
            pass

    return stream.result


def refusal_reasons(server: WireServer) -> list[str]:
    """Why the server refused requests, for the message of a failing test."""
    return [f"{request.protocol} {request.index}: {request.message}" for request in server.refused]
