"""`@tool` builds the description and the schema from the signature and the docstring."""

from __future__ import annotations

import enum
from datetime import date
from functools import partial
from typing import Annotated, Any, Literal

import pytest
from pydantic import BaseModel, Field

from crew import Agent, Context, CrewExecutor, ScriptedProvider, call, tool
from crew.errors import DefinitionError
from crew.tools import InvalidArguments, Tool


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Address(BaseModel):
    """A postal address."""

    city: str
    zip: str | None = None


def google(order_id: str, size: int = 3) -> str:
    """Look up an order.

    It may take a while.

    Args:
        order_id: The order's number.
        size: How many lines.

    Returns:
        The order.
    """
    return ""


def numpy(order_id: str, size: int = 3) -> str:
    """Look up an order.

    It may take a while.

    Parameters
    ----------
    order_id : str
        The order's number.
    size : int
        How many lines.
    """
    return ""


def sphinx(order_id: str, size: int = 3) -> str:
    """Look up an order.

    It may take a while.

    :param order_id: The order's number.
    :param size: How many lines.
    """
    return ""


@pytest.mark.parametrize("function", [google, numpy, sphinx])
def test_google_numpy_and_sphinx_docstrings_are_read(function: Any) -> None:
    """All three styles give the same description and schema."""
    made = tool(function)
    assert made.name == function.__name__
    assert made.spec.description == "Look up an order.\n\nIt may take a while."
    assert made.spec.parameters == {
        "type": "object",
        "properties": {
            "order_id": {"type": "string", "description": "The order's number."},
            "size": {"type": "integer", "default": 3, "description": "How many lines."},
        },
        "required": ["order_id"],
        "additionalProperties": False,
    }


def test_types_become_a_schema_and_arguments_become_values() -> None:
    """For enums, literals, unions, models, constraints and dates."""

    @tool
    def rich(
        colour: Colour,
        mood: Literal["calm", "wild"],
        address: Address,
        when: date,
        count: Annotated[int, Field(ge=1, le=9, description="how many")],
        tags: list[str] | None = None,
        json: str = "x",
        model_config: int = 0,
        anything=None,  # type: ignore[no-untyped-def]
    ) -> str:
        """Take it all."""
        return ""

    properties = rich.spec.parameters["properties"]
    assert set(properties) == {"colour", "mood", "address", "when", "count", "tags", "json", "model_config", "anything"}
    assert properties["mood"]["enum"] == ["calm", "wild"]
    assert rich.spec.parameters["required"] == ["colour", "mood", "address", "when", "count"]
    assert "title" not in str(rich.spec.parameters)
    arguments = rich.signature.parse_arguments(
        '{"colour": "red", "mood": "calm", "address": {"city": "Bern"}, "when": "2026-11-16", "count": 2}'
    )
    assert arguments == {
        "colour": Colour.RED,
        "mood": "calm",
        "address": Address(city="Bern"),
        "when": date(2026, 11, 16),
        "count": 2,
    }

    with pytest.raises(InvalidArguments) as caught:
        rich.signature.parse_arguments(
            '{"colour": "green", "mood": "calm", "address": {}, "when": "soon", "count": 99}'
        )

    message = str(caught.value)
    assert all(part in message for part in ("colour", "address.city", "when", "count", "(got 99)"))
    assert "a0" not in message


def test_a_parameter_named_title_is_kept() -> None:
    """Only the titles that pydantic generates are removed."""

    @tool
    def book(title: str) -> str:
        """Find a book."""
        return title

    assert book.spec.parameters["properties"] == {"title": {"type": "string"}}
    assert book.signature.parse_arguments('{"title": "Emma"}') == {"title": "Emma"}


def test_the_context_is_not_in_the_schema() -> None:
    """A parameter of type Context is recognised by its type, not by its name or position."""

    def with_context(a: int, ctx: Context[dict[str, int]], b: int = 2) -> str:
        """Work."""
        return ""

    made = tool(with_context)
    assert set(made.spec.parameters["properties"]) == {"a", "b"}
    assert made.signature.context_parameter == "ctx"


class Shelf:
    """A class whose methods are tools."""

    def __call__(self, n: int) -> str:
        """Call it."""
        return f"called {n}"

    def put(self, thing: str) -> str:
        """Put something on the shelf.

        Args:
            thing: What.
        """
        return f"put {thing}"

    @classmethod
    def build(cls, size: int) -> str:
        """Build one."""
        return f"built {size}"

    @staticmethod
    def dust(hard: bool = False) -> str:
        """Dust it."""
        return f"{hard}"


class Bell:
    async def __call__(self, n: int) -> str:
        """Ring."""
        return f"rang {n}"


def test_methods_and_callables_are_tools() -> None:
    """Bound methods, class methods, static methods, objects with __call__ and partials."""
    shelf = Shelf()
    put = tool(shelf.put)
    assert set(put.spec.parameters["properties"]) == {"thing"}
    assert put("book") == "put book"
    assert tool(Shelf.build).name == "build"
    assert tool(Shelf.dust)(hard=True) == "True"
    called = tool(name="shelf")(shelf)
    assert set(called.spec.parameters["properties"]) == {"n"}
    assert not called.is_async
    assert tool(name="bell")(Bell()).is_async
    part = tool(name="part", description="Half done.")(partial(google, size=5))
    assert part.spec.description == "Half done."
    assert "order_id" in part.spec.parameters["properties"]


def test_a_tool_has_the_options_of_its_decorator() -> None:

    @tool(
        name="look-up",
        description="Mine.",
        timeout=5,
        retries=2,
        approval=True,
        effect="read",
        touches="path",
        max_output_chars=100,
    )
    async def read(path: str) -> str:
        """Ignored."""
        return path

    assert isinstance(read, Tool)
    assert (read.name, read.spec.description) == ("look-up", "Mine.")
    assert (read.timeout, read.retries, read.approval, read.effect) == (5, 2, "always", "read")
    assert (read.touches, read.max_output_chars, read.is_async) == ("path", 100, True)
    assert read.needs_approval({})
    assert not tool(google).needs_approval({})
    assert tool(google).effect == "write"


def unreadable(n: Nowhere) -> str:  # type: ignore[name-defined] # noqa: F821
    """A type that does not exist."""
    return ""


def starred(*names: str) -> str:
    """Any number."""
    return ""


def double_starred(**names: str) -> str:
    """Any names."""
    return ""


def positional(n: int, /) -> str:
    """No name."""
    return ""


def without_schema(thing: threading_lock) -> str:  # type: ignore[valid-type]
    """A type without a schema."""
    return ""


threading_lock = type("Lock", (), {})


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: tool(unreadable), "Nowhere"),
        (lambda: tool(starred), r"\*names"),
        (lambda: tool(double_starred), r"\*\*names"),
        (lambda: tool(positional), "can't pass the parameter"),
        (lambda: tool(without_schema), "JSON schema"),
        (lambda: tool(lambda n: n), "name="),
        (lambda: tool(Shelf()), "name="),
        (lambda: tool(name="no name")(google), "1–64"),
        (lambda: tool(name="x" * 65)(google), "1–64"),
        (lambda: tool(timeout=0)(google), "timeout"),
        (lambda: tool(timeout=-1)(google), "timeout"),
        (lambda: tool(timeout=float("nan"))(google), "timeout"),
        (lambda: tool(timeout="long")(google), "timeout"),  # type: ignore[arg-type]
        (lambda: tool(timeout=None)(google), "timeout"),  # type: ignore[arg-type]
        (lambda: tool(retries=-1)(google), "retries"),
        (lambda: tool(retries=1.5)(google), "retries"),  # type: ignore[arg-type]
        (lambda: tool(retries=True)(google), "retries"),
        (lambda: tool(effect="none")(google), "effect"),  # type: ignore[arg-type]
        (lambda: tool(approval="maybe")(google), "approval"),  # type: ignore[arg-type]
        (lambda: tool(touches="nothing")(google), "touches"),
        (lambda: tool(max_output_chars=0)(google), "max_output_chars"),
        (lambda: tool(max_output_chars="all")(google), "max_output_chars"),  # type: ignore[arg-type]
    ],
)
def test_an_invalid_tool_is_refused(make: Any, text: str) -> None:
    """When it is defined, not when it is called."""
    with pytest.raises(DefinitionError, match=text):
        make()


def test_all_problems_of_a_tool_are_reported_at_once() -> None:
    with pytest.raises(DefinitionError) as caught:
        tool(name="no name", timeout=0, retries=-1, effect="x", touches="y", max_output_chars=0)(google)  # type: ignore[arg-type]

    assert len(caught.value.problems) == 6


def described(
    city: Annotated[str, Field(description="The name of a city.", min_length=2)],
    country: Annotated[str, "An ISO code."] = "DE",
    days: int = Field(ge=1),
    limit: int = Field(5, ge=1, description="At most so many."),
    unit: Annotated[str, Field(pattern="^[CF]$")] = "C",
) -> str:
    """Look up the weather.

    Args:
        city: Not used, because the annotation describes it.
        unit: The unit of the temperature.
    """
    return f"{city} {country} {days} {limit} {unit}"


def test_descriptions_and_bounds_of_annotations_reach_the_schema() -> None:
    """`Field` in an annotation or as the default, and a plain text in an annotation; the docstring is the fallback."""
    properties: Any = tool(described).spec.parameters["properties"]
    assert properties["city"]["description"] == "The name of a city."
    assert properties["city"]["minLength"] == 2
    assert properties["country"]["description"] == "An ISO code."
    assert properties["days"]["minimum"] == 1
    assert properties["limit"] == {"type": "integer", "default": 5, "minimum": 1, "description": "At most so many."}
    assert properties["unit"]["description"] == "The unit of the temperature."
    assert tool(described).spec.parameters["required"] == ["city", "days"]


def test_a_field_as_the_default_is_required_or_has_a_value() -> None:
    """`Field(ge=1)` is required and keeps its bound; `Field(5)` passes 5 to the function, not the field."""
    weather = tool(described)
    arguments = weather.signature.parse_arguments('{"city": "Bonn", "days": 2}')
    assert weather(**arguments) == "Bonn DE 2 5 C"

    for wrong in ('{"city": "Bonn"}', '{"city": "Bonn", "days": 0}', '{"city": "B", "days": 1}'):
        with pytest.raises(InvalidArguments):
            weather.signature.parse_arguments(wrong)


class Service:
    """Keeps orders."""

    def __init__(self, orders: dict[str, str]) -> None:
        self.orders = orders

    @tool(effect="read")
    def lookup(self, order_id: str) -> str:
        """Look up an order."""
        return self.orders[order_id]


async def test_a_decorated_method_is_a_tool_of_its_object() -> None:
    """`self` is not in the schema; the tool of each object works on that object."""
    first, second = Service({"17": "shipped"}), Service({"17": "lost"})
    assert list(first.lookup.spec.parameters["properties"]) == ["order_id"]  # type: ignore[call-overload]
    assert (first.lookup(order_id="17"), second.lookup(order_id="17")) == ("shipped", "lost")
    provider = ScriptedProvider(call("lookup", order_id="17"), lambda r: r.messages[-1].results[0].text)
    result = await CrewExecutor(Agent("a", model=provider, tools=[second.lookup])).execute("Where?")
    assert result.output == "lost"


def test_a_method_without_its_object_is_refused() -> None:
    """The error says how to pass it."""
    with pytest.raises(DefinitionError, match=r"service\.lookup"):
        Agent("a", model=ScriptedProvider("x"), tools=[Service.lookup])
