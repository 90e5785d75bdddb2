"""Secrets do not leave the process, however they are spelled, and errors of the caller stay what they are."""

from __future__ import annotations

import base64

import pytest

from crew import Agent, Crew, CrewExecutor, RunError, ScriptedProvider, call, handoff, tool
from crew.secrets import registry
from crew.secrets.registry import SecretRegistry


@pytest.fixture
def no_registered_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if nothing had ever been registered in this process."""
    monkeypatch.setattr(registry, "PROCESS_SECRETS", SecretRegistry())

    for name in registry.KEY_VARIABLES:
        monkeypatch.delenv(name, raising=False)


class LoginFailed(Exception):
    """An error of the caller with a computed text, which can't be scrubbed."""

    def __str__(self) -> str:
        return "wrong password: planted-secret-42"


async def test_error_of_the_caller_can_be_caught_by_its_class() -> None:
    """It is the cause of the `RunError`, the same object; only texts that Crew writes are scrubbed."""
    error = LoginFailed()

    def fail(messages: object) -> list[object]:
        raise error

    last = Agent("last", model=ScriptedProvider("Never."))
    first = Agent("first", model=ScriptedProvider(call("transfer_to_last")), handoffs=[handoff(last, history=fail)])

    with pytest.raises(RunError) as raised:
        await CrewExecutor(Crew("c", agents=[first, last]), secrets=["planted-secret-42"]).execute("Go.")

    assert raised.value.__cause__ is error
    assert "planted-secret-42" not in str(raised.value)
    assert "LoginFailed: wrong password: [secret]" in str(raised.value)


async def test_key_that_a_tool_sets_is_scrubbed_from_its_result(
    no_registered_secrets: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Keys are compared by value: one that is set while another variable is deleted is found too."""
    monkeypatch.setenv("SOME_VARIABLE", "x")

    @tool
    async def log_in() -> str:
        """Log in."""
        monkeypatch.delenv("SOME_VARIABLE")
        monkeypatch.setenv("OPENAI_API_KEY", "key-set-in-mid-run")
        return "logged in with key-set-in-mid-run"

    agent = Agent("a", model=ScriptedProvider(call("log_in"), "I used key-set-in-mid-run."), tools=[log_in])
    result = await CrewExecutor(agent).execute("Go")
    assert result.output == "I used [secret]."
    assert "key-set-in-mid-run" not in str(list(result.transcript))


@pytest.mark.parametrize("before", ["", "u", "us", "user:"])
@pytest.mark.parametrize("after", ["", "x", "xy"])
def test_secret_is_found_in_base64_at_any_offset(before: str, after: str) -> None:
    """At most the two characters at each edge, which also hold neighbouring bytes, are left."""
    secret = "p/ss+w0rd-of-the-service"

    for encode in (base64.b64encode, base64.urlsafe_b64encode):
        text = encode(f"{before}{secret}{after}".encode()).decode()

        for spelling in (text, text.rstrip("=")):
            shown = SecretRegistry([secret])(f"Basic {spelling}")
            left = shown.removeprefix("Basic ").replace("[secret]", "").rstrip("=")
            assert len(left) <= 4 + 4 * (len(before) + len(after)) / 3


@pytest.mark.parametrize("shown", ["b%2fc%2bd%20e", "b%2Fc%2Bd%20e", "b%2Fc%2Bd+e", "622f632b642065", "622F632B642065"])
def test_secret_is_found_in_urls_and_hexadecimal(shown: str) -> None:
    """With codes in upper or lower case."""
    assert SecretRegistry(["b/c+d e"])(f"x={shown}!") == "x=[secret]!"
