"""One log line a step, with the ids of the run and its spans; silent until logging is configured."""

import asyncio
import json
import logging
from collections.abc import Callable, Iterator

import pytest

from crew import Agent, Crew, CrewExecutor, Limits, ScriptedProvider, call, tool
from crew.runs.events import HistoryPruned
from crew.telemetry import configure, reset
from crew.telemetry.event_table import LOG_ENTRIES, LOG_EVENTS
from crew.telemetry.logs import LogLine


@pytest.fixture
def lines(caplog: pytest.LogCaptureFixture) -> Callable[[], list[dict]]:
    """The fields of every record of the logger `crew`, at any level."""
    caplog.set_level(logging.DEBUG, logger="crew")
    return lambda: [record.msg.fields for record in caplog.records if isinstance(record.msg, LogLine)]


@pytest.fixture(autouse=True)
def nothing_configured() -> Iterator[None]:
    """Each test starts and ends without configuration."""
    reset()
    yield
    reset()


async def test_every_pruning_is_one_log_line(lines: Callable[[], list[dict]], support: Callable[..., Crew]) -> None:
    """`history.pruned` has the same numbers as the result."""
    result = await CrewExecutor(support(), max_messages_per_request=10).execute("Go")
    pruned = [line for line in lines() if line["event"] == "history.pruned"]
    assert [(line["before"], line["after"]) for line in pruned] == list(result.metrics.sizes)
    assert {"limit", "evicted", "policy", "reason", "tokens_before", "tokens_after", "agent", "run_id"} <= set(
        pruned[0]
    )


async def test_logs_spans_events_and_transcript_agree(
    seen, lines: Callable[[], list[dict]], support: Callable[..., Crew]
) -> None:
    """The same ids, counts and order."""
    events: list = []
    executor = CrewExecutor(
        support(), max_messages_per_request=10, telemetry=seen.telemetry(), observers=[events.append]
    )
    result = await executor.execute("Go")
    named = [LOG_ENTRIES[type(event)][0] for event in events if type(event) in LOG_ENTRIES]
    told = lines()
    assert [line["event"] for line in told] == named
    assert {line["run_id"] for line in told} == {result.run_id}
    assert {line["trace_id"] for line in told} == {result.trace_id}

    spans = {f"{span.context.span_id:016x}": span for span in seen.spans}
    for event, line in zip([e for e in events if type(e) in LOG_ENTRIES], told, strict=True):
        span = spans[line["span_id"]]
        assert f"{span.context.trace_id:032x}" == result.trace_id

        if isinstance(event, HistoryPruned):
            assert span.name == "crew.history.prune"
            assert span.attributes["crew.history.evicted"] == line["evicted"] == len(event.evicted)

        if event.kind == "replied":
            assert span.attributes["gen_ai.usage.input_tokens"] == line["input_tokens"] == event.usage.input_tokens

    replies = [message for message in result.transcript if message.role == "assistant"]
    inside = [m for branch in result.branches for m in branch.transcript if m.role == "assistant"]
    chats = seen.named("chat")
    assert len(replies) + len(inside) == len(chats) == sum(line["event"] == "model.replied" for line in told)
    evicted = [
        id for event in events if isinstance(event, HistoryPruned) and "/" not in event.run_id for id in event.evicted
    ]
    ids = [message.id for message in result.transcript]
    assert [id for id in ids if id in set(evicted)] == evicted


async def test_lines_of_a_branch_name_it(lines: Callable[[], list[dict]], support: Callable[..., Crew]) -> None:
    """Lines of a branch say which one."""
    await CrewExecutor(support(0)).execute("Go")
    replied = {line["agent"]: line.get("branch") for line in lines() if line["event"] == "model.replied"}
    assert replied == {"triage": None, "billing": None, "legal": "legal", "finance": "finance", "editor": None}


async def test_log_levels(caplog: pytest.LogCaptureFixture) -> None:
    """A tool error is a warning, a failed run an error, a request debug."""
    caplog.set_level(logging.DEBUG, logger="crew")
    agent = Agent("a", model=ScriptedProvider(call("unknown"), RuntimeError("no")))

    with pytest.raises(Exception, match="no"):
        await CrewExecutor(agent).execute("Go")

    levels = {
        record.msg.fields["event"]: record.levelname for record in caplog.records if isinstance(record.msg, LogLine)
    }
    assert levels["tool.returned"] == "WARNING"
    assert levels["run.failed"] == "ERROR"
    assert levels["model.asked"] == "DEBUG"
    assert levels["agent.started"] == "INFO"


async def test_warning_at_eighty_percent_of_a_limit(lines: Callable[[], list[dict]]) -> None:
    """Once a run for each limit, with value and maximum."""
    agent = Agent("a", model=ScriptedProvider(*[call("x")] * 9, "Done."))
    await CrewExecutor(agent, limits=Limits(rounds=10), max_messages_per_request=100).execute("Go")
    near = [line["text"] for line in lines() if line["event"] == "run.warned"]
    assert near == ["limits.rounds: 8 of 10 used (80%)."]


async def test_nothing_is_printed_by_default(capfd: pytest.CaptureFixture[str], support: Callable[..., Crew]) -> None:
    """The logger `crew` has only a null handler, also for warnings."""
    root = logging.getLogger()
    kept, root.handlers = root.handlers, []

    try:
        await CrewExecutor(support(), max_messages_per_request=10).execute("Go")
    finally:
        root.handlers = kept

    assert capfd.readouterr() == ("", "")


async def test_json_lines_of_tools_and_sdks_have_the_ids(capfd: pytest.CaptureFixture[str], seen) -> None:
    """`configure(logs="json")`: stdlib loggers pass through the same processors."""

    @tool
    async def ask() -> str:
        """Log like an SDK does."""
        logging.getLogger("openai").warning("retrying, key %s", "sk-abcdefghijklmnopqrstuvwx")
        return "ok"

    configure(logs="json", tracer_provider=seen.provider)
    result = await CrewExecutor(Agent("a", model=ScriptedProvider(call("ask"), "Done."), tools=[ask])).execute("Go")
    lines = [json.loads(line) for line in capfd.readouterr().err.splitlines()]
    assert [line["event"] for line in lines] == [
        "run.started",
        "agent.started",
        "model.replied",
        "retrying, key [hidden]",
        "tool.returned",
        "model.replied",
        "run.finished",
    ]
    assert {line["run_id"] for line in lines} == {result.run_id}
    assert {line["trace_id"] for line in lines} == {result.trace_id}
    assert lines[3]["tool"] == "ask"
    assert lines[3]["logger"] == "openai"
    assert {line["level"] for line in lines} == {"info", "warning"}


async def test_abandoned_stream_is_logged_as_interrupted(lines: Callable[[], list[dict]]) -> None:
    """Leaving a stream is not an error, but it is logged."""
    async with CrewExecutor(Agent("a", model=ScriptedProvider("Hi."))).execute_stream("Go") as events:
        async for _ in events:
            break

    assert lines()[-1]["event"] in ("run.interrupted", "run.finished")
    assert all(record["event"] != "run.failed" for record in lines())


def test_every_log_event_is_in_the_names_module() -> None:
    """The docs list every log event."""
    extra = {"run.interrupted", "tool.raised"}
    assert {entry.name for entry in LOG_ENTRIES.values()} | extra == set(LOG_EVENTS)


SECRET = "hunter2-hunter2"


@tool(retries=1)
def pay(account: str) -> str:
    """Fail with a secret in the message."""
    raise LookupError(f"no account {account}, token {SECRET}, key sk-abcdefghijklmnopqrstuvwx")


def payer(*tools: object) -> CrewExecutor:
    script = ScriptedProvider(call("pay", account="17"), "Done.")
    return CrewExecutor(Agent("a", model=script, tools=tools or [pay]), secrets=[SECRET])


async def test_traceback_of_a_tool_is_logged_without_secrets(caplog: pytest.LogCaptureFixture) -> None:
    """A warning for each attempt, so that it shows by default, with the frames of the tool and not of the engine."""
    caplog.set_level(logging.WARNING, logger="crew")
    result = await payer().execute("Go")
    raised = [record for record in caplog.records if str(record.msg).startswith("tool.raised")]
    assert [record.levelname for record in raised] == ["WARNING", "WARNING"]
    fields = raised[0].msg.fields
    assert (fields["tool"], fields["error_type"], fields["agent"], fields["run_id"]) == (
        "pay",
        "LookupError",
        "a",
        result.run_id,
    )
    first, *frames, last = raised[0].getMessage().splitlines()[1:]
    assert first == "Traceback (most recent call last):"
    assert last == "LookupError: no account 17, token [secret], key [hidden]"
    assert sum(line.lstrip().startswith("File ") for line in frames) == 1
    assert "in pay" in "".join(frames)
    assert not [record for record in caplog.records if SECRET in record.getMessage()]


async def test_traceback_is_a_field_of_a_json_line(capfd: pytest.CaptureFixture[str]) -> None:
    """`configure(logs="json")`: at the default level, under the name that structlog uses."""
    configure(logs="json")
    await payer().execute("Go")
    lines = [json.loads(line) for line in capfd.readouterr().err.splitlines()]
    raised = [line for line in lines if line["event"] == "tool.raised"]
    assert raised[0]["exception"].startswith("Traceback (most recent call last):\n")
    assert SECRET not in str(lines)


async def test_cancelled_and_interrupted_tools_log_no_traceback(lines: Callable[[], list[dict]]) -> None:
    """Only an error has a traceback; Ctrl-C is logged as an interrupted run."""

    @tool(name="pay", timeout=0.01)
    async def slow(account: str) -> str:
        """Take too long."""
        await asyncio.sleep(60)
        return ""

    @tool(name="pay")
    async def stopped(account: str) -> str:
        """Be interrupted."""
        raise KeyboardInterrupt

    await payer(slow).execute("Go")

    with pytest.raises(KeyboardInterrupt):
        await payer(stopped).execute("Go")

    assert "tool.raised" not in [line["event"] for line in lines()]
    assert lines()[-1]["event"] == "run.interrupted"
    assert lines()[-1]["error_type"] == "KeyboardInterrupt"
