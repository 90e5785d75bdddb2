"""Edge cases of pruning that long runs reach rarely."""

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from crew import Agent, CrewExecutor, ScriptedProvider, call, tool
from crew.errors import ContextOverflow, DefinitionError
from crew.history import Calibration, History, TokenBudget, View, group_entries, spans_to_compress
from crew.history.eviction import enforce_bounds, evict, eviction_order
from crew.history.policies import HeadTail, Rolling, Summarize, chain
from crew.history.summaries import attach_identifiers, find_identifiers, has_text
from crew.history.view_fitting import ViewFitter
from crew.interfaces import HistoryBudget, HistoryEntry, LastNMessages, MessageGroup, PolicyOptions, PruneDecision
from crew.messages import (
    AssistantMessage,
    Message,
    SummaryMessage,
    SystemMessage,
    ToolCall,
    ToolMessage,
    ToolResult,
    UserMessage,
)


def history(*messages: Message, goal: str = "g") -> History:
    entries = tuple(HistoryEntry(message=m, position=n, tokens=10) for n, m in enumerate(messages))
    return History(entries=entries, size=len(entries), goal=goal)


def exchange(n: int, name: str = "read", arguments: str = "{}") -> tuple[Message, Message]:
    asked = AssistantMessage(calls=(ToolCall(id=f"c{n}", name=name, arguments=arguments),), id=f"a{n}")
    return asked, ToolMessage((ToolResult(call_id=f"c{n}", text="Fine."),), id=f"t{n}")


def ids(history: History) -> list[str]:
    return [message.id for message in history.messages]


def test_summary_in_a_full_history_evicts_the_oldest() -> None:
    """It is inserted within the same limit as every message."""
    full = history(UserMessage("x", id="u"), AssistantMessage("y", id="r"), UserMessage("z", id="g"))
    summary = HistoryEntry(message=SummaryMessage("s", id="s", covers=("gone",)), position=1)
    made = full.insert_summary(
        HistoryEntry(message=summary.message, position=1), budget=HistoryBudget(limit=3, prune_to=1)
    )
    assert made is not None
    grown, pruned = made
    assert grown.size <= 3
    assert "s" in ids(grown)
    assert "g" in ids(grown)
    assert pruned is not None


def test_no_summary_if_mandatory_messages_fill_the_limit() -> None:
    """Its messages stay pending."""
    full = history(SystemMessage("a", id="s1"), SystemMessage("b", id="s2"), UserMessage("z", id="g"))
    entry = HistoryEntry(message=SummaryMessage("s", id="s", covers=("gone",)), position=1)
    assert full.insert_summary(entry, budget=HistoryBudget(limit=3, prune_to=1)) is None


def test_unbounded_history_accepts_any_summary() -> None:
    """The covered messages leave."""
    grown = history(UserMessage("x", id="u"), UserMessage("z", id="g")).insert_summary(
        HistoryEntry(message=SummaryMessage("s", id="s", covers=("u",)), position=0), budget=HistoryBudget(limit=None)
    )
    assert grown is not None
    assert ids(grown[0]) == ["s", "g"]


def test_eager_policy_is_called_without_a_limit() -> None:
    """It can prune by tokens alone."""
    long = history(*(UserMessage("x", id=f"u{n}") for n in range(9)), UserMessage("z", id="g"))
    policy = Summarize(window=100)
    grown, pruned = long.append(
        HistoryEntry(message=UserMessage("n", id="n"), position=10, tokens=10),
        policy=policy,
        budget=HistoryBudget(limit=None, eager=policy.options.eager),
    )
    assert pruned is not None
    assert pruned.to_summarize
    assert grown.size < 11


def test_overflow_of_the_mandatory_part_is_itemized() -> None:
    """Only then is there an overflow."""
    with pytest.raises(ContextOverflow) as caught:
        history(SystemMessage("a", id="s1"), UserMessage("z", id="g")).append(
            HistoryEntry(message=UserMessage("n", id="n"), position=2),
            policy=Rolling(),
            budget=HistoryBudget(limit=2, prune_to=1),
        )

    assert len(caught.value.items) == 3


def test_orphan_results_are_one_group() -> None:
    """An empty history has no group."""
    lone = history(UserMessage("x", id="g"), exchange(1)[1])
    assert [g.kind for g in group_entries(lone.entries, "g")] == ["user", "results"]
    assert group_entries((), "g") == ()


def test_turn_without_its_user_message_is_evicted() -> None:
    """A history starts with a user message, or its first turn leaves."""
    made = history(UserMessage("x", id="u"), *exchange(1), UserMessage("y", id="g"), *exchange(2), goal="g")
    groups = group_entries(made.entries, "g")
    kept = tuple(g for g in groups if g.entries[0].message.id != "u")
    decision = enforce_bounds(groups, PruneDecision(kept=kept), 5)
    shown = [entry.message.id for g in decision.kept for entry in g.entries]
    assert shown == ["g", "a2", "t2"]
    roomy = enforce_bounds(groups, PruneDecision(kept=kept), 6)
    assert next(entry.message.id for g in roomy.kept for entry in g.entries) == "u"


def test_tail_skips_system_messages_and_summaries() -> None:
    """They are outside head and tail; the tail can hold all other messages."""
    policy = HeadTail(max_messages=4, preserve_first_n=1, preserve_last_n=2)
    messages = [
        UserMessage("x", id="u"),
        SystemMessage("a", id="s1"),
        AssistantMessage("r", id="r"),
        SummaryMessage("s", id="s"),
        SystemMessage("b", id="s2"),
        UserMessage("z", id="g"),
    ]
    kept = policy.prune(group_entries(history(*messages).entries, "g"), HistoryBudget(limit=5, prune_to=2)).kept
    assert [g.entries[0].message.id for g in kept] == ["u", "s1", "r", "s2", "g"]
    all_of_it = HeadTail(max_messages=30, preserve_first_n=10, preserve_last_n=10)
    few = group_entries(history(UserMessage("x", id="u"), UserMessage("z", id="g")).entries, "g")
    assert all_of_it.prune(few, HistoryBudget(limit=1, prune_to=1)).evicted == ()


def test_touched_files_come_from_valid_arguments() -> None:
    """Broken JSON, other types and tools without `touches` name no file."""
    messages: list[Message] = [UserMessage("x", id="first")]

    for n, (name, arguments) in enumerate(
        [("read", "{"), ("read", "[]"), ("other", '{"path": "x"}'), ("read", '{"path": "kept.py"}')]
    ):
        messages.extend(exchange(n, name, arguments))

    messages.extend(UserMessage("y", id=f"u{n}") for n in range(8))
    made = history(*messages, UserMessage("z", id="g"))
    budget = HistoryBudget(limit=12, prune_to=6, touches={"read": "path"})
    kept = Summarize().prune(group_entries(made.entries, "g"), budget).kept
    shown = [entry.message.id for g in kept for entry in g.entries]
    assert "a3" in shown
    assert not {"a0", "a1", "a2"} & set(shown)


def test_chain_member_keeps_its_smaller_limit() -> None:
    """The limit of the chain is the smallest; a member never sees more than its limit."""
    policy = chain(Rolling(limit=10), HeadTail(max_messages=30))
    assert policy.options.limit == 10
    made = history(*(UserMessage("x", id=f"u{n}") for n in range(12)), UserMessage("z", id="g"))
    decision = policy.prune(group_entries(made.entries, "g"), HistoryBudget(limit=20, prune_to=10))
    assert sum(g.size for g in decision.kept) <= 10

    with pytest.raises(DefinitionError):
        chain()


def test_identifiers_are_paths_ids_numbers_and_addresses() -> None:
    """Not words."""
    text = "See src/a.py, and/or https://x.org/7 for INV-17: 1,250.00 EUR (ada@x.org), max_size; i.e. don't."
    assert [*find_identifiers(text)] == [
        "src/a.py", "https://x.org/7", "INV-17", "1,250.00", "ada@x.org", "max_size",
    ]  # fmt: skip


def test_identifiers_in_arguments_are_their_values() -> None:
    """Of any JSON type; invalid JSON is read as text."""
    deep = AssistantMessage(
        calls=(
            ToolCall(id="1", name="f", arguments='{"key_1": [{"k": "a_1"}, 345, true, null]}'),
            ToolCall(id="2", name="f", arguments="broken b_2"),
        )
    )
    text = attach_identifiers("Short.", [deep, SystemMessage("c_3")], 200)
    assert "Identifiers: a_1, 345, b_2" in text
    assert "key_1" not in text
    assert "c_3" not in text
    assert attach_identifiers("Short.", [deep], 5) == "Short."


async def test_raising_policy_fails_the_run() -> None:
    """A policy is user code."""

    class Broken:
        name = "broken"
        options = PolicyOptions(limit=5)

        def prune(self, history: Sequence[MessageGroup], budget: HistoryBudget) -> PruneDecision:
            raise ValueError("no idea")

    @tool
    def look() -> str:
        """Look."""
        return "x"

    script: Any = ScriptedProvider(lambda request: call("look"))
    with pytest.raises(Exception, match="no idea"):
        await CrewExecutor(Agent("a", model=script, tools=[look]), history=Broken()).execute("Go.")


def test_system_messages_do_not_count_as_last_messages() -> None:
    """The last `n` messages stay verbatim, system messages not counted."""
    older = [UserMessage("x", id=f"u{n}") for n in range(12)]
    made = history(*older, UserMessage("y", id="y"), SystemMessage("rule", id="s"), UserMessage("z", id="g"))
    groups = group_entries(made.entries, "g")
    assert spans_to_compress(groups, LastNMessages(2)) == (tuple(message.id for message in older),)


def test_tool_results_have_text_if_any_result_has() -> None:
    """Only messages with text are worth a summary."""
    empty, text = ToolResult(call_id="a", text=" "), ToolResult(call_id="b", text="Fine.")
    assert not has_text(ToolMessage((empty,), id="t"))
    assert has_text(ToolMessage((empty, text), id="t"))


def test_truncation_marker_gives_way_to_mandatory_messages() -> None:
    """The marker is removed if the mandatory messages fit only without it."""
    made = history(UserMessage("z", id="g"))
    fitter = ViewFitter("a", made, View(truncated_count=3), TokenBudget(), Calibration(), 0, list)
    assert fitter.size == 2
    assert fitter.evict_to("max_history_size", "too many", target=1, ceiling=1, by="size")
    assert (fitter.size, fitter.view.truncated_count) == (1, 0)


def with_summaries(*kinds: str) -> tuple[MessageGroup, ...]:
    """Groups of one message each: `s` a summary, `u` a user message, `a` a reply; the last is the goal."""
    made: dict[str, Any] = {"s": SummaryMessage, "u": UserMessage, "a": AssistantMessage}
    messages = [made[kind](f"text {n}", id=f"{kind}{n}") for n, kind in enumerate(kinds)]
    return group_entries(history(*messages).entries, messages[-1].id)


@pytest.mark.parametrize(
    ("target", "limit", "gone"),
    [
        (4, 8, {1, 3, 4, 5}),
        (3, 8, {0, 1, 3, 4, 5}),  # an older summary makes space
        (1, 8, {0, 1, 2, 3, 4, 5}),  # all but the newest
        (1, 1, {0, 1, 2, 3, 4, 5, 6}),  # above the limit, the newest too
    ],
)
def test_summaries_leave_last_and_oldest_first(target: int, limit: int, gone: set[int]) -> None:
    """Every verbatim message that may leave goes first; the newest summary leaves only above the limit."""
    assert evict(with_summaries("s", "a", "s", "u", "a", "a", "s", "u"), target=target, limit=limit) == gone


@given(st.lists(st.sampled_from("suua"), min_size=1, max_size=20), st.integers(1, 20), st.integers(1, 20))
def test_no_summary_leaves_while_a_verbatim_message_may(kinds: list[str], first: int, second: int) -> None:
    """For every order of messages: a summary is evicted after all others that may leave, and after older summaries."""
    groups = with_summaries(*kinds, "u")
    gone = evict(groups, target=min(first, second), limit=max(first, second))
    summaries = [i for i, g in enumerate(groups) if isinstance(g.entries[0].message, SummaryMessage)]
    verbatim = {index for unit in eviction_order(groups) for index in unit}

    if gone.intersection(summaries):
        assert verbatim <= gone

    assert sorted(gone.intersection(summaries)) == summaries[: len(gone.intersection(summaries))]

    if summaries and summaries[-1] in gone:
        assert len(groups) - len(gone) + 1 > max(first, second)
