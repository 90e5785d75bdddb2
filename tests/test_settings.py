"""A setting is declared once: Python and YAML accept the same values and report the same words."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from crew import InputValidator, Limits, RequestParameters
from crew.config import load
from crew.errors import ConfigError, DefinitionError
from crew.interfaces import ModelSettings, RetryPolicy
from crew.telemetry import configure

SECTIONS: dict[str, Callable[..., object]] = {
    "limits": Limits,
    "parameters": RequestParameters,
    "validator": InputValidator,
    "telemetry": configure,
}


@pytest.mark.parametrize(
    ("section", "name", "value", "words"),
    [
        ("limits", "rounds", "-5", "must be 0 or a positive integer, not -5"),
        ("limits", "rounds", "true", "must be 0 or a positive integer, not True"),
        ("limits", "handoffs", "2.5", "must be 0 or a positive integer, not 2.5"),
        ("limits", "tool_calls_per_turn", "0", "must be a positive integer, not 0"),
        ("limits", "tool_calls_per_turn", "null", "must be a positive integer, not None"),
        ("limits", "tokens", "'9'", "must be 0 or a positive integer, not '9'"),
        ("limits", "cost_usd", "-0.5", "must be 0 or a positive number, not -0.5"),
        ("limits", "seconds", ".nan", "must be 0 or a positive number, not nan"),
        ("parameters", "max_tokens", "0", "must be a positive integer, not 0"),
        ("parameters", "max_history_size", "true", "must be a positive integer, not True"),
        ("parameters", "enable_token_caching", "1", "must be true or false, not 1"),
        ("validator", "max_query_chars", "-5", "must be a positive integer, not -5"),
        ("validator", "max_history_messages", "-1", "must be 0 or a positive integer, not -1"),
        ("validator", "tool_pairs", "drop", "must be 'repair' or 'refuse', not 'drop'"),
        ("telemetry", "sample_ratio", "1.5", "must be a number from 0 to 1, not 1.5"),
        ("telemetry", "otlp_endpoint", "x", "must be a URL such as http://127.0.0.1:4318, not 'x'"),
        ("telemetry", "log_level", "LOUD", "must be DEBUG, INFO, WARNING or ERROR, not 'LOUD'"),
    ],
)
def test_python_and_yaml_refuse_a_value_alike(tmp_path: Path, section: str, name: str, value: str, words: str) -> None:
    """`DefinitionError` in Python, `ConfigError` with the place in YAML, and the same words in both."""
    path = tmp_path / "config.yaml"
    path.write_text(f"{section}:\n  {name}: {value}\n", encoding="utf-8")

    with pytest.raises(ConfigError) as from_yaml:
        load(path)

    assert from_yaml.value.problems == (f"{path}:2:3: {section}.{name} {words}",)

    with pytest.raises(DefinitionError) as from_python:
        SECTIONS[section](**{name: yaml.safe_load(value)})

    assert from_python.value.problems == (f"{name} {words}",)


def test_the_limits_of_a_validator_must_be_positive() -> None:
    with pytest.raises(DefinitionError, match="max_query_chars must be a positive integer, not -5"):
        InputValidator(max_query_chars=-5)


def test_all_problems_are_reported_at_once() -> None:
    with pytest.raises(DefinitionError) as caught:
        Limits(rounds=-1, seconds="soon", tokens=True)  # type: ignore[arg-type]

    assert caught.value.problems == (
        "rounds must be 0 or a positive integer, not -1",
        "tokens must be 0 or a positive integer, not True",
        "seconds must be 0 or a positive number, not 'soon'",
    )


def test_values_at_the_edge_are_accepted() -> None:
    """0 in limits, an integer where a number is accepted, None for no limit."""
    assert Limits(rounds=0, handoffs=None, tokens=0, cost_usd=0, seconds=3).seconds == 3
    assert InputValidator(max_history_messages=0).max_history_messages == 0


def test_model_settings_must_have_the_declared_types() -> None:
    """A wrong type is refused when the settings are built, not by the provider's server."""
    with pytest.raises(DefinitionError) as caught:
        ModelSettings(temperature="hot", reasoning="extreme", parallel_tool_calls=1)  # type: ignore[arg-type]

    assert caught.value.problems == (
        "temperature must be a number, not 'hot'",
        "reasoning must be 'none', 'minimal', 'low', 'medium', 'high' or 'xhigh', not 'extreme'",
        "parallel_tool_calls must be true or false, not 1",
    )


def test_a_retry_policy_needs_attempts_and_time() -> None:
    with pytest.raises(DefinitionError) as caught:
        RetryPolicy(attempts=0, timeout=0, first_wait=-1)

    assert caught.value.problems == (
        "attempts must be a positive integer, not 0",
        "timeout must be a number of seconds above 0, not 0",
        "first_wait must be 0 or a positive number, not -1",
    )


def test_a_long_value_is_abbreviated() -> None:
    with pytest.raises(DefinitionError) as caught:
        RequestParameters(max_tokens="9" * 10_000)  # type: ignore[arg-type]

    assert len(str(caught.value)) < 160
