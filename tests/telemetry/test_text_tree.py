"""The span tree in a terminal equals the tree of a backend."""

import re
from collections.abc import Callable

import pytest

from crew import Agent, Crew, CrewExecutor, RunError, ScriptedProvider, call
from crew.interfaces import ModelReply
from crew.messages import Usage
from crew.telemetry import Tree


async def test_text_tree_equals_the_trace(seen, support: Callable[..., Crew]) -> None:
    """The same names at the same depths as the spans, with times, tokens, prunings and the trace id."""
    tree = Tree()
    executor = CrewExecutor(support(), max_messages_per_request=10, telemetry=seen.telemetry(), observers=[tree])
    result = await executor.execute("Go")
    *lines, trace = str(tree).splitlines()
    assert trace == f"trace {result.trace_id}"

    def depth(span) -> int:
        parent = seen.parent(span)
        return 0 if parent is None else 1 + depth(parent)

    shown = [
        (len(re.match(r"[│├└─ ]*", line).group()) // 3, re.sub(r"^[│├└─ ]*", "", line).split("  ")[0]) for line in lines
    ]
    assert sorted(shown) == sorted((depth(span), span.name) for span in seen.spans)
    assert sum("crew.history.prune" in line for line in lines) == result.metrics.prunings
    assert "11 → 5 messages (rolling:" in "\n".join(lines)
    assert f"{result.usage.input_tokens} → {result.usage.output_tokens} tokens" in lines[0]
    assert all(re.search(r"\d+\.\d+ m?s", line) for line in lines)


async def test_cost_and_cached_tokens_are_shown_if_known() -> None:
    """Not for a free or unknown model."""
    usage = Usage(requests=1, input_tokens=100, output_tokens=5, cache_read_tokens=80, cost=0.0123)
    tree = Tree()
    agent = Agent("a", model=ScriptedProvider(ModelReply(text="Hi.", usage=usage)))
    await CrewExecutor(agent, observers=[tree]).execute("Go")
    assert "100 (80 cached) → 5 tokens  $0.0123" in str(tree)
    assert "trace" not in str(tree)


async def test_failures_and_errors_are_visible() -> None:
    """The error of a tool, and of the run."""
    tree = Tree()

    with pytest.raises(RunError):
        await CrewExecutor(
            Agent("a", model=ScriptedProvider(call("unknown"), RuntimeError("broken"))), observers=[tree]
        ).execute("Go")

    assert re.search(r"execute_tool unknown .* error", str(tree))
    assert "failed: RuntimeError" in str(tree) or "broken" in str(tree)
