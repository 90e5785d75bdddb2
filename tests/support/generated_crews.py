"""Random crews: graphs, model behaviour and interruptions, and a driver that runs them to the end."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any
from zlib import crc32

from hypothesis import strategies as st

from crew import (
    Agent,
    Approve,
    Context,
    Crew,
    CrewError,
    CrewExecutor,
    Limits,
    NodeResult,
    Parallel,
    Quorum,
    Refuse,
    Route,
    RunResult,
    StopRun,
    ToolRetry,
    choose,
    handoff,
    tool,
)
from crew.agents import Choice, GuardedCall, Guardrail, NeedsApproval, Refused, Rewritten
from crew.errors import StoreError
from crew.history.policies import Checkpoint, HeadTail, MaskToolResults, Rolling, Summarize, Truncate, chain
from crew.interfaces import (
    HistoryBudget,
    MessageGroup,
    ModelReply,
    ModelRequest,
    Policy,
    PolicyOptions,
    PruneDecision,
    policy_options,
)
from crew.messages import Message, ToolCall
from crew.runs import Event, Finished, Pause, RunState
from crew.tools import ConsentRequired, Tool
from crew.tools.toolset import renamed
from tests.support.providers import CheckedModels, hang
from tests.support.stores import CheckedStore

NAMES = ("a", "b", "c", "d")
GROUPS = ("g", "h")
CALLS = (
    "look",
    "fail",
    "again",
    *["inquire"] * 2,
    *["pay"] * 2,
    *(f"ask_{n}" for n in NAMES[1:]),
    *(f"transfer_to_{n}" for n in (*NAMES, *GROUPS)),
    "set_look",
    "set_pay",
    "ghost",
)
ROUNDS = 24

Action = tuple[str, Any]
texts = st.tuples(st.just("text"), st.sampled_from(["Well.", "So [X] then.", "[y]", "[ Z ]", "word " * 300]))
calls = st.tuples(st.just("calls"), st.lists(st.sampled_from(CALLS), min_size=1, max_size=5))
stops = st.just(("calls", ["pay", "look", "stop"]))
mishaps = st.tuples(st.sampled_from(["empty", "error", "hang"]), st.none())
# Weighed, because a run that ends in its first turn shows little.
actions = st.sampled_from([*[texts] * 4, *[calls] * 7, mishaps, stops]).flatmap(lambda chosen: chosen)


@dataclass(frozen=True)
class Sketch:
    """A crew, the behaviour of its models, interruptions and answers.

    Policies and filters are user code: their calls with these numbers fail. None: they are Crew's own.
    """

    agents: dict[str, dict[str, Any]]
    groups: dict[str, dict[str, Any]]
    entry: str
    limit: int
    policy: str
    interruptions: dict[int, str]
    answers: list[int]
    guardrails: list[tuple[str, list[str]]]
    failing_calls: frozenset[int] | None = None


# Weighed, because a guardrail that refuses ends most runs early.
decisions = st.lists(
    st.sampled_from([*["pass"] * 6, "rewrite", "refuse", "hold", "hold", "error"]), min_size=1, max_size=4
)
guardrails = st.one_of(
    st.just([]),
    st.just([]),
    st.lists(
        st.tuples(st.sampled_from(["input", "parallel", "tool", "output"]), decisions),
        max_size=3,
        unique_by=lambda g: g[0],
    ),
)


def agent_sketches(index: int) -> st.SearchStrategy[dict[str, Any]]:
    later = (*NAMES[index + 1 :], *GROUPS)
    ways = st.sampled_from((*NAMES, *GROUPS, None))
    filters = st.sampled_from(["full", "text_only", "last", "none"])
    return st.fixed_dictionaries(
        {
            "script": st.lists(actions, min_size=1, max_size=5),
            "handoffs": st.lists(
                st.tuples(st.sampled_from((*NAMES, *GROUPS)), filters), max_size=3, unique_by=lambda h: h[0]
            ),
            "routes": st.lists(
                st.tuples(st.sampled_from(["[X]", "[Y]", "[Z]"]), ways), max_size=2, unique_by=lambda r: r[0]
            ),
            "then": st.one_of(st.none(), st.sampled_from(later)),
            "chooses": st.booleans(),
            "wait": st.booleans(),
            "history": st.sampled_from([None, None, "summarize", "checkpoint", "chain"]),
            "asks": st.lists(st.sampled_from(NAMES[index + 1 :] or ("",)), max_size=2, unique=True),
            "prepared": st.sampled_from([None, None, None, "text", "toolset", "both"]),
            "guardrails": guardrails,
        }
    )


def group_sketches() -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries(
        {
            "branches": st.lists(st.sampled_from(NAMES), min_size=1, max_size=3),
            "then": st.sampled_from([None, "end"]),
            "on_error": st.sampled_from(["collect", "fail_fast", "first_success", 1, 2]),
            "timeout": st.sampled_from([None, 5]),
            "max_concurrency": st.sampled_from([None, 1, 2]),
            "items": st.sampled_from([None, None, 0, 1, 3]),
        }
    )


sketches = st.builds(
    Sketch,
    agents=st.fixed_dictionaries({name: agent_sketches(i) for i, name in enumerate(NAMES)}),
    groups=st.fixed_dictionaries({name: group_sketches() for name in GROUPS}),
    entry=st.sampled_from((*NAMES, *GROUPS)),
    limit=st.sampled_from([3, 4, 5, 10, 50]),
    policy=st.sampled_from(["rolling", "head_tail", "summarize", "checkpoint", "views"]),
    interruptions=st.dictionaries(st.integers(0, 40), st.sampled_from(["crash", "leave", "cancel"]), max_size=3),
    answers=st.lists(st.integers(0, 11), min_size=1, max_size=6),
    guardrails=guardrails,
)


def without_cancellation(sketch: Sketch) -> Sketch:
    """The sketch without anything that cancels a call or a model: then each of them has to be recorded."""

    def is_kept(action: Action) -> bool:
        return action[0] != "hang" and "stop" not in (action[1] or ())

    agents = {
        name: given | {"script": [action if is_kept(action) else ("text", "Well.") for action in given["script"]]}
        for name, given in sketch.agents.items()
    }
    # A guardrail beside a request that fails cancels the request.
    agents = {
        name: given | {"guardrails": [one for one in given["guardrails"] if one[0] != "parallel"]}
        for name, given in agents.items()
    }
    groups = {name: given | {"on_error": "collect", "timeout": None} for name, given in sketch.groups.items()}
    of_crew = [one for one in sketch.guardrails if one[0] != "parallel"]
    return replace(sketch, agents=agents, groups=groups, interruptions={}, guardrails=of_crew)


hostile_sketches = st.builds(
    lambda sketch, calls: replace(without_cancellation(sketch), failing_calls=calls),
    sketches,
    st.frozensets(st.integers(0, 30), max_size=8),
)
"""Crews whose policies and handoff filters fail now and then."""


class UserCode:
    """Counts the calls of policies and filters; those with the given numbers fail."""

    def __init__(self, failing: frozenset[int]) -> None:
        self.failing, self.calls, self.failures = failing, 0, 0

    def call(self) -> None:
        self.calls += 1

        if self.calls - 1 in self.failing:
            self.failures += 1
            raise LookupError("user code fails")

    def filter(self, messages: tuple[Message, ...]) -> Sequence[Message]:
        self.call()
        return messages[-1:]


@dataclass(frozen=True)
class HostilePolicy:
    """A policy that fails now and then."""

    policy: Policy
    code: UserCode

    @property
    def name(self) -> str:
        return self.policy.name

    @property
    def options(self) -> PolicyOptions:
        return policy_options(self.policy)

    def prune(self, history: Sequence[MessageGroup], budget: HistoryBudget) -> PruneDecision:
        self.code.call()
        return self.policy.prune(history, budget)


def _hostile(policy: Policy | None, code: UserCode | None) -> Policy | None:
    return policy if policy is None or code is None else HostilePolicy(policy, code)


def policy_of(sketch: Sketch) -> Policy:
    """The policy of a sketch; the default if the limit is too small for summaries."""
    limit = sketch.limit
    kept = limit // 3

    match sketch.policy:
        case "views":
            return chain(MaskToolResults(keep_recent=1), Truncate(threshold=0.5, target=0.3), Rolling(limit=limit))
        case "head_tail" if limit > 3:
            return HeadTail(max_messages=limit, preserve_last_n=kept, summarize_on_trim=True)
        case "summarize" if limit > 3:
            return Summarize(limit=limit, threshold=0.5, target=0.3)
        case "checkpoint" if limit > 3:
            return Checkpoint(trigger_at=limit, keep_recent=kept)
        case _:
            return Rolling()


def view_policy_of(kind: str | None, limit: int) -> Policy | None:
    """The policy of one agent's view, which summarizes; None if the limit is too small for summaries."""
    if limit <= 3:
        return None

    match kind:
        case "summarize":
            return Summarize(limit=max(4, limit // 2), threshold=0.5, target=0.3)
        case "checkpoint":
            return Checkpoint(trigger_at=max(4, limit // 2), keep_recent=limit // 3)
        case "chain":
            return chain(MaskToolResults(keep_recent=1), Summarize(limit=None, threshold=0.5, target=0.3))
        case _:
            return None


class CallCounts:
    """How often each call ran, and how often it was allowed to."""

    def __init__(self) -> None:
        self.ran: Counter[tuple[str, str]] = Counter()
        self.allowed: Counter[tuple[str, str]] = Counter()
        self.tools = self._tools()

    @property
    def too_often(self) -> list[tuple[str, str]]:
        return [call for call, times in self.ran.items() if times > 1 + self.allowed[call]]

    def _tools(self) -> list[Any]:
        async def look(context: Context[None]) -> str:
            """Look."""
            self.ran[context.run_id, context.call_id] += 1
            await asyncio.sleep(1)
            return "seen"

        async def fail(context: Context[None]) -> str:
            """Fail."""
            self.ran[context.run_id, context.call_id] += 1
            raise ValueError("no")

        async def pay(context: Context[None], amount: int = 1) -> str:
            """Pay."""
            self.ran[context.run_id, context.call_id] += 1
            return f"paid {amount}"

        async def again(context: Context[None]) -> str:
            """Ask for another call."""
            self.ran[context.run_id, context.call_id] += 1
            raise ToolRetry("Once more.")

        async def inquire(context: Context[None]) -> str:
            """Ask a person twice, then act."""
            first = await context.ask_user("First?", choices=["yes", "no"])
            second = await context.ask_user(f"Second, after {first}?")
            self.ran[context.run_id, context.call_id] += 1
            return f"{first}, {second}"

        async def stop() -> str:
            """End the run."""
            raise StopRun("Enough.")

        return [tool(look), tool(fail), tool(again), tool(stop), tool(asks=True)(inquire), tool(approval=True)(pay)]

    async def handed_off(self, context: Context[None], payload: object) -> None:
        """The `on_handoff` of some handoffs."""
        self.ran[context.run_id, context.call_id] += 1


class CallNumbers:
    """Numbers the calls of user code, each run of a tree for itself: which of two concurrent branches is faster does
    not change what the code does."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()

    def next(self, context: Context[Any]) -> int:
        """From 1 in the first run, and from another number in each branch."""
        path = context.run_id.partition("/")[2]
        self._counts[path] += 1
        return self._counts[path] + crc32(path.encode()) % 60


def guardrail_of(where: str, kind: str, script: Sequence[str]) -> Guardrail:
    """A guardrail that decides by its script, again and again."""
    numbers = CallNumbers()

    async def check(context: Context[Any], value: Any) -> Any:
        asked = numbers.next(context)
        await asyncio.sleep(0.5)

        match script[(asked - 1) % len(script)]:
            case "rewrite":
                return Rewritten(dict(value.arguments) if isinstance(value, GuardedCall) else f"Rewritten {asked}.")
            case "refuse":
                return Refused("Not this.")
            case "hold":
                return NeedsApproval("Is this right?")
            case "error":
                raise LookupError("the guardrail fails")
            case _:
                return None

    stage: Any = "input" if kind == "parallel" else kind
    return Guardrail(function=check, name=f"{kind}_{where}", on=stage, parallel=kind == "parallel")


class GuardedTools:
    """A toolset that asks for consent, lists other tools later, and fails now and then."""

    name = "guarded"

    def __init__(self, tools: Sequence[Tool]) -> None:
        self.tools, self._numbers = [renamed(one, f"set_{one.name}") for one in tools], CallNumbers()

    async def list_tools(self, context: Context[Any]) -> Sequence[Tool]:
        listed = self._numbers.next(context)
        await asyncio.sleep(0.1)

        if listed % 5 == 4:
            raise LookupError("the toolset fails")

        if "guarded" not in context.consents:
            raise ConsentRequired(key="guarded", question="May it be used?")

        return self.tools[: 1 + listed % 3]

    def is_enabled(self, context: Context[Any], tool: Tool) -> bool:
        return len(context.agent + tool.name) % 4 != 0


def _preparation(kind: str | None, toolset: GuardedTools) -> dict[str, Any]:
    """What an agent resolves when it becomes active."""
    numbers = CallNumbers()

    def instructions(context: Context[Any]) -> str:
        return f"You are {context.agent} in {context.run_id}, {numbers.next(context) % 3}."

    text = {"instructions": instructions, "description": "Works."} if kind in ("text", "both") else {}
    return text | ({"tools": [toolset]} if kind in ("toolset", "both") else {})


def build(sketch: Sketch, models: CheckedModels, counts: CallCounts, code: UserCode | None = None) -> Crew:
    """The crew of a sketch, with this user code. Every node is reachable from the first agent."""
    made: dict[str, Agent] = {"end": Agent("end", model=models.scripted(lambda request: "The end."))}
    toolset = GuardedTools(counts.tools)

    for name in reversed(NAMES):
        given = sketch.agents[name]
        ways = dict(given["handoffs"])
        ways = (
            {node: ways.get(node, "full") for node in (*NAMES, *GROUPS, "end")}
            if name == sketch.entry or name == "a"
            else ways
        )
        prepared = _preparation(given["prepared"], toolset)
        own = prepared.pop("tools", [])
        made[name] = Agent(
            name,
            **prepared,
            guardrails=[guardrail_of(name, *one) for one in given["guardrails"]],
            model=models.scripted(_behaviour(name, given["script"]), before=_hanging(given["script"])),
            tools=[*counts.tools, *own, *(made[other].as_tool() for other in given["asks"] if other)],
            handoffs=[
                handoff(
                    node,
                    history=filter if code is None or filter != "last" else code.filter,
                    on_handoff=counts.handed_off if filter == "text_only" else None,
                )
                for node, filter in ways.items()
            ],
            routes=[Route(signal, to=to) for signal, to in given["routes"]],
            then=_choice(given["then"], code) if given.get("chooses") and given["then"] else given["then"],
            wait_for_signal=given["wait"],
            history=_hostile(view_policy_of(given["history"], sketch.limit), code),
            max_input_tokens=None if sketch.policy == "rolling" else 3_000,
        )

    groups = [_group(name, given, reach=sketch.entry in GROUPS) for name, given in sketch.groups.items()]
    return Crew(
        "generated",
        agents=[made[name] for name in (*NAMES, "end")],
        groups=groups,
        entry=sketch.entry,
        guardrails=[guardrail_of("crew", *one) for one in sketch.guardrails],
    )


def _group(name: str, given: dict[str, Any], *, reach: bool) -> Parallel:
    branches = [*given["branches"], "a"] if reach else given["branches"]
    on_error = (
        given["on_error"] if isinstance(given["on_error"], str) else Quorum(min(given["on_error"], len(branches)))
    )
    count = given.get("items")

    if count is None or reach:
        return Parallel(name, **(given | {"branches": branches, "on_error": on_error, "items": None}))

    # A quorum may exceed the number of items.
    policy = given["on_error"] if isinstance(given["on_error"], str) else "collect"
    mapped = {"branches": branches[:1], "on_error": policy, "items": partial(_items, count)}
    return Parallel(name, **(given | mapped))


def _items(count: int, result: NodeResult[Any]) -> list[str]:
    return [f"item {number} of {result.agent}" for number in range(count)]


def _choice(then: str, code: UserCode | None) -> Choice:
    def continues(result: NodeResult[Any]) -> str | None:
        if code is not None:
            code.call()

        return then if len(result.text) % 3 else None

    return choose(continues, targets=[then])


def _action(script: Sequence[Action], turn: int) -> Action:
    return script[min(turn, len(script) - 1)]


def _behaviour(name: str, script: Sequence[Action]) -> Callable[[ModelRequest], Any]:
    def reply(request: ModelRequest) -> Any:
        match _action(script, request.turn):
            case ("text", text):
                return text
            case ("calls", names):
                ids = (f"{name}{request.turn}_{n}" for n in range(len(names)))
                arguments = '{"request": "Help."}'
                calls = tuple(
                    ToolCall(id=id, name=n, arguments=arguments if n.startswith("ask") else "{}")
                    for id, n in zip(ids, names, strict=True)
                )
                return ModelReply(text="Calling." if len(names) % 2 else "", calls=calls)
            case ("error", _):
                return ValueError("boom")
            case _:
                return ModelReply(text="")

    return reply


def _hanging(script: Sequence[Action]) -> Callable[[ModelRequest], Any]:
    async def before(request: ModelRequest) -> None:
        if _action(script, request.turn)[0] == "hang":
            await hang()

    return before


class InterruptingStore(CheckedStore):
    """After the given commits the process ends, its caller is cancelled, or the run is cancelled."""

    def __init__(self, limit: int, interruptions: dict[int, str]) -> None:
        super().__init__(limit)
        self.interruptions = dict(interruptions)
        self.task: asyncio.Task[Any] | None = None
        self.dead = False
        self.cancelled = False

    async def commit(self, run_id: str, version: int, events: Sequence[Event], state: RunState) -> None:
        if self.dead:
            raise OSError("the process is gone")

        await asyncio.sleep(0)
        await super().commit(run_id, version, events, state)
        what = self.interruptions.pop(version, "")

        if what == "crash":
            self.dead = True
            raise OSError("the process is gone")

        if what and self.task is not None:
            self.cancelled = what == "cancel"
            asyncio.get_running_loop().call_soon(self.task.cancel)


async def run_to_end(sketch: Sketch, models: CheckedModels, store: InterruptingStore, counts: CallCounts) -> RunState:
    """Run a sketch to its end through all interruptions, and return its last state."""
    clock = asyncio.get_running_loop().time
    limits = Limits(rounds=ROUNDS, handoffs=8, seconds=500)

    code = None if sketch.failing_calls is None else UserCode(sketch.failing_calls)
    built, policy = build(sketch, models, counts, code), policy_of(sketch)

    if code is not None and sketch.policy != "views":
        policy = HostilePolicy(Rolling(limit=sketch.limit) if isinstance(policy, Rolling) else policy, code)

    def executor() -> CrewExecutor:
        return CrewExecutor(
            built,
            max_messages_per_request=sketch.limit,
            history=policy,
            store=store,
            limits=limits,
            clock=lambda: clock() + 1,
            monotonic=clock,
        )

    crew, answers, failures = executor(), list(sketch.answers), 0
    step = crew.execute("Goal.", run_id="r")

    while True:
        store.task = asyncio.ensure_future(step)
        result = await _outcome(store.task)

        if store.cancelled or failures == 3:
            break

        if result is None:
            failures += 0 if store.dead or not store.snapshots else 1  # a run that could not start is not there
            store.dead, crew = False, executor()
            step = crew.resume("r") if store.snapshots else crew.execute("Goal.", run_id="r")  # it could not start
        elif result.stop_reason == "paused":
            answers.append(answers.pop(0))
            pause = result.pauses[answers[0] % len(result.pauses)]
            given = answer_to(pause, answers[0], counts)
            step = crew.resume("r", {pause.id: given})
        else:
            break

    try:
        await crew.cancel("r")
    except StoreError:  # the process was gone with the very commit that cancels
        store.dead = False
        await executor().cancel("r")

    return store.newest


async def _outcome(task: asyncio.Task[RunResult]) -> RunResult | None:
    try:
        return await task
    except (CrewError, asyncio.CancelledError):
        return None


def answer_to(pause: Pause, choice: int, counts: CallCounts) -> Any:
    match pause.reason:
        case "input":
            return ["Go on.", "Say [X]."][choice % 2]
        case "approval" if pause.call is not None and pause.call.name.endswith("pay"):
            return [True, Approve(), Approve(arguments={"amount": 5}), False, "Rather not.", Refuse("No.")][choice % 6]
        case "approval" | "consent":
            return [True, Approve(), True, False, "Rather not.", Refuse("No.")][choice % 6]
        case "question":
            return ["yes", "no"][choice % 2] if pause.choices else "Because."
        case _:
            assert pause.call is not None
            given = ["run again", "skip", {"done": "it was"}][choice % 3]
            counts.allowed[pause.run_id, pause.call.id] += given == "run again"
            return given


def is_finished(state: RunState) -> bool:
    """Whether the run and all its children have ended."""
    return isinstance(state.next, Finished) and not state.children


def replies_of(sketch: Sketch, models: CheckedModels) -> int:
    """How many replies the models gave, summaries not counted."""
    asked = [request for request in models.requests if request.purpose != "summary"]
    return sum(
        request.agent == "end" or _action(sketch.agents[request.agent]["script"], request.turn)[0] != "error"
        for request in asked
    )
