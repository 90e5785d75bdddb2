"""The span tree in a terminal is the tree that a backend shows."""

import re
from collections.abc import Callable

import pytest

from crew import Agent, Crew, CrewExecutor, RunError, ScriptedProvider, call
from crew.interfaces import ModelReply
from crew.messages import Usage
from crew.telemetry import Tree


async def test_the_tree_of_a_run_reads_like_its_trace(seen, support: Callable[..., Crew]) -> None:
    """The same names at the same depths as the spans, with times, tokens, prunings, and the id to look it up by."""
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


async def test_money_and_cached_tokens_are_shown_where_they_are_known() -> None:
    """Of a free or unknown model nothing is claimed."""
    usage = Usage(requests=1, input_tokens=100, output_tokens=5, cache_read_tokens=80, cost=0.0123)
    tree = Tree()
    agent = Agent("a", model=ScriptedProvider(ModelReply(text="Hi.", usage=usage)))
    await CrewExecutor(agent, observers=[tree]).execute("Go")
    assert "100 (80 cached) → 5 tokens  $0.0123" in str(tree)
    assert "trace" not in str(tree)


async def test_failures_and_errors_are_visible() -> None:
    """A tool's error, and what ended the run."""
    tree = Tree()

    with pytest.raises(RunError):
        await CrewExecutor(
            Agent("a", model=ScriptedProvider(call("unknown"), RuntimeError("broken"))), observers=[tree]
        ).execute("Go")

    assert re.search(r"execute_tool unknown .* error", str(tree))
    assert "failed: RuntimeError" in str(tree) or "broken" in str(tree)
