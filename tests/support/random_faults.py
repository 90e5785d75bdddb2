"""Models, tools, stores, observers and clocks that fail at random, for tests/support/chaos.py."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from crew import Context, tool
from crew.errors import ContextTooLong, MalformedReply, Unavailable
from crew.interfaces import ModelReply, ModelRequest, OnDelta
from crew.messages import ToolCall, Usage
from crew.runs import Event, RunState
from crew.runs.state import CallTools
from tests.support.providers import CheckedModel, CheckedModels, hang
from tests.support.stores import CheckedStore

STUBBORN_SECONDS = 60.0


async def ignore_cancellation() -> None:
    """Go on for a minute, whatever happens."""
    loop = asyncio.get_running_loop()
    end = loop.time() + STUBBORN_SECONDS

    while loop.time() < end:
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.sleep(end - loop.time())


class Faults:
    """Decides at random whether something fails, and counts what failed."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.share = rng.choice([0.0, 0.03, 0.1, 0.25])
        self.injected: Counter[str] = Counter()

    def choose(self, where: str, kinds: Sequence[str], weight: int = 1) -> str:
        """The kind of fault, or an empty text."""
        if self.rng.random() >= self.share * weight:
            return ""

        kind = self.rng.choice(kinds)
        self.injected[f"{where} {kind}"] += 1
        return kind


class FaultyModels(CheckedModels):
    """Models that fail, hang, or reply with garbage."""

    def __init__(self, limit: int, faults: Faults) -> None:
        super().__init__(limit)
        self.faults = faults

    def scripted(self, *lines: Any, before: Any = None) -> CheckedModel:
        return FaultyModel(self, lines, before)


class FaultyModel(CheckedModel):
    """A checked model with faults."""

    models: FaultyModels

    async def complete(self, request: ModelRequest, on_delta: OnDelta | None = None) -> ModelReply:
        reply = await super().complete(request, on_delta)
        await asyncio.sleep(self.models.faults.rng.choice([0, 0, 0.5]))
        where = {"provider": self.name, "model": self.model}

        match self.models.faults.choose("model", [*MODEL_FAULTS]):
            case "unavailable":
                raise Unavailable("down", **where)  # type: ignore[arg-type]
            case "malformed":
                raise MalformedReply("not JSON", **where)  # type: ignore[arg-type]
            case "too long":
                raise ContextTooLong("too long", **where)  # type: ignore[arg-type]
            case "bug":
                raise ZeroDivisionError("division by zero")
            case "exits":
                raise SystemExit(3)
            case "hangs":
                await hang()
            case "stubborn":
                await ignore_cancellation()
            case "garbage":
                calls = (ToolCall(id="c", name="pay", arguments="{not JSON"), ToolCall(id="c", name="", arguments="[]"))
                return ModelReply(text="\ud800 [X\x00", calls=calls, usage=Usage(requests=1, input_tokens=-5))
            case "empty":
                return ModelReply(text="")

        return reply


MODEL_FAULTS = ("unavailable", "malformed", "too long", "bug", "exits", "hangs", "stubborn", "garbage", "empty")
TOOL_FAULTS = ("raises", "hangs", "stubborn", "cancels itself", "large result")


class FaultyTools:
    """A read, a failing write, a write with approval and a plain one; each call leaves a mark with its key."""

    def __init__(self, faults: Faults, store: CheckedStore) -> None:
        self.faults, self.store = faults, store
        self.ran: Counter[str] = Counter()
        self.allowed: Counter[str] = Counter()
        self.writes: set[str] = set()
        self.violations: list[str] = []
        self.tools = self._tools()

    async def handed_off(self, context: Context[None], payload: object) -> None:
        """The `on_handoff` of some handoffs."""

    async def _work(self, context: Context[None], *, write: bool) -> str:
        key = context.idempotency_key
        self.ran[key] += 1

        if not _is_open(self.store.newest, key):
            self.violations.append(f"{key} ran although its result was committed")

        if write:
            self.writes.add(key)

            if self.ran[key] > 1 + self.allowed[key]:
                self.violations.append(f"the write {key} ran {self.ran[key]} times")

        await asyncio.sleep(self.faults.rng.choice([0, 0, 1]))

        match self.faults.choose("tool", TOOL_FAULTS, weight=3):
            case "raises":
                raise ConnectionError(f"<{key}> refused")
            case "hangs":
                await hang()
            case "stubborn":
                await ignore_cancellation()
            case "cancels itself":
                raise asyncio.CancelledError(f"<{key}>")
            case "large result":
                return f"<{key}>" + "x" * 200_000

        return f"<{key}> done"

    def _tools(self) -> list[Any]:
        async def look(context: Context[None]) -> str:
            """Look."""
            return await self._work(context, write=False)

        async def fail(context: Context[None]) -> str:
            """Fail."""
            raise ValueError(await self._work(context, write=True))

        async def pay(context: Context[None]) -> str:
            """Pay."""
            return await self._work(context, write=True)

        async def send(context: Context[None]) -> str:
            """Send."""
            return await self._work(context, write=True)

        return [
            tool(effect="read", timeout=5)(look),
            tool(fail),
            tool(approval=True, timeout=5)(pay),
            tool(retries=0, timeout=5)(send),
        ]


def _is_open(state: RunState, key: str) -> bool:
    """Whether the committed state has this call, without a result."""
    calls = state.next.calls if isinstance(state.next, CallTools) else ()
    return any(open.key == key and open.result is None for open in calls) or any(
        _is_open(child, key) for child in state.children.values()
    )


class ProcessStore:
    """The store of one process: commits fail, and after the end of the process nothing is written."""

    def __init__(self, data: CheckedStore, faults: Faults) -> None:
        self.data, self.faults, self.dead = data, faults, False
        self.on_commit: Callable[[], None] = lambda: None

    async def commit(self, run_id: str, version: int, events: Sequence[Event], state: RunState) -> None:
        await asyncio.sleep(0)

        if self.dead:
            raise OSError("the process is gone")

        kind = self.faults.choose("store", ["refuses", "answer lost"])

        if kind == "refuses":
            raise OSError("disk full")

        await self.data.commit(run_id, version, events, state)
        self.on_commit()

        if kind == "answer lost":
            raise OSError("connection lost")

    async def load(self, run_id: str) -> Any:
        return await self.data.load(run_id)


class WallClock:
    """Jumps by hours."""

    def __init__(self, faults: Faults) -> None:
        self.faults, self.offset = faults, 1_700_000_000.0

    def __call__(self) -> float:
        if self.faults.choose("clock", ["jumps"]):
            self.offset += self.faults.rng.choice([-1, 1]) * 5 * 3_600

        return self.offset + asyncio.get_running_loop().time()
