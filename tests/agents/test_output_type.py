"""Output types: what `Agent(output=…)` accepts, the schema that a service gets, and the value that the caller gets."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from datetime import date
from decimal import Decimal
from enum import Enum
from pathlib import Path
from typing import Annotated, Any, Literal
from uuid import UUID

import pytest
from pydantic import AfterValidator, AnyUrl, BaseModel, DirectoryPath, Field, RootModel
from typing_extensions import TypedDict

from crew import Agent, Crew, CrewExecutor, Limits, Parallel, ScriptedProvider, call, tool
from crew.agents.output_type import WRAPPER_KEY, read_output_type
from crew.errors import DefinitionError, InvalidInput, NoOutput, OutputInvalid, RunError
from crew.runs.result import MissingOutput
from tests.support.remote_providers import PROTOCOLS, provider, refusal_reasons, run
from tests.wire import Model, Protocol, WireServer


class Refund(BaseModel):
    amount: int


class Refusal(BaseModel):
    reason: str


@dataclass
class Point:
    x: int
    y: int = 0


class Address(TypedDict):
    street: str


class Colour(Enum):
    RED = "red"
    BLUE = "blue"


class Node(BaseModel):
    name: str
    children: list["Node"] = Field(default_factory=list)


class Names(RootModel[list[str]]):
    pass


OBJECTS: list[tuple[Any, str, Any]] = [
    (Refund, '{"amount": 3}', Refund(amount=3)),
    (Point, '{"x": 1, "y": 2}', Point(1, 2)),
    (Address, '{"street": "Main"}', {"street": "Main"}),
    (dict[str, int], '{"a": 1}', {"a": 1}),
    (Node, '{"name": "a", "children": [{"name": "b", "children": []}]}', Node(name="a", children=[Node(name="b")])),
]

WRAPPED: list[tuple[Any, str, Any]] = [
    (list[Refund], '[{"amount": 3}]', [Refund(amount=3)]),
    (Refund | Refusal, '{"reason": "too late"}', Refusal(reason="too late")),
    (Refund | None, "null", None),
    (Literal["yes", "no"], '"yes"', "yes"),
    (int, "5", 5),
    (float, "0.5", 0.5),
    (bool, "true", True),
    (date, '"2026-02-03"', date(2026, 2, 3)),
    (Colour, '"blue"', Colour.BLUE),
    (tuple[int, str], '[1, "a"]', (1, "a")),
    (Names, '["a"]', Names(["a"])),
    (str | int, '"a"', "a"),
]


@pytest.mark.parametrize(("kind", "reply", "value"), OBJECTS, ids=lambda case: str(case)[:30])
def test_a_type_whose_schema_is_an_object_is_sent_as_it_is(kind: Any, reply: str, value: object) -> None:
    """The root of the schema is an object, also of a recursive type."""
    output = read_output_type(kind)
    assert output is not None
    assert output.spec.schema["type"] == "object"
    assert output.wrapper is None
    assert CrewExecutor(Agent("a", model=ScriptedProvider(reply), output=kind)).execute_sync("Go").output == value


@pytest.mark.parametrize(
    "form", [lambda reply: f'{{"{WRAPPER_KEY}": {reply}}}', lambda reply: reply], ids=["wrapped", "bare"]
)
@pytest.mark.parametrize(("kind", "reply", "value"), WRAPPED, ids=lambda case: str(case)[:30])
def test_any_other_type_is_wrapped_in_an_object(
    kind: Any, reply: str, value: object, form: Callable[[str], str]
) -> None:
    """Services accept only objects. A model that writes the value alone is understood too."""
    output = read_output_type(kind)
    assert output is not None
    assert output.spec.schema["type"] == "object"
    assert list(output.spec.schema["properties"]) == [WRAPPER_KEY]
    result = CrewExecutor(Agent("a", model=ScriptedProvider(form(reply)), output=kind)).execute_sync("Go")
    assert result.output == value
    assert result.usage.requests == 1
    assert result.text == form(reply)


@pytest.mark.parametrize("kind", [str, None])
def test_without_a_type_the_output_is_text(kind: Any) -> None:
    """`str` is the default: no schema is sent, and JSON stays a text."""
    specs = []
    model = ScriptedProvider(lambda request: specs.append(request.output) or '{"amount": 3}')  # type: ignore[func-returns-value]
    result = CrewExecutor(Agent("a", model=model, output=kind)).execute_sync("Go")
    assert result.output == result.text == '{"amount": 3}'
    assert specs == [None]


class Opaque:
    pass


@pytest.mark.parametrize(
    ("output", "problem"),
    [
        ("Refund", "output='Refund' is a value, not a type"),
        (5, "output=5 is a value"),
        (Refund(amount=1), "is a value, not a type"),
        ([Refund], "is a value, not a type; pass a class, list"),
        (json.loads, "is a value, not a type"),
        (lambda: 5, "is a value, not a type"),
        (Any, "accepts every value; leave output= out for text"),
        (object, "accepts every value"),
        (Opaque, "has no JSON schema: Unable to generate"),
        (list[Opaque], "has no JSON schema"),
        (Callable[[int], int], "has no JSON schema"),
        (list["Unknown"], "is not fully defined; you should define `list['Unknown']`"),  # type: ignore[name-defined]  # noqa: F821
    ],
    ids=lambda case: str(case).partition(" at 0x")[0],
)
def test_a_value_that_can_not_be_a_schema_is_refused(output: Any, problem: str) -> None:
    """When the agent is built; the error lists what is accepted."""
    with pytest.raises(DefinitionError, match="Accepted: pydantic models, dataclasses, TypedDicts") as raised:
        Agent("clerk", output=output)

    assert problem in str(raised.value)
    assert raised.value.subject == "Agent 'clerk'"


@pytest.mark.parametrize("kind", [Refund, list[Refund], int, Literal["a", "b"], Refund | Refusal, dict[str, Point]])
def test_names_of_schemas_have_the_characters_that_services_accept(kind: Any) -> None:
    """At most 64 of A–Z a–z 0–9 _ -."""
    output = read_output_type(kind)
    assert output is not None
    assert output.name.replace("_", "").replace("-", "").isalnum()
    assert len(output.name) <= 64


def test_the_schema_of_an_annotated_type_is_the_same_in_every_process() -> None:
    """Its name is made of the names of classes: the text of a validator would have an address in memory."""

    def checked(kind: Any) -> Any:
        output = read_output_type(Annotated[kind, AfterValidator(lambda value: value)])
        assert output is not None
        return output.spec

    for kind, name in {int: "int", list[Refund]: "list_Refund", Refund | None: "Refund_None"}.items():
        assert checked(kind) == checked(kind)
        assert checked(kind).name == name
        assert checked(list[checked_type(kind)]).name == f"list_{name}"


def checked_type(kind: Any) -> Any:
    return Annotated[kind, Field(description="What was checked."), AfterValidator(lambda value: value)]


@pytest.mark.parametrize("kind", [list[Refund], int, Refund | Refusal], ids=str)
@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_each_service_gets_a_strict_schema_of_an_object(protocol: Protocol, kind: Any) -> None:
    """On the bytes that the service received; the reply is unwrapped."""
    reply = {int: '{"value": 7}', list[Refund]: '{"value": [{"amount": 7}]}'}.get(kind, '{"value": {"amount": 7}}')
    value, form = await sent_format(protocol, kind, reply)
    assert value in (7, [Refund(amount=7)], Refund(amount=7))
    schema = form["schema"]
    assert schema["type"] == "object"
    assert schema["additionalProperties"] is False
    assert form.get("strict") is (None if protocol == "messages" else True)
    references = json.dumps(schema).count("#/$defs/")
    assert references == 0 or schema["$defs"], "what is referred to is sent too"


async def sent_format(protocol: Protocol, kind: Any, reply: str) -> tuple[Any, dict[str, Any]]:
    """The output of a run, and the format that a service that checks it received; empty if there was none."""
    async with WireServer([reply], model=Model(era="modern")) as server:
        agent = Agent("clerk", instructions="Fill in.", model=provider(server, protocol, "modern"), output=kind)
        result = await run(CrewExecutor(agent))
        assert not server.refused, refusal_reasons(server)
        body = server.requests[0].body

    return result.output, {
        "chat": lambda: body["response_format"]["json_schema"],
        "responses": lambda: body["text"]["format"],
        "messages": lambda: body.get("output_config", {}).get("format", {}),
    }[protocol]()


class Link(BaseModel):
    url: AnyUrl
    folder: DirectoryPath | None = None
    price: Decimal = Decimal(0)
    id: UUID = Field(json_schema_extra={"x-form": "hidden"})


LINK = '{"url": "https://example.org/", "id": "12345678-1234-5678-1234-567812345678"}'


@pytest.mark.parametrize(
    ("kind", "reply", "left_out"),
    [
        (set[int], '{"value": [1]}', ("uniqueItems",)),
        (Link, LINK, ("directory-path", "x-form", "default")),
    ],
    ids=["set", "link"],
)
@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_what_strict_mode_does_not_support_is_left_out(
    protocol: Protocol, kind: Any, reply: str, left_out: tuple[str, ...]
) -> None:
    """The server refuses it with a 400; the reply is validated against the type anyway."""
    _, form = await sent_format(protocol, kind, reply)
    assert form.get("strict") is (None if protocol == "messages" else True)
    assert [word for word in left_out if f'"{word}"' in json.dumps(form["schema"])] == []
    formats = {part.get("format") for part in form["schema"]["properties"].values()} - {None}
    assert formats <= ({"uuid", "uri"} if protocol == "messages" else {"uuid"})


class Loose(BaseModel):
    note: Any = None


@pytest.mark.parametrize(
    ("kind", "reply", "strict_for"),
    [
        (Loose, "{}", ()),
        (list[Any], '{"value": []}', ()),
        (dict[str, int], "{}", ()),
        (tuple[int, str], '{"value": [1, "a"]}', ()),
        (Literal[1, "x"], '{"value": 1}', ("messages",)),
        (Node, '{"name": "a", "children": []}', ("chat", "responses")),
        (list[Node], '{"value": []}', ("chat", "responses")),
    ],
    ids=["any", "list", "dict", "tuple", "literal", "recursive", "recursive list"],
)
@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_a_schema_that_a_service_would_refuse_as_strict_is_not_strict(
    protocol: Protocol, kind: Any, reply: str, strict_for: tuple[str, ...]
) -> None:
    """Values without a type, open objects, tuples; for Anthropic recursive types, which it gets as instructions."""
    _, form = await sent_format(protocol, kind, reply)
    assert (bool(form) if protocol == "messages" else form["strict"]) is (protocol in strict_for)


async def test_a_wrong_value_is_corrected_in_the_words_of_the_wrapped_form() -> None:
    """The model is asked for the form that the schema has."""
    model = ScriptedProvider('{"value": ["x"]}', '{"value": [1]}')
    result = await CrewExecutor(Agent("a", model=model, output=list[int])).execute("Go")
    assert result.output == [1]
    assert any("value.0: Input should be a valid integer" in getattr(m, "text", "") for m in result.transcript)

    with pytest.raises(OutputInvalid, match="does not match list_int"):
        await CrewExecutor(Agent("a", model=ScriptedProvider("x", "y"), output=list[int])).execute("Go")


async def test_a_streamed_value_is_unwrapped_while_it_grows() -> None:
    """`stream.partial` is the value, not its wrapper."""
    executor = CrewExecutor(Agent("a", model=ScriptedProvider('{"value": ["one", "two"]}'), output=list[str]))

    async with executor.execute_stream("Go") as events:
        seen = [events.partial async for event in events if event.kind == "text_delta"]

    assert seen[-1] == ["one", "two"] == events.result.output


async def test_a_value_is_decoded_after_a_resume_in_another_executor(tmp_path: Path) -> None:
    """The store has the text of the reply; the executor that resumes has the type."""

    @tool(approval=True)
    def pay(amount: int) -> str:
        """Pay."""
        return f"Paid {amount}."

    def executor() -> CrewExecutor[Any, list[Refund]]:
        script = ScriptedProvider(lambda r: call("pay", amount=3) if len(r.messages) < 3 else '[{"amount": 3}]')
        agent = Agent("a", model=script, tools=[pay], output=list[Refund])
        return CrewExecutor(agent, store=tmp_path / "runs.db")

    async with executor() as first:
        paused = await first.execute("Go", run_id="r")

    with pytest.raises(NoOutput, match=r"Run 'r' has no output: it waits for an answer; resume it .* result\.pauses"):
        _ = paused.output

    assert isinstance(paused.answer, MissingOutput)
    assert paused.text == ""

    async with executor() as second:
        done = await second.resume("r", {paused.pauses[0].id: True})

    assert done.output == done.answer == [Refund(amount=3)]


async def test_an_unfinished_run_of_a_typed_agent_says_why_it_has_no_output() -> None:
    """Without a type, the output of the same run is the text so far."""
    model = ScriptedProvider(lambda r: call("nothing"))
    limited = await CrewExecutor(Agent("a", model=model, output=Refund), limits=Limits(rounds=1)).execute("Go")

    with pytest.raises(NoOutput, match=r"a limit ended it, see result\.limit") as raised:
        _ = limited.output

    assert raised.value.result is limited
    assert isinstance(raised.value, RunError)
    assert (await CrewExecutor(Agent("a", model=model), limits=Limits(rounds=1)).execute("Go")).output == ""
    empty = await CrewExecutor(Agent("a", model=ScriptedProvider("", ""), output=Refund)).execute("Go")
    assert empty.finish_reason == "empty"

    with pytest.raises(NoOutput, match="empty reply twice"):
        _ = empty.output


async def test_branches_and_agents_as_tools_keep_their_types() -> None:
    """The record of a branch has its value, and a calling agent gets the text."""
    one = Agent("one", model=ScriptedProvider('{"value": 1}'), output=int)
    two = Agent("two", model=ScriptedProvider('{"amount": 2}'), output=Refund)
    crew = Crew("c", agents=[one, two], groups=[Parallel("g", branches=[one, two])], entry="g")
    result = await CrewExecutor(crew).execute("Go")
    assert [branch.output for branch in result.branches] == [1, Refund(amount=2)]
    assert "[Results of g]" in str(result.output), "a join is text"


class Database:
    pass


async def test_deps_of_another_type_than_the_agent_declares_are_refused() -> None:
    """Before anything is stored; a type that only type checkers can check is accepted."""
    agent = Agent("clerk", model=ScriptedProvider("Hi", "Hi", "Hi"), deps_type=Database)
    executor = CrewExecutor(agent)
    wrong: Any = 5

    with pytest.raises(InvalidInput, match="agent 'clerk' needs deps of the type Database, but got a int"):
        await executor.execute("Go", deps=wrong, run_id="r")

    with pytest.raises(InvalidInput, match="but got no deps; pass deps= with a Database"):
        await executor.execute("Go")

    assert (await executor.execute("Go", deps=Database(), run_id="r")).output == "Hi"

    with pytest.raises(RunError, match=r"its deps factory .* failed: .* agent 'clerk' needs deps"):
        await CrewExecutor(agent, deps=lambda info: wrong).execute("Go")

    assert (await CrewExecutor(agent, deps=lambda info: Database()).execute("Go")).output == "Hi"
    typed_dict: Any = Agent("a", model=ScriptedProvider("Hi"), deps_type=Address)
    assert (await CrewExecutor(typed_dict).execute("Go", deps={"street": "Main"})).output == "Hi"

    with pytest.raises(DefinitionError, match="deps_type must be a class, not 5"):
        Agent("a", deps_type=wrong)


def test_classes_take_type_parameters_when_they_are_called() -> None:
    """`Agent[Deps, Output](…)` is the same class, frozen as before."""
    agent = Agent[Database, Refund]("a", model=ScriptedProvider("{}"), output=Refund)
    assert type(agent) is Agent
    assert type(Crew[Database, Refund]("c", agents=[agent])) is Crew
    assert type(CrewExecutor[Database, Refund](agent)) is CrewExecutor
