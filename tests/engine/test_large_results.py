"""Large results of tools hold the event loop for a moment only, and show no part of a secret."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

from crew import Agent, CrewExecutor, ScriptedProvider, call, tool
from crew.errors import InvalidInput
from crew.secrets.registry import SecretRegistry
from crew.secrets.scrubbing import scrub_and_cut
from crew.tools import to_text, truncate_middle
from crew.tools.tool import text_pieces

SECRET = "k3y-Zq9vTx7Lw2"
MEGABYTE = 1_000_000


async def longest_turn(turns: list[float]) -> None:
    """The CPU time of each turn of the event loop: unlike its lag, it does not depend on other processes."""
    while True:
        began = time.thread_time()
        await asyncio.sleep(0)
        turns.append(time.thread_time() - began)


def seconds_allowed(value: str) -> float:
    """0.9 s, or the CPU time of some copies of the text where the machine is slow."""
    began = time.thread_time()

    for _ in range(3):
        assert len(f"{value}.") > len(value)

    return max(0.9, 4 * (time.thread_time() - began))


RESULTS: dict[str, Any] = {
    "text": lambda: "lorem ipsum dolor " * (100 * MEGABYTE // 18),
    "text of other alphabets": lambda: "größe 漢字 \ud800" * (10 * MEGABYTE),
}


@pytest.mark.parametrize("kind", [*RESULTS, "error"])
async def test_large_result_does_not_block_the_event_loop(kind: str) -> None:
    """100 MB of text, or an error with such a message: no turn of the loop takes a second."""
    value = RESULTS.get(kind, RESULTS["text"])()

    @tool
    async def export() -> Any:
        """Export everything."""
        if kind == "error":
            raise ValueError(value)

        return value

    agent = Agent("a", model=ScriptedProvider(call("export"), "Done."), tools=[export])
    executor = CrewExecutor(agent, secrets=[SECRET])
    turns: list[float] = []
    measuring = asyncio.ensure_future(longest_turn(turns))
    result = await executor.execute("Go.")
    measuring.cancel()
    text = result.transcript[2].results[0].text  # type: ignore[union-attr]
    assert len(text) <= 20_000
    assert "characters cut" in text
    assert max(turns) < seconds_allowed(value)


async def test_large_input_is_refused_at_once() -> None:
    """It is not searched for secrets and characters first."""
    executor = CrewExecutor(Agent("a", model=ScriptedProvider("Hi.")), secrets=[SECRET])
    text = RESULTS["text of other alphabets"]()
    began = time.thread_time()

    with pytest.raises(InvalidInput, match="characters; at most 10000"):
        await executor.execute(text)

    assert time.thread_time() - began < seconds_allowed(text)


ROWS: dict[str, Any] = {
    "list": [{"id": n, "name": "row"} for n in range(100_000)],
    "dict": {"rows": {str(n): [n, "row"] for n in range(100_000)}},
}


@pytest.mark.parametrize("kind", ROWS)
def test_large_json_is_made_in_many_turns_of_the_loop(kind: str) -> None:
    """Each piece of the text takes a small part of the time of the whole."""
    seconds: list[float] = []
    pieces, began = text_pieces(ROWS[kind]), time.thread_time()

    for _ in pieces:
        seconds.append(time.thread_time() - began)
        began = time.thread_time()

    assert len(seconds) > 100
    assert max(seconds) < sum(seconds) / 4


@pytest.mark.parametrize(
    "value",
    [
        [{"id": n, 5: ["é", None, True, float("inf")]} for n in range(3_000)],
        {str(n): {"text": "x" * 50, "rows": (n, [])} for n in range(3_000)},
        [["x" * 300_000], {"a": "y" * 300_000, "b": [[]] * 300_000}],
        {n: n for n in range(2_000)},
    ],
    ids=["list", "dict", "nested", "keys"],
)
def test_text_of_a_large_value_is_its_json(value: Any) -> None:
    """It is converted in pieces, and the result is the same."""
    from pydantic_core import to_json

    assert to_text(value) == to_json(value, inf_nan_mode="strings").decode()


def test_large_value_that_contains_itself_is_refused() -> None:
    """As a small one is."""
    value: list[Any] = ["x" * 200] * 2_000
    value.append(value)

    with pytest.raises(ValueError, match="Circular"):
        to_text(value)


def test_no_part_of_a_secret_stays_at_the_edge_of_a_cut() -> None:
    """Wherever the secret stands in the text, and if other secrets before it make the text shorter."""
    registry, limit = SecretRegistry([SECRET]), 120

    for filler in (".", SECRET + ". ", "." * 7 + SECRET):
        for offset in range(400):
            text = "." * offset + filler * 300 + SECRET + "." * (400 - offset)
            kept = scrub_and_cut(registry, text, limit)
            assert len(kept) <= limit
            assert not [i for i in range(len(SECRET) - 3) if SECRET[i : i + 4] in kept], (filler, offset, kept)


def test_ends_of_a_long_text_are_those_of_the_whole_text() -> None:
    """Searching only the ends gives the same text as searching all of it, if no secret is cut."""
    registry = SecretRegistry([SECRET])
    text = f"begin {SECRET} {'x' * 100_000} {SECRET} end"
    kept = scrub_and_cut(registry, text, 2_000)
    assert kept.startswith("begin [secret] xxx")
    assert kept.endswith("xxx [secret] end")
    assert scrub_and_cut(None, text, 2_000) == truncate_middle(text, 2_000)
