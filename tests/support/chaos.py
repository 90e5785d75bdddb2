"""Random crews with random faults at every interface, from a seed: `python -m tests.support.chaos --minutes 60`.

Each seed is one run: a generated crew whose models, tools, store, observers, wall clock and process fail at random. It
runs in virtual time, is resumed and answered until it ends, and every invariant is checked. `--seed N` repeats one run.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import logging
import random
import sys
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from crew import CrewExecutor, Limits, RunResult
from crew.errors import CrewError
from crew.message_rules import validate
from crew.messages import UserMessage
from crew.runs import Event, Pause
from crew.runs.events import ToolReturned
from crew.runs.state import run_status
from crew.transitions.result import without_open_calls
from tests.support.clocks import run_in_virtual_time
from tests.support.generated_crews import CALLS, GROUPS, NAMES, Sketch, build, is_finished, policy_of
from tests.support.random_faults import STUBBORN_SECONDS, Faults, FaultyModels, FaultyTools, ProcessStore, WallClock
from tests.support.stores import CheckedStore

MOST_RESUMES = 12


def random_sketch(rng: random.Random) -> Sketch:
    """A crew like those of the property tests, without interruptions: the faults are injected apart."""

    def some(choices: Sequence[Any], most: int) -> list[Any]:
        return rng.sample(list(choices), rng.randint(0, min(most, len(choices))))

    def action() -> tuple[str, Any]:
        if rng.random() < 0.4:
            return "text", rng.choice(["Well.", "So [X] then.", "[y]", "[ Z ]", "word " * 300])

        return "calls", [rng.choice((*CALLS, "pay", "send", "send")) for _ in range(rng.randint(1, 4))]

    def agent(index: int) -> dict[str, Any]:
        filters = ["full", "text_only", "last", "none"]
        return {
            "script": [action() for _ in range(rng.randint(1, 6))],
            "handoffs": [(node, rng.choice(filters)) for node in some((*NAMES, *GROUPS), 3)],
            "routes": [(signal, rng.choice((*NAMES, *GROUPS, None))) for signal in some(["[X]", "[Y]", "[Z]"], 2)],
            "then": rng.choice((None, None, *NAMES[index + 1 :], *GROUPS)),
            "wait": rng.random() < 0.2,
            "history": rng.choice([None, None, "summarize", "checkpoint", "chain"]),
            "asks": some(NAMES[index + 1 :], 2),
            "prepared": rng.choice([None, None, "text", "toolset", "both"]),
            "guardrails": guardrails(),
        }

    def guardrails() -> list[tuple[str, list[str]]]:
        kinds = some(["input", "parallel", "tool", "output"], 2) if rng.random() < 0.3 else []
        decisions = [*["pass"] * 6, "rewrite", "refuse", "hold", "error"]
        return [(kind, [rng.choice(decisions) for _ in range(rng.randint(1, 4))]) for kind in kinds]

    def group() -> dict[str, Any]:
        return {
            "branches": [rng.choice(NAMES) for _ in range(rng.randint(1, 3))],
            "then": rng.choice([None, "end"]),
            "on_error": rng.choice(["collect", "fail_fast", "first_success", 1, 2]),
            "timeout": rng.choice([None, 5]),
            "max_concurrency": rng.choice([None, 1, 2]),
        }

    return Sketch(
        agents={name: agent(index) for index, name in enumerate(NAMES)},
        groups={name: group() for name in GROUPS},
        entry=rng.choice((*NAMES, *GROUPS)),
        limit=rng.choice([4, 5, 10, 50]),
        policy=rng.choice(["rolling", "head_tail", "summarize", "checkpoint", "views"]),
        interruptions={},
        answers=[],
        guardrails=guardrails(),
    )


class ChaosRun:
    """One run from its seed to its end, through all faults."""

    def __init__(self, seed: int) -> None:
        self.seed, self.rng = seed, random.Random(seed)
        self.sketch = random_sketch(self.rng)
        self.faults = Faults(self.rng)
        self.models = FaultyModels(self.sketch.limit, self.faults)
        self.data = CheckedStore(self.sketch.limit)
        self.tools = FaultyTools(self.faults, self.data)
        self.counts: Counter[str] = Counter()
        self.answered: set[str] = set()
        self.task: asyncio.Task[Any] | None = None

    def _process(self) -> tuple[CrewExecutor, ProcessStore]:
        store = ProcessStore(self.data, self.faults)

        def observe(event: Event) -> None:
            if self.faults.choose("observer", ["raises"]):
                raise ValueError("the observer failed")

        executor = CrewExecutor(
            build(self.sketch, self.models, self.tools),  # type: ignore[arg-type]
            max_messages_per_request=self.sketch.limit,
            history=policy_of(self.sketch),
            store=store,
            limits=Limits(rounds=24, handoffs=8, seconds=500),
            clock=WallClock(self.faults),
            monotonic=asyncio.get_running_loop().time,
            observers=[observe],
        )
        store.on_commit = lambda: self._interrupt(executor, store)
        return executor, store

    def _interrupt(self, executor: CrewExecutor, store: ProcessStore) -> None:
        """After a commit: end the process, cancel the caller's task, or cancel the run."""
        if self.task is None or self.task.done() or self.rng.random() >= self.faults.share / 3:
            return

        what = self.rng.choice(["kill", "leave", "cancel"])
        self.counts[what] += 1

        if what == "cancel":
            self.cancelling = asyncio.ensure_future(self._cancel(executor))
        else:
            store.dead = what == "kill"
            asyncio.get_running_loop().call_soon(self.task.cancel)

    async def _cancel(self, executor: CrewExecutor) -> None:
        with contextlib.suppress(CrewError):
            await executor.cancel("r")

    async def play(self) -> None:
        """Run, resume and answer until the run has ended; then check it."""
        executor, _ = self._process()
        step = self._start(executor)

        while True:
            self.task = asyncio.ensure_future(step)
            result = await _outcome(self.task)

            if self.data.snapshots and is_finished(self.data.newest):
                break

            if self.counts["resumes"] == MOST_RESUMES:
                break

            self.counts["resumes"] += 1
            answers: dict[str, Any] = {}

            if result is not None and result.stop_reason == "paused":
                pause = self.rng.choice(result.pauses)
                answers[pause.id] = self._answer(pause)
            elif self.rng.random() < 0.5 or result is None:
                executor, _ = self._process()

            step = executor.resume("r", answers) if self.data.snapshots else self._start(executor)

        self.task = None
        self.faults.share = 0.0

        if not is_finished(self.data.newest):
            self.counts["cancelled at the end"] += 1
            await self._process()[0].cancel("r")

        await asyncio.sleep(2 * STUBBORN_SECONDS)  # tools and models that ignore their cancellation come to their end

    def _start(self, executor: CrewExecutor) -> Any:
        if self.seed % 2:
            return executor.execute("Goal.", run_id="r")

        async def read() -> RunResult:
            stream = executor.execute_stream("Goal.", run_id="r")
            _ = [event async for event in stream]
            return stream.result

        return read()

    def _answer(self, pause: Pause) -> Any:
        match pause.reason:
            case "input":
                return self.rng.choice(["Go on.", "Say [X]."])
            case "approval" | "consent":
                return self.rng.choice([True, True, True, False, "Rather not."])
            case _:
                given = self.rng.choice(["run again", "skip", {"done": "it was"}])

                if given == "run again":
                    self.tools.allowed[pause.id] += 1
                else:
                    self.answered.add(pause.id)

                return given

    def violations(self, tasks: int) -> Iterator[str]:
        """What is wrong at the end."""
        state = self.data.newest
        yield from self.models.violations
        yield from self.data.violations
        yield from self.tools.violations

        if tasks > 1:
            yield f"{tasks - 1} tasks are left"

        if not is_finished(state):
            yield "the run is not finished"

        history = [entry.message for entry in without_open_calls(state.history.entries)]
        yield from map(str, validate([*history, UserMessage("And now?")]))

        goal = state.history.goal
        is_accepted = any(message.id == goal for message in state.transcript) or run_status(state) == "completed"

        # A guardrail refused the input, or the run was cancelled before it was checked: it is not in the transcript.
        if is_accepted and goal not in [message.id for message in state.history.messages]:
            yield "the goal is missing"

        texts = [event.result.text for event in self.data.events if isinstance(event, ToolReturned)]
        doubts = {doubt.key for doubt in state.in_doubt}
        self.counts["writes"] += len(self.tools.writes)
        self.counts["writes in doubt"] += len(doubts | self.answered)

        for key in sorted(self.tools.writes):
            if key not in doubts | self.answered and not any(f"<{key}>" in text for text in texts):
                yield f"the write {key} was started, has no result, and is not in doubt"


async def _outcome(task: asyncio.Task[RunResult]) -> RunResult | None:
    try:
        return await task
    except (CrewError, OSError, asyncio.CancelledError):
        return None


def run_seed(seed: int) -> tuple[list[str], Counter[str]]:
    """The violations of one run, and its counts."""
    run = ChaosRun(seed)

    async def story() -> list[str]:
        await run.play()
        return list(run.violations(len(asyncio.all_tasks())))

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # some crews have a setting that can't take effect
        found = run_in_virtual_time(story())

    counts = run.counts + Counter(runs=1, requests=len(run.models.requests)) + run.faults.injected
    return found, counts


def run_for(seconds: float, first: int, report: Callable[[str], None] | None = None) -> Counter[str]:
    """Run one seed after the other for so long; raises with the seed of the first run that breaks an invariant."""
    began, total, reported = time.monotonic(), Counter[str](), 0

    while time.monotonic() - began < seconds:
        seed = first + total["runs"]

        try:
            found, counts = run_seed(seed)
        except Exception as error:
            raise AssertionError(f"seed {seed} failed: python -m tests.support.chaos --seed {seed}") from error

        assert not found, f"seed {seed}: python -m tests.support.chaos --seed {seed}\n" + "\n".join(found)
        total += counts

        if report is not None and time.monotonic() - began > 60 * (reported + 1):
            reported += 1
            report(f"{reported} min: {summary(total)}")

    return total


def summary(counts: Counter[str]) -> str:
    """One line."""
    names = ["runs", "requests", "resumes", "kill", "leave", "cancel", "writes", "writes in doubt"]
    shown = ", ".join(f"{counts[name]:,} {name}" for name in names)
    faults = {kind: n for kind, n in sorted(counts.items()) if kind.split()[0] in FAULTY and kind not in names}
    return f"{shown}; {sum(faults.values()):,} faults: " + ", ".join(f"{n:,} {kind}" for kind, n in faults.items())


FAULTY = ("model", "tool", "store", "observer", "clock")


def write(line: str) -> None:
    """Print a line at once."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def main() -> None:
    parser = argparse.ArgumentParser(description="Random crews with random faults.")
    parser.add_argument("--minutes", type=float, default=1.0)
    parser.add_argument("--first", type=int, default=int(time.time()), help="the first seed; default: the time")
    parser.add_argument("--seed", type=int, help="repeat the run of one seed")
    given = parser.parse_args()
    logging.disable(logging.CRITICAL)

    if given.seed is not None:
        found, counts = run_seed(given.seed)
        write("\n".join([*found, summary(counts)]))
        sys.exit(bool(found))

    write(f"chaos: seeds from {given.first}")
    total = run_for(60 * given.minutes, given.first, lambda line: write(f"chaos: {line}"))
    write(f"chaos: {given.minutes:g} min: {summary(total)}")


if __name__ == "__main__":
    main()
