"""Secrets are removed from emitted values and from the errors of a run."""

import traceback
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, ValidationError

from crew import Agent, Context, Crew, CrewExecutor, RunError, ScriptedProvider, call, handoff, tool
from crew.runs.events import RunFailed, ToolProgress
from crew.secrets.registry import SecretRegistry
from crew.secrets.scrubbing import scrub_value

SECRET = "planted-secret-42"
SCRUB = SecretRegistry([SECRET])


class Model(BaseModel):
    number: int


class HidingError(Exception):
    """Hides its message."""

    def __init__(self) -> None:
        self.inner = type("Inner", (), {"words": SECRET})()

    def __str__(self) -> str:
        return f"could not log in with {self.inner.words}"


class Slotted(Exception):
    __slots__ = ("url",)

    def __str__(self) -> str:
        return self.url


def slotted() -> Exception:
    error = Slotted()
    error.url = f"https://host/{SECRET}"
    return error


def invalid() -> Exception:
    with pytest.raises(ValidationError) as raised:
        Model(number=SECRET)

    return raised.value


def noted() -> Exception:
    error = ValueError("no")
    error.add_note(f"with {SECRET}")
    return error


def caused_by(error: BaseException, times: int = 1) -> Exception:
    for _ in range(times):
        outer = ValueError("outer")
        outer.__cause__ = error
        error = outer

    return error


def in_a_circle() -> Exception:
    error = HidingError()
    error.__cause__ = caused_by(error)
    return error


ERRORS = {
    "text": lambda: ValueError(SECRET),
    "file": lambda: FileNotFoundError(2, "No such file", f"/run/{SECRET}"),
    "bytes": lambda: UnicodeDecodeError("utf-8", SECRET.encode() + b"\xff", 0, 1, f"bad {SECRET}"),
    "slot": slotted,
    "note": noted,
    "hostile": HidingError,
    "validation": invalid,
    "group": lambda: ExceptionGroup("all", [ExceptionGroup("some", [invalid(), ValueError(SECRET)]), OSError(SECRET)]),
    "group of that name": lambda: ExceptionGroup(SECRET, [ValueError("no")]),
    "deep": lambda: caused_by(ValueError(SECRET), 25),
    "deep and hostile": lambda: caused_by(HidingError(), 19),
    "circle": in_a_circle,
}


UNCHANGEABLE = {"hostile", "validation", "group", "group of that name", "deep", "deep and hostile", "circle"}
"""Their texts are computed, they are among members that are, or behind too many causes."""


@pytest.mark.parametrize("name", ERRORS)
@pytest.mark.parametrize("by", ["provider", "filter", "run error"])
async def test_error_keeps_its_identity_and_crew_writes_no_secret(name: str, by: str) -> None:
    """The texts of `RunError`, events and logs are scrubbed; the caller's error stays the same object."""
    error = ERRORS[name]()
    kind = type(error)

    def fail(messages: Any) -> Any:
        if by == "filter":
            raise error

        raise RunError("It failed.") from error

    last = Agent("last", model=ScriptedProvider(error))
    hand = handoff(last, history="full" if by == "provider" else fail)
    crew = Crew("c", agents=[Agent("first", model=ScriptedProvider(call("transfer_to_last")), handoffs=[hand]), last])
    events: list = []

    with pytest.raises(RunError) as raised:
        await CrewExecutor(crew, observers=[events.append], secrets=[SECRET]).execute("Go")

    assert SECRET not in str(raised.value)
    assert SECRET not in str([event for event in events if isinstance(event, RunFailed)])
    assert any(one is error for one in reachable(raised.value))
    assert type(error) is kind

    if name not in UNCHANGEABLE:
        assert SECRET not in "".join(traceback.format_exception(raised.value))


def reachable(error: BaseException) -> list[BaseException]:
    found: list[BaseException] = []
    waiting = [error]

    while waiting:
        one = waiting.pop()

        if not any(one is known for known in found):
            found.append(one)
            linked = [one.__cause__, one.__context__, *getattr(one, "exceptions", ())]
            waiting += [held for held in linked if held is not None]

    return found


async def test_attributes_of_an_error_are_scrubbed_in_place() -> None:
    """Also in the members of a group and in causes; `except` clauses of the caller work as without secrets."""
    kept = FileNotFoundError(2, "No such file", f"/run/{SECRET}")
    error = caused_by(ExceptionGroup("all", [kept, caused_by(invalid())]))

    with pytest.raises(RunError) as raised:
        await CrewExecutor(Agent("a", model=ScriptedProvider(error)), secrets=[SECRET]).execute("Go")

    chain = reachable(raised.value)
    assert error in chain
    assert kept in chain
    assert (kept.errno, kept.filename) == (2, "/run/[secret]")
    assert any(isinstance(one, ValidationError) for one in chain)


# ------------------------------------------------------------------------------------------ values


class Colour(StrEnum):
    RED = "red-as-it-is"


class Pair(NamedTuple):
    left: Any
    right: Any


@dataclass
class Account:
    """Fields with names that dataclasses use, and one that `replace` can't set."""

    role: Any
    agent: Any = None
    derived: Any = field(init=False, repr=False, default=None)


@dataclass
class Refusing:
    words: Any

    def __post_init__(self) -> None:
        if "[secret]" in repr(self.words):
            raise ValueError("no")


class Speaking:
    """Its representation contains the secret, and it can be a key."""

    def __init__(self, words: str) -> None:
        self.words = words

    def __repr__(self) -> str:
        return f"Speaking({self.words})"


class Mute:
    def __str__(self) -> str:
        raise RuntimeError("no")

    __repr__ = __str__


class Named(BaseModel):
    name: Any


TEXTS = st.sampled_from([SECRET, f"a {SECRET} b", "nothing", Colour.RED])
KEYS = TEXTS | TEXTS.map(Path) | TEXTS.map(Speaking) | st.tuples(TEXTS, TEXTS) | st.frozensets(TEXTS)
LEAVES = KEYS | TEXTS.map(str.encode) | TEXTS.map(ValueError) | st.integers() | st.none()
LEAVES |= TEXTS.map(lambda text: bytearray(text.encode()))
VALUES = st.recursive(
    LEAVES,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(KEYS, inner, max_size=3)
        | st.builds(Pair, inner, inner)
        | st.builds(Account, inner, inner)
        | st.builds(Refusing, inner)
        | st.builds(Named, name=inner)
    ),
    max_leaves=12,
)


@given(VALUES | st.sets(KEYS))
def test_no_value_shows_the_secret_afterwards(value: Any) -> None:
    """Of any type; a value without a secret stays the same object."""
    before = repr(value)
    shown = repr(scrub_value(SCRUB, value))
    assert SECRET not in shown
    assert SECRET in before or scrub_value(SCRUB, value) is value


def test_field_without_init_is_scrubbed() -> None:
    """It can't be replaced, so the text of the object is kept instead."""
    account = Account(role="user")
    account.derived = SECRET
    assert scrub_value(SCRUB, [account]) == ["Account(role='user', agent=None)"]


def test_circular_values_are_handled() -> None:
    """Also if each level refers back twice."""
    circle: list[Any] = [SECRET]
    circle += [circle, circle, Mute]
    assert scrub_value(SCRUB, circle)[0] == "[secret]"
    many: list[Any] = []

    for _ in range(60):
        many = [many, many]

    assert scrub_value(SCRUB, many) is many


def test_nothing_is_scanned_without_a_secret() -> None:
    """Most runs have none, and every event is scrubbed."""

    class Untouchable(list[Any]):
        def __iter__(self) -> Any:
            raise AssertionError("it was walked")

    value = Untouchable([1])
    assert scrub_value(SecretRegistry(), value) is value


async def test_progress_shows_no_secret() -> None:
    """Stream and observers get the scrubbed value."""
    told = [{SECRET}, Path("/x", SECRET), Named(name=SECRET), ValueError(SECRET), bytearray(SECRET.encode()), Mute()]

    @tool
    async def work(context: Context) -> str:
        """Work, and tell of it."""
        for data in told:
            context.emit(data)

        return "done"

    events: list = []
    agent = Agent("a", model=ScriptedProvider(call("work"), "Done."), tools=[work])
    await CrewExecutor(agent, observers=[events.append], secrets=[SECRET]).execute("Go")
    data = [event.data for event in events if isinstance(event, ToolProgress)]
    assert data == [{"[secret]"}, "/x/[secret]", "name='[secret]'", "[secret]", bytearray(b"[secret]"), told[-1]]
