"""A configuration file is accepted as a whole, or refused with the location of every problem."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from crew import (
    Agent,
    CrewError,
    CrewExecutor,
    FromTimestamp,
    LastNMessages,
    RequestParameters,
    RunError,
    ScriptedProvider,
)
from crew.config import load
from crew.errors import ConfigError
from crew.history.policies import Checkpoint, HeadTail, Rolling
from crew.interfaces import Policy, policy_options
from crew.messages import SummaryMessage
from crew.telemetry import reset
from tests.wire import Fault, WireServer


def write_config(folder: Path, text: str) -> Path:
    path = folder / "config.yaml"
    path.write_text(text, encoding="utf-8")
    return path


def load_problems(folder: Path, text: str, **environment: str) -> tuple[str, ...]:
    with pytest.raises(ConfigError) as caught:
        load(write_config(folder, text), environment)

    return tuple(problem.replace(f"{folder}/", "") for problem in caught.value.problems)


def test_the_shipped_file_holds_the_defaults() -> None:
    """An executor built from config.yaml has the settings of one built without a file."""
    shipped = CrewExecutor.from_config("config.yaml", crew="greeter")
    bare = CrewExecutor(shipped.plan.crew)
    assert shipped.plan.budget == bare.plan.budget
    assert shipped.plan.policy == bare.plan.policy
    assert shipped._streams.starter.limits == bare._streams.starter.limits
    assert shipped._streams.starter.validator == bare._streams.starter.validator
    assert shipped._streams.starter.parameters == bare._streams.starter.parameters


def test_all_problems_are_reported_with_their_locations(tmp_path: Path) -> None:
    """Unknown keys, wrong types and missing keys: file, line, column and the closest known key."""
    text = """\
max_mesages_per_request: 50
prune_to: "25"
limits: {rounds: x, rouns: 3}
crews:
  a:
    agents:
      b: {modl: x}
"""
    assert load_problems(tmp_path, text) == (
        "config.yaml:1:1: max_mesages_per_request is not a known key. Did you mean 'max_messages_per_request'?",
        "config.yaml:2:1: prune_to must be a positive integer, not '25'",
        "config.yaml:3:10: limits.rounds must be 0 or a positive integer, not 'x'",
        "config.yaml:3:21: limits.rouns is not a known key. Did you mean 'rounds' or 'tokens'?",
        "config.yaml:7:7: crews.a.agents.b.model is required",
        "config.yaml:7:11: crews.a.agents.b.modl is not a known key. Did you mean 'model'?",
    )


@pytest.mark.parametrize("value", ["0", "-1", '"50"', "2.5", "true", "[50]"])
def test_a_limit_that_is_not_a_positive_integer_is_refused(tmp_path: Path, value: str) -> None:
    """The constructor refuses the same values."""
    (problem,) = load_problems(tmp_path, f"max_messages_per_request: {value}\n")
    assert problem.startswith("config.yaml:1:1: max_messages_per_request must be a positive integer such as 50, not ")


def test_environment_variables_are_substituted(tmp_path: Path) -> None:
    """${NAME} is parsed as if its value were in the file; ${NAME:-default} falls back to the default."""
    path = write_config(
        tmp_path, "max_messages_per_request: ${LIMIT}\nprune_to: ${TARGET:-7}\nhistory: '${POLICY:-rolling}'\n"
    )
    settings = load(path, {"LIMIT": "20"})
    assert (settings.max_messages_per_request, settings.prune_to) == (20, 7)
    assert settings.history is not None
    assert settings.history.name == "rolling"


def test_an_unset_environment_variable_is_reported(tmp_path: Path) -> None:
    """The problem names the variable and says what to do."""
    assert load_problems(tmp_path, "history: ${NOPE}\n") == (
        "config.yaml:1:10: the environment variable NOPE is not set; set it, or write ${NOPE:-default}",
    )


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a: [1", "invalid YAML"),
        ("- 1\n- 2\n", "must contain a mapping"),
        ("prune_to: 1\nprune_to: 2\n", "duplicate key 'prune_to'"),
        ("history: !!python/object/apply:os.system ['true']\n", "history"),
        ("prune_to: !!int x\n", "can't read 'x'"),
    ],
)
def test_invalid_or_unsafe_yaml_is_refused(tmp_path: Path, text: str, words: str) -> None:
    """Syntax errors, wrong structure, duplicate keys and Python tags: nothing is executed."""
    assert words in "\n".join(load_problems(tmp_path, text))


def test_a_missing_binary_or_large_file_is_refused(tmp_path: Path) -> None:
    """The error says why the file can't be read."""
    with pytest.raises(ConfigError, match="can't read the file"):
        load(tmp_path / "nowhere.yaml")

    (tmp_path / "binary.yaml").write_bytes(b"\xff\xfe\x00")

    with pytest.raises(ConfigError, match="UTF-8"):
        load(tmp_path / "binary.yaml")

    (tmp_path / "large.yaml").write_bytes(b"#" * 1_000_001)

    with pytest.raises(ConfigError, match="at most 1000000"):
        load(tmp_path / "large.yaml")


def test_an_empty_file_has_all_defaults(tmp_path: Path) -> None:
    assert load(write_config(tmp_path, "")) == load(write_config(tmp_path, "# only a comment\n"))


CREW = """\
max_messages_per_request: 10
execution: {max_iterations: 5}
crews:
  support:
    entry: triage
    agents:
      triage:
        model: "scripted:see [PANEL]"
        routes: [{signal: "[PANEL]", to: panel}]
        handoffs: [{to: editor, history: text_only}]
      legal: {model: "scripted:fine", tools: ["os.path:basename"]}
      editor: {model: "scripted:done", settings: {max_output_tokens: 5}}
    groups:
      panel: {branches: [legal, legal], then: editor, on_error: 1}
"""


async def test_a_crew_from_a_file_runs(tmp_path: Path) -> None:
    """Agents, tools, routes, handoffs and groups are built; the executor has the settings of the file."""
    executor = CrewExecutor.from_config(write_config(tmp_path, CREW), crew="support")
    result = await executor.execute("go")
    assert result.output == "done"
    assert result.metrics.limit == 10
    assert executor._streams.starter.limits.rounds == 5
    assert executor.plan.agents["editor"].settings.max_output_tokens == 5


async def test_max_input_tokens_applies_to_a_crew_that_is_an_object(tmp_path: Path) -> None:
    """The file's window is that of every agent without its own, also if the crew is not in the file."""
    path = write_config(tmp_path, "max_input_tokens: 4000\n")
    clerk = Agent("clerk", model=ScriptedProvider("Yes."), max_input_tokens=9000)
    lead = Agent("lead", model=ScriptedProvider("Fine."), tools=[clerk.as_tool()])
    result = await CrewExecutor.from_config(path, lead).execute("Hello")
    windows = {name: budgets[0].window for name, budgets in result.state.token_budgets.items()}
    assert windows == {"lead": 4000, "clerk": 9000}


RETRIES = """\
retry: {attempts: 3, first_wait: 0.001}
crews:
  a:
    agents:
      patient: {model: "openai:gpt-5", then: hasty}
      hasty: {model: "openai:gpt-5", retry: {attempts: 1, timeout: 20}}
"""


async def test_a_file_limits_the_retries_of_all_agents_and_of_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`retry:` of the file is for all agents, `retry:` of an agent for its requests."""
    async with WireServer(faults={0: Fault("overloaded"), 1: Fault("overloaded"), 3: Fault("overloaded")}) as server:
        monkeypatch.setenv("OPENAI_BASE_URL", server.openai_url)
        monkeypatch.setenv("OPENAI_API_KEY", "sk-secret-0123456789")

        with pytest.raises(RunError, match="1 attempt in"):
            await CrewExecutor.from_config(write_config(tmp_path, RETRIES), "a").execute("Hello")

    assert server.count == 4


def test_problems_of_retry_sections_have_locations(tmp_path: Path) -> None:
    text = "retry: {attempts: 0}\ncrews: {a: {agents: {b: {model: 'scripted:x', retry: {timout: 5}}}}}\n"
    assert load_problems(tmp_path, text) == (
        "config.yaml:1:9: retry.attempts must be a positive integer, not 0",
        "config.yaml:2:55: crews.a.agents.b.retry.timout is not a known key. Did you mean 'timeout'?",
    )


def write_module(folder: Path, name: str, text: str = "def lamp() -> str:\n    return 'on'\n") -> None:
    folder.mkdir(exist_ok=True)
    (folder / f"{name}.py").write_text(text, encoding="utf-8")


def tool_config(folder: Path, tool: str) -> Path:
    return write_config(folder, f"crews: {{a: {{agents: {{host: {{model: 'scripted:x', tools: ['{tool}']}}}}}}}}\n")


def test_a_file_in_another_folder_finds_the_modules_next_to_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As `crew run` does; also a module that a tool imports only when it is called. No other module is hidden."""
    monkeypatch.setattr("sys.path", [*sys.path])
    monkeypatch.chdir(tmp_path)
    write_module(
        tmp_path / "shop", "shop_lamps", "def lamp() -> str:\n    import shop_bulbs\n    return shop_bulbs.on\n"
    )
    write_module(tmp_path / "shop", "shop_bulbs", "on = 'on'\n")
    before = [*sys.path]
    executor = CrewExecutor.from_config(tool_config(Path("shop"), "shop_lamps:lamp"), "a")
    assert executor.plan.toolkits["host"].tools["lamp"].function() == "on"
    assert sys.path == [*before, str(tmp_path / "shop")]


def test_a_module_that_hides_the_one_next_to_the_file_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Python imports a module name once: a second file would silently get the tools of the first."""
    monkeypatch.setattr("sys.path", [*sys.path])
    write_module(tmp_path / "one", "shop_tools")
    write_module(tmp_path / "two", "shop_tools")
    CrewExecutor.from_config(tool_config(tmp_path / "one", "shop_tools:lamp"), "a")

    with pytest.raises(ConfigError, match=r"two/shop_tools.py is hidden by .*one/shop_tools.py, which was imported"):
        CrewExecutor.from_config(tool_config(tmp_path / "two", "shop_tools:lamp"), "a")


def test_two_sizes_to_prune_to_are_refused(tmp_path: Path) -> None:
    """The file's `prune_to` and that of its policy: neither is ignored."""
    text = "prune_to: 25\nhistory: {name: rolling, limit: 40, prune_to: 10}\n"

    with pytest.raises(CrewError, match="prune_to=25 contradicts prune_to=10 of the policy 'rolling'"):
        CrewExecutor.from_config(write_config(tmp_path, text), Agent("a", model=ScriptedProvider("Fine.")))


async def test_the_telemetry_section_configures_telemetry(tmp_path: Path) -> None:
    """The executor exports spans and contents as the section says."""
    block = "telemetry: {otlp_endpoint: 'http://127.0.0.1:9', metrics: 'off', capture_content: true}\n"

    try:
        executor = CrewExecutor.from_config(write_config(tmp_path, block + CREW), crew="support")
        assert executor._current_telemetry() is not None
        assert executor._current_telemetry().capture_content
        assert executor._current_telemetry().tracer() is not None
        await executor._current_telemetry().shutdown(0.1)
    finally:
        reset()


def test_problems_of_the_telemetry_section_have_locations(tmp_path: Path) -> None:
    """Both for wrong values in the section, and for a value in place of the section."""
    assert load_problems(tmp_path, "telemetry: {otlp_endpoint: nowhere, logs: on}\n") == (
        "config.yaml:1:13: telemetry.otlp_endpoint must be a URL such as http://127.0.0.1:4318, not 'nowhere'",
        "config.yaml:1:37: telemetry.logs must be 'off', 'console' or 'json', not True",
    )
    assert load_problems(tmp_path, "telemetry: true\n") == (
        "config.yaml:1:1: telemetry must be a mapping with keys such as otlp_endpoint, not True",
    )


def test_off_needs_no_quotes(tmp_path: Path) -> None:
    """YAML reads an unquoted `off` as false."""
    block = load(write_config(tmp_path, "telemetry: {metrics: off, logs: off}\n")).telemetry
    assert block is not None
    assert (block.metrics, block.logs) == ("off", "off")


def test_arguments_override_the_file(tmp_path: Path) -> None:
    executor = CrewExecutor.from_config(write_config(tmp_path, CREW), crew="support", max_messages_per_request=30)
    assert executor.plan.budget.limit == 30


def test_all_unknown_names_of_a_crew_are_reported(tmp_path: Path) -> None:
    """Tools that can't be imported, unknown targets and unknown settings, in one error."""
    text = """\
crews:
  a:
    agents:
      one: {model: "scripted:x", then: tow, tools: ["nowhere:x", "os:nothing"], settings: {temprature: 1}}
      two: {model: "scripted:x"}
"""
    with pytest.raises(ConfigError) as caught:
        CrewExecutor.from_config(write_config(tmp_path, text), crew="a")

    text_of_error = str(caught.value)
    assert all(
        word in text_of_error
        for word in ("'nowhere:x'", "'os:nothing'", "'tow'", "'two'", "temprature", "'temperature'")
    )

    with pytest.raises(ConfigError, match="crews has no crew 'b'"):
        CrewExecutor.from_config(write_config(tmp_path, text), crew="b")


def test_a_tool_or_model_class_that_cannot_be_loaded_has_a_location(tmp_path: Path) -> None:
    """File, line, column and agent."""
    text = """\
crews:
  a:
    agents:
      one:
        model: "scripted:x"
        tools:
          - os.path:basename
          - nowhere:x
        output: os:nothing
        handoffs: [{to: two, payload: os:path, on_handoff: os:nothing}, {to: one, on_handoff: os:sep}]
        settings: {temprature: 1}
      two: {model: "scripted:x", history: {name: truncate, target: 0.9}}
"""
    with pytest.raises(ConfigError) as caught:
        CrewExecutor.from_config(write_config(tmp_path, text), crew="a")

    starts = (
        "config.yaml:8:13: agent 'one': can't load the tool 'nowhere:x': No module named 'nowhere'",
        "config.yaml:10:30: agent 'one': payload of the handoff to 'two' must be a subclass of pydantic.BaseModel",
        "config.yaml:10:48: agent 'one': on_handoff of the handoff to 'two': can't load 'os:nothing'",
        "config.yaml:10:83: agent 'one': on_handoff of the handoff to 'one' must be a function; 'os:sep' is '/'",
        "config.yaml:9:9: agent 'one': output: can't load 'os:nothing'",
        "config.yaml:11:20: agent 'one': settings.temprature is not a known key",
        "config.yaml:12:34: agent 'two': history: target=0.9 must be below",
    )

    for problem, start in zip(caught.value.problems, starts, strict=True):
        assert problem.replace(f"{tmp_path}/", "").startswith(start)


def test_a_problem_of_the_graph_has_a_location(tmp_path: Path) -> None:
    """That of the agent or group; a problem of the crew has that of its entry."""
    text = """\
crews:
  a:
    entry: won
    agents:
      one: {model: "scripted:x", then: tow}
      two: {model: "scripted:x", tools: ["os:read"]}
    groups:
      both: {branches: [one, two], on_error: 3}
"""
    with pytest.raises(ConfigError) as caught:
        CrewExecutor.from_config(write_config(tmp_path, text), crew="a")

    tool, *problems = (problem.replace(f"{tmp_path}/", "") for problem in caught.value.problems)
    assert tool.startswith("config.yaml:6:42: agent 'two': the tool 'os:read': a model can't pass the parameter 'fd'")
    assert problems == [
        "config.yaml:3:5: crews.a: the entry leads to 'won', which is not in the crew. Did you mean 'two' or 'one'?",
        "config.yaml:5:7: crews.a: then of 'one' leads to 'tow', which is not in the crew. Did you mean 'two'?",
        "config.yaml:8:7: crews.a: group 'both': on_error=Quorum(3) must be at most 2, the number of branches",
    ]


def test_a_wrong_model_name_has_a_location(tmp_path: Path) -> None:
    text = """\
crews:
  a:
    agents:
      one: {model: gpt-5}
      two: {model: "openai:", backup: "opnai:gpt-5"}
"""
    first, second, third = load_problems(tmp_path, text)
    assert first.startswith("config.yaml:4:13: crews.a.agents.one.model 'gpt-5': a model is provider:name")
    assert second == ("config.yaml:5:13: crews.a.agents.two.model 'openai:': the model name after 'openai:' is missing")
    assert third == (
        "config.yaml:5:31: crews.a.agents.two.backup 'opnai:gpt-5': unknown provider 'opnai'. Did you mean 'openai'?"
    )


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("limits: {rounds: 7}\nexecution: {max_iterations: 5}", "limits.rounds and execution.max_iterations"),
        ("limits: {rounds: null}\nexecution: {max_iterations: 5}", "limits.rounds and execution.max_iterations"),
        ("history: rolling\nexecution: {conversation: {prune_to: 5}}", "history and execution.conversation"),
        (
            "history: rolling\nexecution: {max_conversation_messages: 9}",
            "history and execution.max_conversation_messages",
        ),
        (
            "\nexecution: {max_conversation_messages: 9, conversation: {max_messages: 8}}",
            "execution.conversation.max_messages and execution.max_conversation_messages",
        ),
    ],
)
def test_a_setting_under_two_names_is_refused(tmp_path: Path, text: str, names: str) -> None:
    """Neither of them is ignored silently."""
    assert load_problems(tmp_path, text) == (f"config.yaml:2:13: {names} set the same thing; give only one of them",)


def test_a_setting_under_one_name_is_accepted(tmp_path: Path) -> None:
    """A key that is null is not given, and other limits are independent."""
    text = "limits: {handoffs: 7}\nhistory: null\nexecution: {max_iterations: 5, conversation: {max_messages: 8}}\n"
    assert load(write_config(tmp_path, text)).execution.max_iterations == 5


def test_an_unknown_policy_gets_a_suggestion(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="Did you mean 'rolling'"):
        CrewExecutor.from_config(write_config(tmp_path, "history: roling\n" + CREW), crew="support")


CONVERSATION = """\
execution:
  conversation:
    max_messages: 40
    preserve_first_n: 2
    preserve_last_n: 9
    prune_to: 15
    summarize_on_trim: true
    summarizer: "scripted:short"
"""


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("execution: {max_conversation_messages: 30}", HeadTail(max_messages=30)),
        ("execution: {max_conversation_messages: 0}", HeadTail(max_messages=0)),
        (
            CONVERSATION,
            HeadTail(
                max_messages=40,
                preserve_first_n=2,
                preserve_last_n=9,
                prune_to=15,
                summarize_on_trim=True,
                summarizer="scripted:short",
            ),
        ),
        (
            "execution: {max_conversation_messages: 60, conversation: {preserve_first_n: 3}}",
            HeadTail(max_messages=60, preserve_first_n=3),
        ),
        ("history: {name: checkpoint, trigger_at: 40, keep_recent: 5}", Checkpoint(trigger_at=40, keep_recent=5)),
        (
            "history: {name: chain, policies: [truncate, {name: rolling, limit: 30}]}",
            Rolling(limit=30),
        ),
    ],
)
def test_a_file_describes_the_history_policy(tmp_path: Path, text: str, expected: Policy) -> None:
    """By `history`, or by the names that other frameworks use for `head_tail`."""
    bare = CREW.replace("max_messages_per_request: 10\n", "").replace("execution: {max_iterations: 5}\n", "")
    executor = CrewExecutor.from_config(write_config(tmp_path, f"{text}\n{bare}"), crew="support")
    assert executor.plan.policy == expected
    assert executor.plan.budget.limit == policy_options(expected).limit


SUMMARISING = """\
max_messages_per_request: 12
history: {name: summarize, limit: 12, summarizer: "scripted:A summary."}
crews: {one: {agents: {solo: {model: "scripted:fine"}}}}
"""


def test_options_of_a_policy_are_checked_at_their_location(tmp_path: Path) -> None:
    """The crew's policy and those of agents, without building a crew."""
    text = """\
history: {name: head_tail, summarize_on_trim: 1, prun_to: 3}
crews:
  a:
    agents:
      one: {model: 'scripted:x', history: {name: head_tail, summarize_on_trim: x}}
      two: {model: 'scripted:x', history: roling}
"""
    assert load_problems(tmp_path, text) == (
        "config.yaml:1:28: history.summarize_on_trim must be true or false, not 1",
        "config.yaml:1:50: history.prun_to is not a known key. Did you mean 'prune_to'?",
        "config.yaml:5:61: crews.a.agents.one.history.summarize_on_trim must be true or false, not 'x'",
        "config.yaml:6:34: crews.a.agents.two.history must name a policy, not 'roling'. Did you mean 'rolling'?",
    )


def test_model_settings_are_checked(tmp_path: Path) -> None:
    """Types of values, in the same error as unknown names."""
    text = "crews: {a: {agents: {one: {model: 'scripted:x', settings: {temperature: hot, stop: [END]}}}}}"

    with pytest.raises(ConfigError, match=r"agent 'one': settings.temperature must be a number, not 'hot'"):
        CrewExecutor.from_config(write_config(tmp_path, text), crew="a")

    executor = CrewExecutor.from_config(write_config(tmp_path, text.replace("temperature: hot, ", "")), crew="a")
    assert executor.plan.agents["one"].settings.stop == ("END",)


async def test_a_file_names_the_model_of_the_summarizer(tmp_path: Path) -> None:
    """The named model writes the summaries; an unknown provider is refused when the executor is built."""
    executor = CrewExecutor.from_config(write_config(tmp_path, SUMMARISING), crew="one")
    before = [{"role": role, "content": f"{n}: {'word ' * 30}"} for n in range(10) for role in ("user", "assistant")]
    result = await executor.execute("And now?", history=before)
    assert next(m.text for m in result.history if isinstance(m, SummaryMessage)).startswith("A summary.")

    path = write_config(tmp_path, SUMMARISING.replace("scripted:A summary.", "unknown:model"))

    with pytest.raises(CrewError, match="unknown"):
        CrewExecutor.from_config(path, crew="one")


def test_a_file_describes_the_request_parameters(tmp_path: Path) -> None:
    """Limits and compression; options that a strategy does not have are refused."""
    text = "parameters: {max_history_size: 9, max_tokens: 9000, compression_strategy: {name: last_n_messages, n: 8}}\n"
    executor = CrewExecutor.from_config(write_config(tmp_path, text + CREW), crew="support")
    wanted = RequestParameters(compression_strategy=LastNMessages(8), max_history_size=9, max_tokens=9000)
    assert executor._streams.starter.parameters == wanted

    for wrong in ("{name: chunked, n: 8}", "{name: chunky}", "{name: whole_history, sze: 1}"):
        path = write_config(tmp_path, f"parameters: {{compression_strategy: {wrong}}}\n{CREW}")

        with pytest.raises(ConfigError, match="compression_strategy"):
            CrewExecutor.from_config(path, crew="support")


def test_a_file_gives_a_time_as_a_timestamp_or_in_seconds(tmp_path: Path) -> None:
    for time in ("2026-01-31T12:00:00Z", "1769860800"):
        path = write_config(tmp_path, f"parameters: {{compression_strategy: {{name: from_timestamp, time: {time}}}}}\n")
        assert load(path).parameters.compression_strategy == FromTimestamp(1769860800)

    (problem,) = load_problems(tmp_path, "parameters: {compression_strategy: {name: from_timestamp, time: soon}}\n")
    assert problem.endswith("time must be seconds since the epoch, or a datetime, not 'soon'")
