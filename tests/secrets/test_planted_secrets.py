"""A planted secret is nowhere: not in spans, logs, events, errors, requests, transcripts or stored bytes."""

import asyncio
import json
import logging
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from threading import Event, Thread, current_thread, main_thread
from types import MappingProxyType, SimpleNamespace
from typing import Any
from urllib.parse import quote

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel, PrivateAttr, SecretBytes, SecretStr

from crew import Agent, Context, CrewExecutor, RunError, ScriptedProvider, call, tool
from crew.errors import DefinitionError
from crew.history.policies import Summarize
from crew.interfaces import Delta, ModelReply, ModelRequest, OnDelta
from crew.messages import ProviderData, ToolCall
from crew.providers import Retrying
from crew.providers.anthropic import Anthropic
from crew.providers.openai_chat import OpenAIChat
from crew.providers.openai_responses import OpenAIResponses
from crew.runs.events import TextDelta
from crew.secrets import registry as holding
from crew.secrets.patterns import redact, redact_value
from crew.secrets.registry import SecretRegistry, register_secret
from crew.secrets.scrubbing import ScrubbedDeltas
from crew.store import MemoryStore, encode_events, encode_state
from crew.telemetry import Telemetry
from crew.telemetry.logs import LogLine
from tests.support.spans import RecordedSpans, recorded_spans

SECRET = 'p/l"anté d-secret\\42'


class Bytes(MemoryStore):
    """Keeps every byte that was ever committed."""

    def __init__(self) -> None:
        super().__init__()
        self.written = b""

    async def commit(self, run_id, version, events, state) -> None:
        self.written += encode_events(events) + encode_state(state)
        await super().commit(run_id, version, events, state)


class Hostile(Exception):
    """Its words leak, and so do its causes."""

    def __str__(self) -> str:
        return f"could not log in with {SECRET}"


def spellings(secret: str) -> set[str]:
    return {
        secret,
        json.dumps(secret)[1:-1],
        json.dumps(json.dumps(secret)[1:-1])[1:-1],
        quote(secret, safe=""),
        repr(secret)[1:-1],
    }


def assert_nowhere(*places: object) -> None:
    for place in places:
        text = place.decode() if isinstance(place, bytes) else str(place)
        assert not [spelling for spelling in spellings(SECRET) if spelling in text], text[:2_000]


@pytest.fixture
def seen() -> Iterator[RecordedSpans]:
    """A new recorder."""
    with recorded_spans() as recorder:
        yield recorder


@pytest.fixture
def nothing_held(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if nothing had ever been registered in this process."""
    held = SecretRegistry()
    monkeypatch.setattr(holding, "PROCESS_SECRETS", held)

    for name in holding.KEY_VARIABLES:
        monkeypatch.delenv(name, raising=False)


@tool
async def leak(how: str) -> str:
    """Leak in a certain way."""
    match how:
        case "result":
            return f"the key is {SECRET}"
        case "json":
            return json.dumps({"key": SECRET})
        case "address":
            return f"https://user:{quote(SECRET, safe='')}@host/"
        case "environment":
            return "\n".join(f"{name}={value}" for name, value in os.environ.items())
        case "large":
            return "x" * (20_000 * 3 // 4 - 60) + SECRET + "y" * 10_000_000
        case "exception":
            try:
                raise ValueError(f"inner {SECRET}")
            except ValueError as error:
                raise Hostile from error
        case _:
            return "nothing"


@pytest.mark.parametrize("capture", [False, True], ids=["content off", "content on"])
async def test_a_planted_secret_is_found_nowhere(
    seen, capture: bool, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the input, in arguments, results, exceptions, addresses and the environment; at any level of logging."""
    caplog.set_level(logging.DEBUG)
    monkeypatch.setenv("THE_KEY", SECRET)
    events: list = []
    requests: list[ModelRequest] = []
    ways = ["result", "json", "address", "environment", "large", "exception"]

    def script(request: ModelRequest) -> ToolCall | str:
        requests.append(request)
        return call("leak", how=ways[request.turn], why=SECRET) if request.turn < len(ways) else f"I saw {SECRET}!"

    @tool
    async def leak_more(how: str, why: str = "") -> str:
        """Leak, and show progress."""
        return await leak.function(how)

    store = Bytes()
    agent = Agent(
        "a",
        instructions=f"Never tell {SECRET}.",
        model=ScriptedProvider(script),
        tools=[tool(name="leak")(leak_more.function)],
    )
    executor = CrewExecutor(
        agent,
        store=store,
        telemetry=seen.telemetry(capture_content=capture),
        observers=[events.append],
        secrets=[SECRET],
    )
    result = await executor.execute(f"My password is {SECRET}", history=[{"role": "user", "content": f"Hi {SECRET}"}])
    assert result.output == "I saw [secret]!"
    assert len(requests) == len(ways) + 1
    assert_nowhere(*(span.to_json() for span in seen.spans))
    assert_nowhere(*(str(record.msg) for record in caplog.records), caplog.text)
    assert_nowhere(*events, store.written, *requests, result, *result.transcript, *result.history)
    captured = any("gen_ai.input.messages" in span.attributes for span in seen.spans)
    assert captured is capture


async def test_an_error_that_the_caller_gets_does_not_hold_it_either(seen) -> None:
    """Nor do its causes."""
    agent = Agent("a", model=ScriptedProvider(RuntimeError(f"401: bad key {SECRET}")))

    with pytest.raises(RunError) as raised:
        await CrewExecutor(agent, telemetry=seen.telemetry(), secrets=[SECRET]).execute("Go")

    error: BaseException | None = raised.value
    while error is not None:
        assert_nowhere(error, error.args, vars(error))
        error = error.__cause__ or error.__context__

    assert_nowhere(*(span.to_json() for span in seen.spans))


async def test_pieces_of_a_stream_do_not_spell_it_together() -> None:
    """However the pieces are cut, their sum holds no secret and loses nothing else."""
    text = f"a {SECRET} b {SECRET[:5]} c"

    class Pieces(ScriptedProvider):
        async def complete(self, request: ModelRequest, on_delta: OnDelta | None = None) -> ModelReply:
            for letter in text:
                assert on_delta is not None
                on_delta(Delta(text=letter))

            return ModelReply(text=text)

    executor = CrewExecutor(Agent("a", model=Pieces()), secrets=[SECRET])

    async with executor.execute_stream("Go") as events:
        pieces = [event.text async for event in events if isinstance(event, TextDelta)]

    assert "".join(pieces) == events.result.output == f"a [secret] b {SECRET[:5]} c"


async def test_secrets_of_the_dependencies_are_kept_too() -> None:
    """A `SecretStr` among `deps` is a secret for the length of that run, and of that run alone."""

    @dataclass
    class Deps:
        token: SecretStr

    @tool
    async def show(context: Context[Deps]) -> str:
        """Show the token."""
        context.emit({"token": context.deps.token.get_secret_value()})
        return context.deps.token.get_secret_value()

    agent = Agent("a", model=ScriptedProvider(call("show"), "Done."), tools=[show])
    events: list = []
    executor = CrewExecutor(agent, observers=[events.append])

    async with asyncio.TaskGroup() as group:
        one = group.create_task(executor.execute("Go", deps=Deps(SecretStr("first-token"))))
        two = group.create_task(executor.execute("Go first-token", deps=Deps(SecretStr("second-token"))))

    assert "first-token" not in str(list(one.result().transcript))
    assert "second-token" not in str([*two.result().transcript, *events])
    assert "Go first-token" in str(list(two.result().transcript))


@dataclass
class Login:
    password: SecretStr


@dataclass(slots=True)
class Slotted:
    password: SecretStr


@dataclass(slots=True)
class Inherited(Slotted):
    port: int = 0


class Settings(BaseModel, extra="allow"):
    _private: Any = PrivateAttr(default=None)


class Private:
    """Keeps it where only its own methods look."""

    __slots__ = ("__password", "never_filled")

    def __init__(self, password: SecretStr) -> None:
        self.__password = password


def with_private(password: SecretStr) -> Settings:
    settings = Settings()
    settings._private = password
    return settings


def in_a_circle(password: SecretStr) -> list[Any]:
    circle: list[Any] = [password]
    circle.append(circle)
    return circle


@pytest.mark.parametrize(
    "hold",
    [
        lambda password: password,
        lambda password: SecretBytes(password.get_secret_value().encode()),
        lambda password: {"password": password},
        lambda password: MappingProxyType({"password": password}),
        lambda password: SimpleNamespace(password=password),
        Login,
        Inherited,
        Private,
        lambda password: Settings.model_validate({"more": password}),
        with_private,
        in_a_circle,
    ],
    ids=range(11),
)
async def test_secret_in_a_field_or_item_of_the_dependencies_is_found(hold: Any) -> None:
    """In items, fields, slots, private and extra attributes; `secrets=` is for values that are deeper."""

    @tool
    async def show() -> str:
        """Show the password."""
        return "it is password-of-deps"

    agent = Agent("a", model=ScriptedProvider(call("show"), "Done."), tools=[show])
    result = await CrewExecutor(agent).execute("Go", deps=hold(SecretStr("password-of-deps")))
    assert result.transcript[2].results[0].text == "it is [secret]"


async def test_looking_for_secrets_runs_no_code_of_the_dependencies() -> None:
    """Neither a property nor `__getattr__`; and what refuses to be looked at keeps nothing else from being found."""

    class Wary:
        __hash__ = None

        def __init__(self) -> None:
            self.password = SecretStr("password-of-deps")

        @property
        def connection(self) -> None:
            raise AssertionError("a property was read")

        def __getattr__(self, name: str) -> None:
            raise AssertionError(f"{name} was asked for")

    class Broken(Mapping):
        def __getitem__(self, key: str) -> None:
            raise OSError("no")

        def __iter__(self) -> Iterator[str]:
            raise OSError("no")

        def __len__(self) -> int:
            raise OSError("no")

    agent = Agent("a", model=ScriptedProvider("it is password-of-deps"))
    result = await CrewExecutor(agent).execute("Go", deps=Wary())
    assert result.output == "it is [secret]"
    assert (await CrewExecutor(agent).execute("Go", deps=Broken())).output == "it is password-of-deps"


async def test_a_secret_may_become_known_in_mid_run(nothing_held: None) -> None:
    """Registered by a tool that logs in, in a run that began without any."""

    @tool
    async def log_in() -> str:
        """Log in."""
        register_secret("token-of-this-session")
        return "token-of-this-session"

    events: list = []
    agent = Agent("a", model=ScriptedProvider(call("log_in"), "I have token-of-this-session."), tools=[log_in])
    executor = CrewExecutor(agent, observers=[events.append])

    async with executor.execute_stream("Go") as stream:
        events += [event async for event in stream]

    assert stream.result.output == "I have [secret]."
    assert "token-of-this-session" not in str([*events, *stream.result.transcript])


async def test_a_key_that_comes_late_is_held(nothing_held: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Set or changed after the executor was made, even in mid-run: the next client is made with it."""

    @tool
    async def load_environment() -> str:
        """Load a file of settings."""
        monkeypatch.setenv("ANTHROPIC_API_KEY", "key-of-a-file")
        return "done"

    keys = "first-key-given, key-after-rotation, key-of-a-file, key-of-provider"
    provider = ScriptedProvider(
        lambda request: keys if request.messages[-1].role == "tool" else call("load_environment")
    )
    provider.secrets = ()
    executor = CrewExecutor(Agent("a", model=provider, tools=[load_environment]))
    monkeypatch.setenv("OPENAI_API_KEY", "first-key-given")
    await executor.execute("Go")
    monkeypatch.setenv("OPENAI_API_KEY", "key-after-rotation")
    provider.secrets = (SecretStr("key-of-provider"),)
    result = await executor.execute("Go")
    assert result.output == "[secret], [secret], [secret], [secret]"


def test_nobody_works_with_what_was_known_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """While one thread still learns to spell a new secret, others do not go on without it."""
    secrets = SecretRegistry(["the-first-one"])
    assert secrets("the-first-one") == "[secret]"
    spell, begun, go_on = holding._spellings, Event(), Event()

    def slowly(value: str) -> Any:
        if current_thread() is not main_thread():
            begun.set()
            go_on.wait(10)

        return spell(value)

    monkeypatch.setattr(holding, "_spellings", slowly)
    secrets.add("the-second-one")
    thread = Thread(target=secrets, args=["the-second-one"])
    thread.start()

    try:
        assert begun.wait(10)
        assert secrets("the-second-one") == "[secret]"
    finally:
        go_on.set()
        thread.join()


async def test_what_another_executor_did_not_know_is_not_shown_to_the_next_model() -> None:
    """Neither a result that goes on, nor a run that is resumed, nor what is kept of them."""
    ask = Agent("a", model=ScriptedProvider(f"I saw {SECRET}."))
    before = await CrewExecutor(ask).execute(f"My password is {SECRET}")
    requests: list[ModelRequest] = []

    def answer(request: ModelRequest) -> str:
        requests.append(request)
        return "Done."

    store = Bytes()
    knowing = CrewExecutor(Agent("a", model=ScriptedProvider(answer)), store=store, secrets=[SECRET])
    result = await knowing.execute("Go on", history=before)
    again = await knowing.execute("Go on", history=result)
    assert_nowhere(*requests, store.written, *result.transcript, *again.transcript, *again.history)
    assert len(again.transcript) == 6

    failing = Agent("a", model=ScriptedProvider(RuntimeError("down")))

    with pytest.raises(RunError):
        await CrewExecutor(failing, store=store).execute(f"My password is {SECRET}", run_id="r")

    assert_nowhere(await knowing.resume("r"), *requests)


async def test_warnings_of_telemetry_do_not_show_it(caplog: pytest.LogCaptureFixture) -> None:
    """An application's own handlers get them as they are."""

    class Failing:
        def get_tracer(self, *of: Any) -> Any:
            raise OSError(f"https://collector/?key={SECRET}")

        def get_meter(self, *of: Any) -> Any:
            raise OSError(f"https://collector/?key={SECRET}")

    telemetry = Telemetry(tracer_provider=Failing(), meter_provider=Failing())
    agent = Agent("a", model=ScriptedProvider("Done."))
    await CrewExecutor(agent, telemetry=telemetry).execute("Go", deps=SecretStr(SECRET))
    assert "is not traced" in caplog.text
    assert "only in this process" in caplog.text
    assert_nowhere(caplog.text)


async def test_signed_thinking_with_a_secret_in_it_is_dropped_whole() -> None:
    """Half of what a model signed would be refused."""
    data = ProviderData(provider="p", model="m", items=({"type": "thinking", "thinking": f"use {SECRET}"},))
    agent = Agent("a", model=ScriptedProvider(ModelReply(text="Done.", provider_data=data)))
    result = await CrewExecutor(agent, secrets=[SECRET]).execute("Go")
    assert result.transcript[-1].provider_data is None


@pytest.mark.parametrize("variable", ["OPENAI_API_KEY", "ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN"])
async def test_a_providers_key_is_held_without_being_registered(
    variable: str, nothing_held: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The environment's keys, and what a provider says it holds."""
    monkeypatch.setenv(variable, "key-of-the-environment")
    provider = ScriptedProvider(lambda request: "key-of-the-environment and key-of-the-provider")
    provider.secrets = ("key-of-the-provider",)
    result = await CrewExecutor(Agent("a", model=provider)).execute("Go")
    assert result.output == "[secret] and [secret]"


@pytest.mark.parametrize("provider", [OpenAIChat, OpenAIResponses, Anthropic])
def test_a_key_that_is_given_to_a_provider_is_held(provider: type, nothing_held: None) -> None:
    """As soon as an executor uses it: for an agent, as its backup, or for summaries; wrapped or not."""
    backup = provider("m", api_key="key-by-argument")
    CrewExecutor(Agent("a", model=Retrying(provider("m", api_key="key-inside-of-another")), backup=backup))
    assert holding.PROCESS_SECRETS("key-by-argument, key-inside-of-another") == "[secret], [secret]"
    policy = Summarize(summarizer=provider("m", api_key="key-of-the-summariser"))
    CrewExecutor(Agent("a", model=ScriptedProvider("x")), history=policy)
    assert holding.PROCESS_SECRETS("key-of-the-summariser") == "[secret]"


def test_a_secret_that_is_too_short_is_refused_without_being_shown() -> None:
    """It would be part of ordinary words."""
    with pytest.raises(DefinitionError, match="at least 6 characters") as raised:
        SecretRegistry(["abc"])

    assert "abc" not in str(raised.value)


@given(
    st.text(min_size=6, max_size=30).filter(lambda s: len(s.strip()) >= 6), st.text(max_size=30), st.text(max_size=30)
)
def test_any_text_is_taken_out_in_any_spelling(secret: str, before: str, after: str) -> None:
    """As it is, in JSON, in addresses; and what waits at the end of a stream is never too little."""
    secrets = SecretRegistry([secret])

    address = quote(secret.encode("utf-8", "surrogatepass"), safe="")

    for spelling in (secret, secret.strip(), *json_spellings(secret), address):
        assert spelling not in secrets(f"{before}{spelling}{after}").replace("[secret]", "\0")

    assert all(secrets.split(secret[:n]) == ("", secret[:n]) for n in range(1, len(secret)))


def json_spellings(secret: str) -> set[str]:
    """Inside JSON, and inside JSON that is a text inside JSON, with all signs as they are or in ASCII."""
    once = {json.dumps(secret, ensure_ascii=ascii)[1:-1] for ascii in (True, False)}
    return once | {json.dumps(text, ensure_ascii=ascii)[1:-1] for text in once for ascii in (True, False)}


@given(
    st.lists(st.text("ab", min_size=6, max_size=9), min_size=1, max_size=4),
    st.lists(st.text("abc", max_size=12), max_size=8),
)
def test_a_stream_says_what_the_whole_text_says(values: list[str], pieces: list[str]) -> None:
    """However it is cut, and where one secret begins, ends or holds another one: nothing is shown too early."""
    secrets, told = SecretRegistry(values), []
    deltas = ScrubbedDeltas(secrets, lambda delta: told.append(delta.text))

    for piece in pieces:
        deltas(Delta(text=piece))

    deltas.close()
    assert "".join(told) == secrets("".join(pieces))


@pytest.mark.parametrize(
    "text",
    [
        "key sk-proj-abcdefghijklmnopqrstuvwxyz012345",
        "sk-ant-api03-abcdefghijklmnopqrstuvwxyz",
        "Authorization: Bearer abcdefghijklmnop",
        "https://user:hunter2hunter2@example.com/x",
        "password=hunter2hunter2",
        '{"api_key": "hunter2hunter2"}',
        "AKIAIOSFODNN7EXAMPLE",
        "ghp_abcdefghijklmnopqrstuvwxyz0123456789",
        "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0NTY3ODkwIn0.dozjgNryP4J3jVmNHl0w5N",
        "-----BEGIN RSA PRIVATE KEY-----\nMIIEowIBAAKCAQEA\n-----END RSA PRIVATE KEY-----",
    ],
)
def test_key_like_strings_are_hidden(text: str) -> None:
    """What looks like a key does not leave through logs, spans and metrics, registered or not."""
    hidden = redact(text)
    assert "[hidden]" in hidden
    assert not any(part in hidden for part in ("hunter2", "abcdefghijklmnop", "IOSFODNN7", "dozjgNry", "MIIE"))


@pytest.mark.parametrize(
    "text", ["tokens_before=120", "50 tokens of 100", "the order 17 is on its way", "max_tokens: 5"]
)
def test_ordinary_words_stay(text: str) -> None:
    """Counting tokens is not a secret."""
    assert redact(text) == text


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("password=Tr0ub4dor&3xyz", "password=[hidden]"),
        ("connect(password=Tr0u)b;4,d)", "connect(password=[hidden])"),
        ("[password=hunter2]", "[password=[hidden]]"),
        ("https://host/?token=hunter2&page=2", "https://host/?token=[hidden]&page=2"),
        ("name=ann&my_api_key=hunter2&hunter2&page=2", "name=ann&my_api_key=[hidden]&page=2"),
        (r'{"api_key": "hun\"ter2", "page": 2}', '{"api_key": "[hidden]", "page": 2}'),
        (r"{\"password\": \"hunter2\", \"page\": 2}", r"{\"password\": \"[hidden]\", \"page\": 2}"),
        ("password: 'hunter2 hunter2", "password: '[hidden]"),
    ],
)
def test_a_secret_is_hidden_to_its_end_and_no_further(text: str, shown: str) -> None:
    """Signs that end a parameter elsewhere are part of it; in an address the other parameters stay."""
    assert redact(text) == shown


SIGNS = """password token api_key Bearer Basic = : & ? &a= :// @ " ' \\ \\" [hidden] [hidd ] [secret] [… ) , - sk-abc
sk-abcdefghijklmnopqrst AKIAIOSFODNN7EXAMPLE eyJhbGciOi.eyJzdWIiOi. hunter2hunter2 -----BEGIN"""
PIECES = st.one_of(
    st.sampled_from(SIGNS.split()), st.sampled_from([" ", "\n", " PRIVATE KEY-----"]), st.text(max_size=5)
)


@given(st.lists(PIECES, max_size=30).map("".join))
def test_what_is_safe_stays_as_it_is(text: str) -> None:
    """Lines are made safe where they are born and again where they are printed."""
    assert redact(redact(text)) == redact(text)


@given(
    st.integers(0, 300),
    st.lists(PIECES, min_size=1, max_size=30).map("".join).filter(bool),
    st.sampled_from([100, 9_700, 9_900, 10_000, 30_000]),
)
@settings(deadline=None)
def test_what_is_cut_is_not_cut_again(shift: int, text: str, size: int) -> None:
    """Wherever the cut falls, it makes no key out of something else, and the whole stays within its bound."""
    shown = redact("-" * shift + text * (size // len(text)))
    assert len(shown) <= 10_000
    assert redact(shown) == shown


def test_a_cut_leaves_no_half_of_a_key() -> None:
    """Too short to be known, and long enough to help."""
    shown = redact("x " * 4_970 + "sk-" + "abcdefgh" * 4 + " y" * 3_000)
    assert "sk-" not in shown
    assert shown.endswith("more characters]")


def test_hostile_values_neither_leak_nor_raise() -> None:
    """A `__str__` that raises or leaks, bytes, deep nesting, ten megabytes."""

    class Raises:
        def __str__(self) -> str:
            raise RuntimeError("no")

    class Leaks:
        def __str__(self) -> str:
            return "password=hunter2hunter2"

    nested: dict = {}
    nested["self"] = nested
    shown = redact_value(
        {"a": Raises(), "b": Leaks(), "c": b"\xff" * 10, "d": "x" * 10_000_000, "password": "p", "n": nested}
    )
    assert shown["a"] == "[Raises object whose __str__ raises]"
    assert "hunter2" not in shown["b"]
    assert shown["c"] == "[10 bytes]"
    assert len(shown["d"]) < 11_000
    assert shown["password"] == "[hidden]"


def test_a_line_is_text_for_plain_handlers() -> None:
    """Whoever formats with `%(message)s` reads names and values."""
    assert str(LogLine({"event": "history.pruned", "before": 51, "reason": "too many"})) == (
        "history.pruned before=51 reason='too many'"
    )
