"""An agent uses the tools, resources and prompts of a real server; settings of the server and of its tools apply."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr

from crew import Agent, CrewExecutor, call
from crew.errors import DefinitionError
from crew.mcp import MCPServer, ToolSettings
from crew.runs import Event
from crew.runs.events import AgentPrepared, ToolProgress, Warned
from tests.support.mcp_clients import caller, living, log_lines, raw_server, results, run_calls, stdio_server
from tests.support.runs import events_of_type, run_and_collect
from tests.support.spans import recorded_spans


async def test_an_agent_uses_tools_resources_and_prompts(tmp_path: Path) -> None:
    """Names have the prefix of the server; errors, images and progress arrive; the process ends with the executor."""
    calls = [
        call("test_add", a=1, b=2),
        call("test_fail"),
        call("test_add", a="many"),
        call("test_picture"),
        call("test_huge", size=30_000),
        call("test_slow", seconds=0.01),
        call("test_list_resources"),
        call("test_read_resource", uri="notes://today"),
        call("test_list_prompts"),
        call("test_get_prompt", name="greet", arguments={"name": "Ada"}),
        call("test_nothing"),
    ]
    agent = Agent("worker", model=caller(*calls), tools=[stdio_server(tmp_path)])
    before = asyncio.all_tasks()

    async with CrewExecutor(agent) as executor:
        events, result = await run_and_collect(executor)
        assert len(living(tmp_path)) == 1

    assert asyncio.all_tasks() == before
    assert living(tmp_path) == []
    add, fail, wrong, picture, huge, slow, listed, read, prompts, prompt, nothing = results(result)
    assert add == ("ok", "3")
    assert fail == ("error", "test_fail failed: ServerError: Error executing tool fail: the disk is full")
    assert (wrong[0], "valid integer" in wrong[1]) == ("error", True)
    assert picture == ("ok", "A picture:\n[image: image/png, 102 bytes; its content is not shown]")
    assert (huge[0], len(huge[1]) <= 20_000) == ("ok", True)
    assert slow == ("ok", "done")
    assert listed == ("ok", "notes://today (today)")
    assert read == ("ok", "Buy milk.")
    assert prompts == ("ok", "greet(name)")
    assert prompt == ("ok", "user: Greet Ada politely.")
    assert nothing[1].startswith("Unknown tool 'test_nothing'.")
    steps = [event.data for event in events_of_type(events, ToolProgress)]
    assert {"progress": 3.0, "total": 4.0, "message": "step 3"} in steps


def warnings(events: list[Event]) -> list[str]:
    return [event.text for event in events_of_type(events, Warned)]


@pytest.mark.servers
async def test_calls_of_one_reply_run_at_the_same_time(tmp_path: Path) -> None:
    """All four calls have begun before the first one ends; a call that times out does not disturb the others."""
    server = stdio_server(tmp_path, tools={"slow": ToolSettings(timeout=6, effect="read")})
    reply = [call("test_slow", seconds=seconds) for seconds in (1, 1, 1, 60)]
    agent = Agent("worker", model=caller(reply), tools=[server])

    async with CrewExecutor(agent) as executor:
        await executor.execute("Connect first.", agent="worker")
        agent_result = await run_calls(server, reply, call("test_add", a=2, b=2))

    *quick, late, after = results(agent_result)
    assert quick == [("ok", "done")] * 3
    assert late == ("error", "test_slow timed out after 6 s.")
    assert after == ("ok", "4")
    lines = log_lines(tmp_path)
    assert lines.index("done slow") > [place for place, line in enumerate(lines) if line == "call slow"][3]
    assert "cancelled slow" in lines


@pytest.mark.servers
async def test_effects_are_write_unless_you_say_otherwise(tmp_path: Path) -> None:
    """A server's hint is not trusted; reading resources is a read; approvals follow the effect."""
    server = stdio_server(tmp_path, approval="writes", tools={"variable": ToolSettings(effect="read")})
    agent = Agent(
        "worker",
        model=caller(call("test_variable", name="X"), call("test_list_resources"), call("test_add", a=1, b=1)),
        tools=[server],
    )

    async with CrewExecutor(agent) as executor:
        result = await executor.execute("Go.")
        [pause] = result.pauses
        assert (pause.call.name, pause.effect, pause.arguments) == ("test_add", "write", {"a": 1, "b": 1})  # type: ignore[union-attr]
        assert "call add" not in log_lines(tmp_path)
        result = await executor.resume(result.run_id, {pause.id: True})

    assert results(result)[-1] == ("ok", "2")


async def test_a_hint_of_the_server_does_not_lower_the_effect(tmp_path: Path) -> None:
    """`readOnlyHint` is the claim of the server; your own setting counts."""
    for effect in ("write", "read"):
        agent = Agent(
            "worker",
            model=caller(call("raw_ask")),
            tools=[raw_server(tmp_path, "hints", approval="writes", effect=effect)],
        )

        async with CrewExecutor(agent) as executor:
            result = await executor.execute("Go.")

        assert result.stop_reason == ("paused" if effect == "write" else "completed")


@pytest.mark.servers
async def test_tools_can_be_selected_and_filtered(tmp_path: Path) -> None:
    """`only` selects by name, `filter` by the context of each activation; the prefix can be changed."""
    server = stdio_server(
        tmp_path, prefix="s", only=["add", "variable"], filter=lambda context, tool: context.deps in tool.name
    )
    agent = Agent("worker", model=caller(call("s_add", a=1, b=1), call("s_variable", name="X")), tools=[server])

    async with CrewExecutor(agent) as executor:
        result = await executor.execute("Go.", deps="add")

    assert results(result)[0] == ("ok", "2")
    assert results(result)[1] == ("error", "Unknown tool 's_variable'. Available: s_add.")


async def test_a_server_has_a_minimal_environment_and_its_secrets_are_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Variables of this process are not passed on; credentials that you pass do not appear in messages."""
    monkeypatch.setenv("DATABASE_PASSWORD", "hunter2hunter2")
    server = stdio_server(
        tmp_path, env={"API_KEY": "sesame-open-1", "MODE": "testing", "NOTE": SecretStr("hidden-note")}
    )
    names = ["DATABASE_PASSWORD", "API_KEY", "MODE", "NOTE", "PATH"]
    result = await run_calls(server, *(call("test_variable", name=name) for name in names))
    texts = [text for _, text in results(result)]
    assert texts[:4] == ["(not set)", "[secret]", "testing", "[secret]"]
    assert texts[4]


async def test_a_server_cannot_use_the_model(tmp_path: Path) -> None:
    """Sampling is not offered: the server gets an error."""
    result = await run_calls(raw_server(tmp_path, "asks for a model"), call("raw_ask"))
    [(outcome, text)] = results(result)
    assert outcome == "ok"
    assert "Sampling not supported" in text


async def test_the_span_of_a_call_names_the_server_and_the_method(tmp_path: Path) -> None:
    """The trace continues in the server: it gets the context of the span with the request."""
    agent = Agent("worker", model=caller(call("raw_ask")), tools=[raw_server(tmp_path, "shows the trace")])

    with recorded_spans() as seen:
        async with CrewExecutor(agent, telemetry=seen.telemetry()) as executor:
            result = await executor.execute("Go.")

        span = seen.one("execute_tool raw_ask")

    attributes = dict(span.attributes or {})
    assert attributes["crew.toolset"] == "raw"
    assert attributes["mcp.method.name"] == "tools/call"
    assert attributes["network.transport"] == "pipe"
    assert results(result)[0][1].startswith(f"00-{span.context.trace_id:032x}-{span.context.span_id:016x}-")
    server = MCPServer(name="web", url="https://mcp.example/mcp")
    assert server.span_attributes("web_read_resource") == {
        "mcp.method.name": "resources/read",
        "network.transport": "tcp",
        "server.address": "mcp.example",
        "server.port": 443,
    }


async def test_names_that_models_cannot_use_are_changed(tmp_path: Path) -> None:
    """Two names that become the same stay apart; a repeated name and a schema that is too large are left out."""
    agent = Agent("worker", model=caller("Done."), tools=[raw_server(tmp_path, "bad tools")])

    async with CrewExecutor(agent) as executor:
        events, _ = await run_and_collect(executor)

    [prepared] = events_of_type(events, AgentPrepared)
    names = [tool.name for tool in prepared.prepared.tools]
    assert names[:2] == ["raw_ask", "raw_a_b_c"]
    assert names[2].startswith("raw_a_b_c_")
    assert len(names) == 3


@pytest.mark.servers
async def test_names_of_two_servers_that_collide_are_reported(tmp_path: Path) -> None:
    """The tool that comes first is used, and a warning names the other one."""
    one, two = tmp_path / "1", tmp_path / "2"
    servers = [stdio_server(folder, name=folder.name, prefix="x", only=["add"]) for folder in (one, two)]
    one.mkdir()
    two.mkdir()
    agent = Agent("worker", model=caller(call("x_add", a=1, b=1)), tools=servers)

    async with CrewExecutor(agent) as executor:
        events, result = await run_and_collect(executor)

    assert results(result) == [("ok", "2")]
    assert ("call add" in log_lines(one), "call add" in log_lines(two)) == (True, False)
    assert any("'x_add' of the toolset '2' is left out" in text for text in warnings(events))


async def test_a_setting_for_a_tool_that_does_not_exist_is_reported(tmp_path: Path) -> None:
    """A misspelt name must not be ignored: `only` would select nothing, `effect` would not apply."""
    agent = Agent("worker", model=caller("Done."), tools=[raw_server(tmp_path, "plain", only=["aks"])])

    async with CrewExecutor(agent) as executor:
        events, _ = await run_and_collect(executor)

    assert any("has no tool 'aks'" in text and "ask" in text for text in warnings(events))


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({}, "give either stdio="),
        ({"stdio": ["x"], "url": "http://127.0.0.1/mcp"}, "give either stdio="),
        ({"stdio": "python server.py"}, "stdio must be a list"),
        ({"url": "127.0.0.1"}, "url must be a URL"),
        ({"url": "http://x/mcp", "env": {"A": "b"}}, "env has no effect"),
        ({"stdio": ["x"], "headers": {"A": "b"}}, "headers has no effect"),
        ({"stdio": ["x"], "env": {"A": 1}}, "env must be a mapping"),
        ({"stdio": ["x"], "name": "my server"}, "the name must be"),
        ({"stdio": ["x"], "effect": "none"}, "effect must be"),
        ({"stdio": ["x"], "approval": "sometimes"}, "approval must be"),
        ({"stdio": ["x"], "timeout": 0}, "timeout must be"),
        ({"stdio": ["x"], "tools": {"a": "read"}}, "tools must be a mapping"),
        ({"stdio": ["x"], "only": "add"}, "only must be a list"),
    ],
)
def test_wrong_settings_are_refused(settings: dict[str, Any], problem: str) -> None:
    """The error names the setting."""
    with pytest.raises(DefinitionError, match=problem):
        MCPServer(**settings)


def test_credentials_are_secrets() -> None:
    """Headers with their schemes, variables whose names say so, and the password of the URL."""
    server = MCPServer(
        url="http://me:pass%20word@127.0.0.1/mcp?team=blue&api_key=12345678",
        headers={"Authorization": "Bearer abcdefgh", "X-Team": "blue"},
    )
    assert server.secrets == ["Bearer abcdefgh", "abcdefgh", "12345678", "pass word"]
    assert "abcdefgh" not in repr(server)
