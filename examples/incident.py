"""An incident crew: triage, a long investigation, three reviewers at once, and a rollback that waits for approval.

    python examples/incident.py runs.db       store two runs, paused at the approval and finished
    crew inspect runs.db                      look at them
    crew serve examples/incident.py           or watch it live, and approve the rollback in the browser

The models are scripted (incident.json) and bill like a service with a prompt cache, so that prunings have their price.
"""

import asyncio
import json
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from crew import Agent, Crew, CrewExecutor, Parallel, ScriptedProvider, recall, tool
from crew.history import MaskToolResults, Summarize, chain
from crew.history.tokens import estimate_message_tokens, estimate_tokens
from crew.interfaces import ModelReply, ModelRequest, OnDelta, RetryAttempt
from crew.messages import ToolCall, Usage
from crew.models import usage_cost
from crew.store import SQLiteStore

SCRIPT: dict[str, Any] = json.loads((Path(__file__).parent / "incident.json").read_text(encoding="utf-8"))
MODEL = "claude-sonnet-4-5"
INPUT: str = SCRIPT["input"]
Sleep = Callable[[float], Awaitable[None]]
pace: dict[str, Sleep] = {"sleep": lambda seconds: asyncio.sleep(seconds / 4)}


class BilledModel(ScriptedProvider):
    """A scripted model whose bills have cached, written and fresh tokens, as those of a service with a prompt cache."""

    def __init__(self, agent: str) -> None:
        self._script = SCRIPT["replies"][agent]
        self._cached: dict[int, int] = {}
        lines = [self._line_of(line) for line in self._script]
        super().__init__(*lines, lambda request: "The work is done.", name="anthropic", model=MODEL)

    def _line_of(self, line: dict[str, Any]) -> ModelReply:
        calls = [ToolCall(id="", name=c["name"], arguments=json.dumps(c["arguments"])) for c in line.get("calls", ())]
        return ModelReply(text=line.get("text", ""), calls=tuple(calls), finish_reason="calls" if calls else "stop")

    def _summary(self, turn: int) -> str:
        number = sum(turn > bound for bound in (20, 34))
        return str(SCRIPT["summaries"][number])

    async def complete(self, request: ModelRequest, on_delta: OnDelta | None = None) -> ModelReply:
        """Reply after the recorded time, with a bill."""
        is_reply = request.purpose == "reply" and request.turn < len(self._script)
        line = self._script[request.turn] if is_reply else {"seconds": 4.2}

        if line.get("retries") and request.on_retry is not None:
            await pace["sleep"](2.0)
            request.on_retry(RetryAttempt(attempt=1, reason="529 overloaded_error", wait=1.0))

        await pace["sleep"](line["seconds"])
        reply = await super().complete(request, on_delta)
        return ModelReply(
            text=reply.text,
            calls=reply.calls,
            finish_reason=reply.finish_reason,
            usage=self._bill(request, reply),
            model=MODEL,
            response_id=f"msg_{abs(hash((request.run_id, request.agent, request.turn))):x}",
        )

    def _bill(self, request: ModelRequest, reply: ModelReply) -> Usage:
        tools = sum(estimate_tokens(spec.description + json.dumps(dict(spec.parameters))) for spec in request.tools)
        total, prefix, read = 380 + estimate_tokens(request.instructions) + tools, hash(request.agent), 0

        for message in request.messages:
            total += estimate_message_tokens(message)
            prefix = hash((prefix, message.id, estimate_message_tokens(message)))
            read = self._cached.get(prefix, read)
            self._cached[prefix] = total

        read = read if read >= 1_024 else 0
        output = estimate_tokens(reply.text) + sum(estimate_tokens(call.arguments) + 12 for call in reply.calls) + 20
        usage = Usage(
            requests=1,
            input_tokens=total,
            output_tokens=output,
            cache_read_tokens=read,
            cache_write_tokens=total - read if total >= 1_024 else 0,
        )
        cost = usage_cost("anthropic", MODEL, usage)
        return Usage(
            requests=1,
            input_tokens=total,
            output_tokens=output,
            cache_read_tokens=read,
            cache_write_tokens=usage.cache_write_tokens,
            cost=cost,
        )


async def recorded(tool_name: str, /, **arguments: object) -> str:
    """The recorded result of a call; log files are as long as they were."""
    found = SCRIPT["results"].get(tool_name + json.dumps(arguments, sort_keys=True))

    if found is None:
        return f"{tool_name}: no data"

    await pace["sleep"](found["seconds"])
    text: str = found["text"]
    missing = found.get("length", 0) - len(text)
    return text + ("\n" + text)[:missing] if missing > 0 else text


@tool(effect="read")
async def list_alerts(minutes: int) -> str:
    """List the alerts that fired within the last minutes."""
    return await recorded("list_alerts", minutes=minutes)


@tool(effect="read")
async def on_call(team: str) -> str:
    """Find the person on call for a team."""
    return await recorded("on_call", team=team)


@tool(effect="read")
async def query_metrics(name: str, minutes: int) -> str:
    """Read a metric of the last minutes, one value every 30 seconds."""
    return await recorded("query_metrics", name=name, minutes=minutes)


@tool(effect="read")
async def search_logs(service: str, query: str, minutes: int) -> str:
    """Search the logs of a service."""
    return await recorded("search_logs", service=service, query=query, minutes=minutes)


@tool(effect="read")
async def trace_sample(service: str, slower_than_ms: int, count: int) -> str:
    """Sample slow traces of a service."""
    return await recorded("trace_sample", service=service, slower_than_ms=slower_than_ms, count=count)


@tool(effect="read")
async def describe_service(service: str) -> str:
    """Describe a service: owner, dependencies, replicas."""
    return await recorded("describe_service", service=service)


@tool(effect="read")
async def list_deploys(service: str, hours: int) -> str:
    """List the deployments of a service."""
    return await recorded("list_deploys", service=service, hours=hours)


@tool(effect="read")
async def git_diff(repo: str, from_version: str, to_version: str, path: str = "") -> str:
    """Show what changed between two versions of a repository, or of one file."""
    only = {"path": path} if path else {}
    return await recorded("git_diff", repo=repo, from_version=from_version, to_version=to_version, **only)


@tool(effect="read")
async def git_log(repo: str, path: str, count: int) -> str:
    """Show the newest commits of a file."""
    return await recorded("git_log", repo=repo, path=path, count=count)


@tool(effect="read")
async def read_file(repo: str, path: str) -> str:
    """Read a file of a repository."""
    return await recorded("read_file", repo=repo, path=path)


@tool(effect="read")
async def explain(database: str, query: str) -> str:
    """Show the plan of a query, with its time."""
    return await recorded("explain", database=database, query=query)


@tool(effect="read")
async def run_sql(database: str, query: str) -> str:
    """Run a query; only queries that read are allowed."""
    return await recorded("run_sql", database=database, query=query)


@tool(effect="read")
async def active_queries(database: str) -> str:
    """List the queries that run in a database now."""
    return await recorded("active_queries", database=database)


@tool(effect="read")
async def simulate_rollback(service: str, to_version: str) -> str:
    """Try a rollback without applying it."""
    return await recorded("simulate_rollback", service=service, to_version=to_version)


@tool(effect="read")
async def check(question: str) -> str:
    """Ask the reviewers' knowledge base."""
    return await recorded("check", question=question)


@tool(effect="write", approval="always")
async def rollback_deploy(
    service: str,
    to_version: str,
    strategy: str,
    max_unavailable: int,
    drain_seconds: int,
    notify: list[str],
    reason: str,
) -> str:
    """Roll a service back to an earlier version."""
    await pace["sleep"](3.0)
    return f"{service} is at {to_version}: 6 of 6 pods ready, {max_unavailable} at a time."


@tool(effect="write", approval="always")
async def post_status(page: str, state: str, text: str) -> str:
    """Post an update to the public status page."""
    return f"{page}: {state} is published."


RULES = (
    "You work on incidents of a shop in production. State what you see before what you conclude; name the evidence. "
    "Read before you change anything; a change needs the approval of a person. Never restart payments while a "
    "settlement batch runs. Prefer the smallest change that can be undone. Times are UTC. "
)
READERS = [
    query_metrics, search_logs, trace_sample, describe_service, list_deploys, git_diff, git_log, read_file, explain,
    run_sql, active_queries, simulate_rollback, recall,
]  # fmt: skip
reviewers = [
    Agent(name, instructions=f"{RULES}Review the proposal for {name}. Vote.", model=BilledModel(name), tools=[check])
    for name in ("database", "payments", "release")
]
triage = Agent(
    "triage",
    instructions=RULES + "Look at the alerts and hand the incident to the right agent.",
    model=BilledModel("triage"),
    tools=[list_alerts, on_call],
    handoffs=["investigator"],
)
investigator = Agent(
    "investigator",
    instructions=RULES + "Find the cause, and propose a fix. Let the panel review it before anything changes.",
    model=BilledModel("investigator"),
    tools=READERS,
    handoffs=["panel"],
)
commander = Agent(
    "commander",
    instructions=RULES + "Weigh the votes of the panel, then act.",
    model=BilledModel("commander"),
    tools=[query_metrics, rollback_deploy, post_status],
)
crew = Crew(
    "incident",
    agents=[triage, investigator, *reviewers, commander],
    groups=[Parallel("panel", branches=reviewers, then=commander)],
    entry=triage,
)
history = chain(MaskToolResults(keep_recent=4, max_readable=9), Summarize(limit=30, prune_to=12))


def build_executor(store: Any = None, speed: float = 300.0) -> CrewExecutor:
    """An executor whose clock runs faster by this factor, so that the timeline has the recorded times."""
    loop = asyncio.get_running_loop()
    began, start = loop.time(), time.time() - 15 * 60
    pace["sleep"] = lambda seconds: asyncio.sleep(seconds / speed)
    options = {} if store is None else {"store": store}
    return CrewExecutor(
        crew,
        history=history,
        clock=lambda: start + (loop.time() - began) * speed,
        monotonic=lambda: (loop.time() - began) * speed,
        **options,
    )


async def main(path: str) -> None:
    executor = build_executor(SQLiteStore(path))
    paused = await executor.execute(INPUT, run_id="7f3a91c2", conversation="INC-2231")
    print(f"{paused.stop_reason}: {', '.join(pause.call.name for pause in paused.pauses if pause.call)}")
    assert len(paused.pauses) == 2
    assert paused.metrics.prefix_breaks >= 3, "masks and summaries change the front of later requests"

    done = await executor.execute(INPUT, run_id="61ff09b4", conversation="INC-2229")
    done = await executor.resume(done.run_id, {pause.id: True for pause in done.pauses})
    print(f"{done.stop_reason}: {done.usage.requests} requests, ${done.usage.cost:.2f}")
    assert done.stop_reason == "completed"
    print(f"crew inspect {path}")


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else str(Path(tempfile.mkdtemp()) / "runs.db")))
