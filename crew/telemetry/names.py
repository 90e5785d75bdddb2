"""Every name that telemetry uses, with what it means: spans, attributes, span events, metrics and log lines.

The `gen_ai.*` names follow the GenAI semantic conventions of OpenTelemetry as of version 1.43; they are kept here
because the packaged constants are marked deprecated. docs/observability.md is generated from these tables.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

SCOPE = "crew"
CAPTURE_VARIABLE = "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT"

# ------------------------------------------------------------------------------------------------ spans

INVOKE_WORKFLOW = "invoke_workflow"
INVOKE_AGENT = "invoke_agent"
CHAT = "chat"
EXECUTE_TOOL = "execute_tool"
PARALLEL = "crew.parallel"
PRUNE = "crew.history.prune"
COMPACT = "crew.compact"

SPANS: dict[str, str] = {
    f"{INVOKE_WORKFLOW} {{crew}}": "One run, from its start (or its resume) to its end, pause or failure: the root.",
    f"{INVOKE_AGENT} {{agent}}": "The time in which one agent has the work. Linked to the handoff or route before it.",
    f"{CHAT} {{model}}": "One question to a model and its reply (kind CLIENT). The only spans with `gen_ai.usage.*`.",
    f"{EXECUTE_TOOL} {{tool}}": "One call of a tool, of an agent as a tool, or of a handoff (`transfer_to_…`).",
    f"{PARALLEL} {{group}}": "A group whose branches work at the same time; each branch is a child.",
    PRUNE: "One pruning of the history.",
    COMPACT: "One compaction: the history, or a part of it, becomes a summary. Its model call is a `chat` below it.",
}

# ------------------------------------------------------------------------------------------------ attributes

OPERATION = "gen_ai.operation.name"
PROVIDER = "gen_ai.provider.name"
REQUEST_MODEL = "gen_ai.request.model"
RESPONSE_MODEL = "gen_ai.response.model"
RESPONSE_ID = "gen_ai.response.id"
FINISH_REASONS = "gen_ai.response.finish_reasons"
INPUT_TOKENS = "gen_ai.usage.input_tokens"
OUTPUT_TOKENS = "gen_ai.usage.output_tokens"
CACHE_READ_TOKENS = "gen_ai.usage.cache_read.input_tokens"
CACHE_WRITE_TOKENS = "gen_ai.usage.cache_creation.input_tokens"
REASONING_TOKENS = "gen_ai.usage.reasoning.output_tokens"
AGENT_NAME = "gen_ai.agent.name"
TOOL_NAME = "gen_ai.tool.name"
TOOL_TYPE = "gen_ai.tool.type"
TOOL_CALL_ID = "gen_ai.tool.call.id"
CONVERSATION_ID = "gen_ai.conversation.id"
WORKFLOW_NAME = "gen_ai.workflow.name"
TOKEN_TYPE = "gen_ai.token.type"
ERROR_TYPE = "error.type"
INPUT_MESSAGES = "gen_ai.input.messages"
OUTPUT_MESSAGES = "gen_ai.output.messages"
INSTRUCTIONS = "gen_ai.system_instructions"
TOOL_ARGUMENTS = "gen_ai.tool.call.arguments"
TOOL_RESULT = "gen_ai.tool.call.result"

RUN_ID = "crew.run.id"
STOP_REASON = "crew.stop_reason"
LINK_TYPE = "crew.link"
COST = "crew.cost.usd"
MESSAGES = "crew.request.messages"
ESTIMATED_TOKENS = "crew.request.estimated_tokens"
OMITTED = "crew.content.omitted"
USAGE_REQUESTS = "crew.usage.requests"
USAGE_INPUT = "crew.usage.input_tokens"
USAGE_OUTPUT = "crew.usage.output_tokens"
USAGE_CACHE_READ = "crew.usage.cache_read_tokens"
USAGE_CACHE_WRITE = "crew.usage.cache_write_tokens"
USAGE_COST = "crew.usage.cost_usd"
PRUNINGS = "crew.history.prunings"
MESSAGES_PRUNED_TOTAL = "crew.history.messages_pruned"
GROUP = "crew.parallel.group"
GROUP_POLICY = "crew.parallel.policy"
BRANCHES = "crew.parallel.branches"
SUCCEEDED = "crew.parallel.succeeded"
BRANCH_OUTCOME = "crew.branch.outcome"
MESSAGES_BEFORE = "crew.history.before"
MESSAGES_AFTER = "crew.history.after"
EVICTED = "crew.history.evicted"
HISTORY_LIMIT = "crew.history.limit"
HISTORY_POLICY = "crew.history.policy"
PRUNING_REASON = "crew.history.reason"
TOKENS_BEFORE = "crew.history.tokens_before"
TOKENS_AFTER = "crew.history.tokens_after"
PREFIX_MOVED = "crew.history.prefix_moved"
PRUNED_WHERE = "crew.history.where"
MASKED = "crew.history.masked"
SAME_MESSAGES = "crew.request.same_messages"
MOVED_BY = "crew.request.moved_by"
STAGE = "crew.history.stage"
COMPACTION_CAUSE = "crew.compact.cause"
SUMMARY_COVERS = "crew.compact.covers"
LIMIT_NAME = "crew.limit"

ATTRIBUTES: dict[str, str] = {
    OPERATION: "`invoke_workflow`, `invoke_agent`, `chat` or `execute_tool`.",
    WORKFLOW_NAME: "The crew's name.",
    CONVERSATION_ID: "The same for all runs that continue one conversation.",
    AGENT_NAME: "Who works.",
    PROVIDER: "Who was asked: `openai`, `anthropic`, `scripted`, …",
    REQUEST_MODEL: "The model that was asked for.",
    RESPONSE_MODEL: "The model that says it answered.",
    RESPONSE_ID: "The provider's id of the reply.",
    FINISH_REASONS: "Why the reply ended: `stop`, `length`, `tool_call` or `content_filter`.",
    INPUT_TOKENS: "Tokens read, cached ones included. On `chat` alone, so that a sum over spans is the bill.",
    OUTPUT_TOKENS: "Tokens written. On `chat` alone.",
    CACHE_READ_TOKENS: "Of the tokens read, those that came from the provider's cache.",
    CACHE_WRITE_TOKENS: "Of the tokens read, those that were written to the provider's cache.",
    REASONING_TOKENS: "Of the tokens written, those that were thinking.",
    TOOL_NAME: "The tool's name.",
    TOOL_TYPE: "`function`, `agent` or `handoff`.",
    TOOL_CALL_ID: "The call's id in the history.",
    TOKEN_TYPE: "On a metric: `input` or `output`.",
    ERROR_TYPE: (
        "What went wrong: an error's class, or `tool_error`, `branch_failed`, `summary_refused`, `compaction_failed`."
    ),
    INPUT_MESSAGES: "By opt-in: the request's messages as JSON.",
    OUTPUT_MESSAGES: "By opt-in: the reply as JSON.",
    INSTRUCTIONS: "By opt-in: the agent's instructions as JSON.",
    TOOL_ARGUMENTS: "By opt-in: the call's arguments.",
    TOOL_RESULT: "By opt-in: what the model was told of the call.",
    RUN_ID: "The run; a branch is `run/branch`.",
    STOP_REASON: "`completed`, `paused`, `limit`, `cancelled`, `failed`, or `interrupted` (the caller went away).",
    LINK_TYPE: "On a link: `handoff`, `route` or `resumed`.",
    COST: "Dollars, on `chat` alone; left out where a price is unknown or nothing.",
    MESSAGES: "Messages in the request.",
    ESTIMATED_TOKENS: "What the request was estimated at before it was sent.",
    OMITTED: "By opt-in: how many older messages did not fit into the attribute.",
    USAGE_REQUESTS: "The run's total of model calls, branches included.",
    USAGE_INPUT: "The run's total of tokens read.",
    USAGE_OUTPUT: "The run's total of tokens written.",
    USAGE_CACHE_READ: "The run's total of tokens read from a cache.",
    USAGE_CACHE_WRITE: "The run's total of tokens written to a cache.",
    USAGE_COST: "The run's total in dollars; left out where a price is unknown or nothing.",
    PRUNINGS: "How often the history was pruned in this run, the parts before a pause included.",
    MESSAGES_PRUNED_TOTAL: "How many messages left the history in this run, the parts before a pause included.",
    GROUP: "The group's name.",
    GROUP_POLICY: "The group's `on_error`.",
    BRANCHES: "How many branches the group has.",
    SUCCEEDED: "How many of them completed.",
    BRANCH_OUTCOME: "What the branch came to: `completed`, `failed`, `limit`, or `cancelled` (it was cut off).",
    MESSAGES_BEFORE: "Messages in the history before the pruning.",
    MESSAGES_AFTER: "Messages in the history after it.",
    EVICTED: "Messages that left.",
    HISTORY_LIMIT: "The bound.",
    HISTORY_POLICY: "The policy that decided.",
    PRUNING_REASON: "Why it pruned.",
    TOKENS_BEFORE: "Estimated tokens before.",
    TOKENS_AFTER: "Estimated tokens after.",
    PREFIX_MOVED: "Whether the front of the next request changed, so that the provider's cache misses once.",
    PRUNED_WHERE: "`history`, or `view`: what one agent is shown of it.",
    MASKED: "Tool results whose text is left out from now on.",
    SAME_MESSAGES: "Messages at the front that are those of this agent's request before.",
    MOVED_BY: "The rule that moved the front since then; left out where it held still.",
    STAGE: "On a metric: `before` or `after` the pruning.",
    COMPACTION_CAUSE: "The policy or the strategy that asked for a summary.",
    SUMMARY_COVERS: "How many messages the summary stands for.",
    LIMIT_NAME: "On a metric: which limit; `messages` is the bound of the history.",
}

# ------------------------------------------------------------------------------------------------ span events

SPAN_EVENTS: dict[str, str] = {
    "crew.retry": "On `chat`: an attempt failed and is made again; attempt, reason, wait.",
    "crew.fallback": "The backup model takes over; model, backup, reason.",
    "crew.too_long": "The request outgrew the model's window and is cut further; model, tokens, maximum.",
    "crew.paused": "On the root: the run waits for a person; pauses.",
    "crew.route": "A signal, or `then`, sends the work on; signal, target.",
    "crew.call_held": "A call waits for approval; call.",
    "crew.calls_declined": "A reply asked for more calls than are accepted; calls, accepted.",
    "crew.reply_empty": "The reply held nothing; outcome.",
    "crew.history.repaired": "A history that came in broken was mended; changes.",
    "crew.limit_reached": "On the root: a limit ends the run; limit, value.",
    "crew.branch_timed_out": "On the group: its time is over; seconds.",
    "crew.warning": "Something that a person may want to know; text.",
    "crew.cancelled": "Somebody asked for the end.",
}

# ------------------------------------------------------------------------------------------------ metrics


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """An instrument: what kind, in which unit, and what it says."""

    kind: Literal["counter", "histogram", "updown"]
    unit: str
    description: str
    buckets: tuple[float, ...] = ()


_SECONDS = (0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92)
_TOKENS = (1, 4, 16, 64, 256, 1024, 4096, 16384, 65536, 262144, 1048576, 4194304, 16777216, 67108864)
_SIZES = (1, 2, 5, 10, 20, 30, 40, 50, 75, 100, 150, 200, 500, 1000)
_RATIOS = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 1.0)

CLIENT_DURATION = "gen_ai.client.operation.duration"
TOKEN_USAGE = "gen_ai.client.token.usage"
TIME_TO_FIRST_CHUNK = "gen_ai.client.operation.time_to_first_chunk"
TOOL_DURATION = "gen_ai.execute_tool.duration"
AGENT_DURATION = "gen_ai.invoke_agent.duration"
WORKFLOW_DURATION = "gen_ai.invoke_workflow.duration"
MESSAGES_PRUNED = "crew.history.messages_pruned"
HISTORY_SIZE = "crew.history.size"
LIMIT_UTILISATION = "crew.limit.utilisation"
HISTORY_UTILISATION = "crew.history.utilisation"
CACHE_READ_RATIO = "crew.cache.read_ratio"
COST_USD = "crew.cost.usd"
TOOL_ERRORS = "crew.tool.errors"
RETRIES = "crew.retries"
RUNS_ACTIVE = "crew.runs.active"

METRICS: dict[str, Metric] = {
    CLIENT_DURATION: Metric(kind="histogram", unit="s", description="One model call.", buckets=_SECONDS),
    TOKEN_USAGE: Metric(kind="histogram", unit="{token}", description="Tokens of one model call.", buckets=_TOKENS),
    TIME_TO_FIRST_CHUNK: Metric(
        kind="histogram", unit="s", description="Until the first piece of a stream.", buckets=_SECONDS
    ),
    TOOL_DURATION: Metric(kind="histogram", unit="s", description="One call of a tool.", buckets=_SECONDS),
    AGENT_DURATION: Metric(kind="histogram", unit="s", description="An agent's time with the work.", buckets=_SECONDS),
    WORKFLOW_DURATION: Metric(kind="histogram", unit="s", description="One run.", buckets=_SECONDS),
    MESSAGES_PRUNED: Metric(kind="counter", unit="{message}", description="Messages that left a history."),
    HISTORY_SIZE: Metric(
        kind="histogram",
        unit="{message}",
        description="Messages in the history before and after a pruning.",
        buckets=_SIZES,
    ),
    HISTORY_UTILISATION: Metric(
        kind="histogram",
        unit="1",
        description="Messages in a run's largest request, as a part of the bound.",
        buckets=_RATIOS,
    ),
    LIMIT_UTILISATION: Metric(
        kind="histogram", unit="1", description="How much of a limit a run had used when it ended.", buckets=_RATIOS
    ),
    CACHE_READ_RATIO: Metric(
        kind="histogram",
        unit="1",
        description="Of all tokens that a run read, the part that came from a cache.",
        buckets=_RATIOS,
    ),
    COST_USD: Metric(kind="counter", unit="{USD}", description="Money, where prices are known."),
    TOOL_ERRORS: Metric(kind="counter", unit="{call}", description="Calls that came to an error."),
    RETRIES: Metric(kind="counter", unit="{attempt}", description="Model calls that were tried again."),
    RUNS_ACTIVE: Metric(kind="updown", unit="{run}", description="Runs under way."),
}

# ------------------------------------------------------------------------------------------------ log lines

Level = Literal["debug", "info", "warning", "error"]

LOG_EVENTS: dict[str, tuple[Level, str]] = {
    "run.started": ("info", "A run begins; messages."),
    "run.resumed": ("info", "A run goes on; answers (how many)."),
    "agent.started": ("info", "An agent takes over."),
    "model.asked": ("debug", "A model is asked; provider, model, messages, tokens."),
    "model.replied": ("info", "It replied; model, finish_reason, tokens, cost, calls."),
    "model.retried": ("warning", "An attempt failed and is made again; attempt, reason, wait."),
    "model.fell_back": ("warning", "The backup model takes over; model, backup, reason."),
    "model.too_long": ("warning", "The request outgrew the model's window and is cut further; tokens, maximum."),
    "reply.empty": ("warning", "The reply held nothing; outcome."),
    "tools.started": ("debug", "Calls begin; tools."),
    "tool.returned": (
        "info",
        "A call is answered; tool, call, outcome, seconds. An error is a warning, with error_type.",
    ),
    "call.held": ("info", "A call waits for approval; call."),
    "calls.declined": ("warning", "More calls than are accepted; calls, accepted."),
    "handoff": ("info", "The work goes to another agent or group; target."),
    "route": ("info", "A signal, or `then`, sends the work on; signal, target."),
    "branch.started": ("info", "A branch, or an agent called as a tool, begins; branch, group."),
    "branch.finished": ("info", "It has ended; branch, group, outcome. A failure is a warning."),
    "branch.timed_out": ("warning", "The group's time is over; group, seconds."),
    "history.pruned": ("info", "Messages left the history; before, after, limit, evicted, policy, reason, tokens."),
    "history.repaired": ("warning", "A history that came in broken was mended; changes, where."),
    "history.compacted": ("info", "A summary stands for a part of the history; cause, covers, tokens."),
    "history.compaction_failed": ("warning", "A summary came to nothing; cause, reason, waiting."),
    "history.summarised": ("debug", "A summariser answered; model, tokens, cost."),
    "limit.reached": ("warning", "A limit ends the run; limit, value."),
    "run.warned": ("warning", "Something that a person may want to know, such as 80 % of a limit being used; text."),
    "run.paused": ("info", "The run waits for a person; pauses."),
    "run.cancelled": ("info", "Somebody asked for the end."),
    "run.failed": ("error", "A run can't go on (a branch: a warning); error, error_type."),
    "run.finished": ("info", "The run returns; stop_reason, requests, tokens, cost."),
    "run.interrupted": ("info", "The caller went away; the state is committed, and the run can be resumed."),
}
