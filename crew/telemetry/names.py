"""The names and meanings of spans, attributes and metrics; the tables in docs/observability.md are generated from them.

The `gen_ai.*` names follow version 1.43 of OpenTelemetry's GenAI semantic conventions; they are repeated here because
the packaged constants are deprecated.
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
    f"{INVOKE_WORKFLOW} {{crew}}": "The root: one run, from its start or resume to its end, pause or failure.",
    f"{INVOKE_AGENT} {{agent}}": "The time in which one agent is active. Linked to the handoff or route before it.",
    f"{CHAT} {{model}}": "One request to a model and its reply (kind CLIENT). The only spans with `gen_ai.usage.*`.",
    f"{EXECUTE_TOOL} {{tool}}": "One call of a tool, of an agent as a tool, or of a handoff (`transfer_to_…`).",
    f"{PARALLEL} {{group}}": "A parallel group; each branch is a child.",
    PRUNE: "One pruning of the history.",
    COMPACT: "One compaction: a summary replaces messages in the history. Its model request is a `chat` below it.",
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

MCP_METHOD = "mcp.method.name"
NETWORK_TRANSPORT = "network.transport"
SERVER_ADDRESS = "server.address"
SERVER_PORT = "server.port"

RUN_ID = "crew.run.id"
TOOLSET = "crew.toolset"
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
    AGENT_NAME: "The active agent.",
    PROVIDER: "The provider: `openai`, `anthropic`, `scripted`, …",
    REQUEST_MODEL: "The requested model.",
    RESPONSE_MODEL: "The model that replied, as the provider names it.",
    RESPONSE_ID: "The provider's id of the reply.",
    FINISH_REASONS: "Why the reply ended: `stop`, `length`, `tool_call` or `content_filter`.",
    INPUT_TOKENS: "Input tokens, cached ones included. Only on `chat`, so that a sum over spans is the total.",
    OUTPUT_TOKENS: "Output tokens. Only on `chat`.",
    CACHE_READ_TOKENS: "Input tokens that were read from the provider's cache.",
    CACHE_WRITE_TOKENS: "Input tokens that were written to the provider's cache.",
    REASONING_TOKENS: "Output tokens that were spent on reasoning.",
    TOOL_NAME: "The tool's name.",
    TOOL_TYPE: "`function`, `agent` or `handoff`.",
    TOOL_CALL_ID: "The call's id in the history.",
    TOKEN_TYPE: "On a metric: `input` or `output`.",
    ERROR_TYPE: ("The class of the error, or `tool_error`, `branch_failed`, `summary_refused`, `compaction_failed`."),
    INPUT_MESSAGES: "Opt-in: the messages of the request as JSON.",
    OUTPUT_MESSAGES: "Opt-in: the reply as JSON.",
    INSTRUCTIONS: "Opt-in: the agent's instructions as JSON.",
    TOOL_ARGUMENTS: "Opt-in: the arguments of the call.",
    TOOL_RESULT: "Opt-in: the result that the model reads.",
    MCP_METHOD: "On a call of an MCP server: `tools/call`, `resources/read`, ….",
    NETWORK_TRANSPORT: "On a call of an MCP server: `pipe` or `tcp`.",
    SERVER_ADDRESS: "On a call of an MCP server with a URL: its host.",
    SERVER_PORT: "On a call of an MCP server with a URL: its port.",
    RUN_ID: "The run; a branch is `run/branch`.",
    TOOLSET: "The toolset that the called tool belongs to, such as the name of an MCP server.",
    STOP_REASON: "`completed`, `paused`, `limit`, `cancelled`, `failed`, or `interrupted` (the caller left).",
    LINK_TYPE: "On a link: `handoff`, `route` or `resumed`.",
    COST: "Cost in dollars. Only on `chat`; missing if the price is unknown or 0.",
    MESSAGES: "Messages in the request.",
    ESTIMATED_TOKENS: "The estimated tokens of the request.",
    OMITTED: "Opt-in: how many older messages did not fit into the attribute.",
    USAGE_REQUESTS: "Model requests of the run, branches included.",
    USAGE_INPUT: "Input tokens of the run.",
    USAGE_OUTPUT: "Output tokens of the run.",
    USAGE_CACHE_READ: "Input tokens of the run that were read from a cache.",
    USAGE_CACHE_WRITE: "Input tokens of the run that were written to a cache.",
    USAGE_COST: "Cost of the run in dollars; missing if a price is unknown or 0.",
    PRUNINGS: "Prunings of the history in this run, those before a pause included.",
    MESSAGES_PRUNED_TOTAL: "Messages evicted from the history in this run, those before a pause included.",
    GROUP: "The group's name.",
    GROUP_POLICY: "The group's `on_error`.",
    BRANCHES: "How many branches the group has.",
    SUCCEEDED: "How many branches completed.",
    BRANCH_OUTCOME: "How the branch ended: `completed`, `failed`, `limit` or `cancelled`.",
    MESSAGES_BEFORE: "Messages in the history before the pruning.",
    MESSAGES_AFTER: "Messages in the history after the pruning.",
    EVICTED: "Evicted messages.",
    HISTORY_LIMIT: "The limit that was exceeded: messages, or tokens or readable results of a view.",
    HISTORY_POLICY: "The policy that pruned.",
    PRUNING_REASON: "Why it pruned.",
    TOKENS_BEFORE: "Estimated tokens before the pruning.",
    TOKENS_AFTER: "Estimated tokens after the pruning.",
    PREFIX_MOVED: "Whether the start of the next request changed, so that the provider's cache misses once.",
    PRUNED_WHERE: "`history`, or `view`: the part of it that one agent sees.",
    MASKED: "Tool results whose text is masked from now on.",
    SAME_MESSAGES: "Leading messages that are the same as in this agent's previous request.",
    MOVED_BY: "The rule that changed the leading messages since then; missing if they are the same.",
    STAGE: "On a metric: `before` or `after` the pruning.",
    COMPACTION_CAUSE: "The policy or strategy that asked for a summary.",
    SUMMARY_COVERS: "How many messages the summary replaces.",
    LIMIT_NAME: "On a metric: the limit, such as `rounds` or `tokens`.",
}

# ------------------------------------------------------------------------------------------------ metrics


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """The definition of an instrument."""

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
DELAYED = "crew.requests.delayed"
RUNS_ACTIVE = "crew.runs.active"

METRICS: dict[str, Metric] = {
    CLIENT_DURATION: Metric(kind="histogram", unit="s", description="One model call.", buckets=_SECONDS),
    TOKEN_USAGE: Metric(kind="histogram", unit="{token}", description="Tokens of one model call.", buckets=_TOKENS),
    TIME_TO_FIRST_CHUNK: Metric(
        kind="histogram", unit="s", description="Time to the first piece of a stream.", buckets=_SECONDS
    ),
    TOOL_DURATION: Metric(kind="histogram", unit="s", description="One call of a tool.", buckets=_SECONDS),
    AGENT_DURATION: Metric(
        kind="histogram", unit="s", description="The time in which one agent is active.", buckets=_SECONDS
    ),
    WORKFLOW_DURATION: Metric(kind="histogram", unit="s", description="One run.", buckets=_SECONDS),
    MESSAGES_PRUNED: Metric(kind="counter", unit="{message}", description="Messages evicted from a history."),
    HISTORY_SIZE: Metric(
        kind="histogram",
        unit="{message}",
        description="Messages in the history before and after a pruning.",
        buckets=_SIZES,
    ),
    HISTORY_UTILISATION: Metric(
        kind="histogram",
        unit="1",
        description="Messages in a run's largest request, divided by `max_messages_per_request`.",
        buckets=_RATIOS,
    ),
    LIMIT_UTILISATION: Metric(
        kind="histogram", unit="1", description="The used part of a limit at the end of a run.", buckets=_RATIOS
    ),
    CACHE_READ_RATIO: Metric(
        kind="histogram",
        unit="1",
        description="The part of a run's input tokens that was read from a cache.",
        buckets=_RATIOS,
    ),
    COST_USD: Metric(kind="counter", unit="{USD}", description="Cost in dollars, if prices are known."),
    TOOL_ERRORS: Metric(kind="counter", unit="{call}", description="Tool calls with an error."),
    RETRIES: Metric(kind="counter", unit="{attempt}", description="Repeated model requests."),
    DELAYED: Metric(kind="counter", unit="{request}", description="Requests that waited over 1 s for a rate limit."),
    RUNS_ACTIVE: Metric(kind="updown", unit="{run}", description="Runs in progress."),
}
