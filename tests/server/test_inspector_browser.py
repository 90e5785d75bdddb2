"""The inspector in a real browser: live runs, approvals, the history of a request, hostile output, large runs."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, Route, expect

from crew import Agent, CrewExecutor, Limits, ScriptedProvider, call, tool
from crew.store import PostgresStore, SQLiteStore
from tests.support.browser import ROOT, SECRET, Visit, chromium, crew_process, origin, visiting
from tests.support.inspector_desk import crew as desk_crew
from tests.support.inspector_runs import fill
from tests.support.postgres import PostgresUnavailable, running_postgres
from tests.support.servers import server_missing

pytestmark = pytest.mark.servers
DESK = "tests/support/inspector_desk.py:crew"
LARGE_REQUESTS = 2_000
SMALL_REQUESTS = 40
expect.set_options(timeout=15_000)  # the machine may be busy


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as opened:
        yield opened


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """`crew serve` with a crew that does what it is asked for; its address with the token of the first visit."""
    store = tmp_path_factory.mktemp("service") / "runs.db"

    with crew_process("serve", DESK, "--store", str(store), "--max-messages", "12") as address:
        yield address


@pytest.fixture(scope="module")
def visit(browser: Browser, service: str) -> Iterator[Visit]:
    """One page for all tests of the module: the token of an address is valid once."""
    with visiting(browser, service) as opened:
        yield opened


def post(address: str, path: str, body: dict[str, Any]) -> Any:
    """Call the API as another client would."""
    headers = {"Authorization": f"Bearer {SECRET}", "Content-Type": "application/json"}
    request = urllib.request.Request(origin(address) + path, json.dumps(body).encode(), headers)

    with urllib.request.urlopen(request, timeout=10) as answer:
        return json.load(answer)


def start(address: str, text: str, **options: Any) -> str:
    return str(post(address, "/runs", {"input": text, **options})["run_id"])


def opened(visit: Visit, run_id: str, fragment: str = "", status: str = "completed", seconds: float = 5) -> Page:
    """The page of a run, once it has this status."""
    page = visit.go(f"/runs/{run_id}{fragment}")
    expect(page.locator("#head .chip")).to_contain_text(status, timeout=seconds * 1_000)
    return page


# ------------------------------------------------------------------------------------------ live runs and answers


def test_a_live_run_appears_and_grows(visit: Visit, service: str, tmp_path: Path) -> None:
    """A run that another client starts appears in the list; its page follows it until it ends."""
    page, signal = visit.go("/"), tmp_path / "signal"
    run_id = start(service, f"wait for {signal}")
    row = page.locator(f"#run-{run_id}")
    expect(row).to_be_visible()
    row.click()
    expect(page.locator("#head .chip")).to_contain_text("running")
    expect(page.locator("#follow")).to_contain_text("following")
    expect(page.locator("#rqh")).to_contain_text("of 13")
    signal.touch()
    expect(page.locator("#head .chip")).to_contain_text("completed", timeout=30_000)
    expect(page.locator("#rqh")).to_contain_text("of 25")
    assert page.locator("#tree .k-tool").count() > 5


def test_a_run_starts_on_the_page(browser: Browser, tmp_path: Path) -> None:
    """A service without runs offers it at once, `n` at any time; an input that is refused keeps what was written."""
    with (
        crew_process("serve", DESK, "--store", str(tmp_path / "runs.db")) as address,
        visiting(browser, address) as visit,
    ):
        page = visit.page
        form = page.locator("#state .newrun")
        form.get_by_role("button", name="Start the run").click()
        expect(form.get_by_role("alert")).not_to_be_empty()
        visit.problems.clear()  # the browser reports the refused request
        form.locator("textarea").fill("chat about it")
        form.get_by_role("button", name="Start the run").click()
        expect(page.locator("#head .chip")).to_contain_text("completed")
        expect(page.locator("#msgs")).to_contain_text("chat about it")
        expect(page.locator("#head")).to_contain_text("no price known")
        page.locator("#head h1").click()
        page.keyboard.press("n")
        page.locator("#newrun textarea").fill("chat again")
        page.locator("#newrun").get_by_role("textbox", name="Conversation").fill("anna-7")
        page.locator("#newrun textarea").press("Control+Enter")
        expect(page.locator("#newrun")).to_be_hidden()
        expect(page.locator("#msgs")).to_contain_text("chat again")
        start(address, "chat", conversation="anna-7")
        page.get_by_role("button", name="Conversations").click()
        expect(page.locator("#runs")).to_contain_text("2 turns")


def test_approve_resumes_the_run(visit: Visit, service: str) -> None:
    """The question shows tool, arguments and effect; approving it in the browser ends the pause."""
    page = opened(visit, start(service, "pay the bill"), status="paused")
    dock = page.locator("#dock")
    expect(dock).to_contain_text("effect: write")
    expect(dock.locator(".args")).to_contain_text('"invoice 17"')
    expect(page.locator("#approve")).to_be_enabled()
    page.keyboard.press("a")
    expect(page.locator("#approve")).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.locator("#head .chip")).to_contain_text("completed")
    expect(dock.locator("*")).to_have_count(0)
    expect(page.locator("#msgs")).to_contain_text("Done: 500 paid to Anna")


@pytest.mark.parametrize(("kind", "attempts"), [("run_finished", 1), ("run_active", 2)])
def test_an_answer_is_repeated_only_while_the_run_is_being_resumed(
    visit: Visit, service: str, kind: str, attempts: int
) -> None:
    """Any other refusal is shown at once; the question stays if the run still waits."""
    page, seen = opened(visit, start(service, "pay the bill"), status="paused"), list[str]()

    def refuse(route: Route) -> None:
        seen.append(route.request.url)
        error = {"type": kind if len(seen) == 1 else "run_finished", "message": "Somebody else answered."}
        route.fulfill(status=409, json={"error": error})

    page.route("**/answers", refuse)
    page.locator("#approve").click()
    expect(page.locator("#toast")).to_have_text("Somebody else answered.")
    assert len(seen) == attempts
    page.unroute("**/answers")
    visit.problems.clear()  # the browser reports the refused requests
    page.locator("#approve").click()
    expect(page.locator("#head .chip")).to_contain_text("completed")


def test_arguments_can_be_edited_before_they_are_approved(visit: Visit, service: str) -> None:
    """Text needs no quotes, other fields are read by the types of the tool's schema; JSON is for lists and objects."""
    page = opened(visit, start(service, "order it"), status="paused")
    page.keyboard.press("e")
    expect(page.locator("[data-argument=item]")).to_have_value("17")
    page.locator("[data-argument=item]").fill("18")
    page.locator("[data-argument=express]").select_option("true")
    page.locator("[data-argument=note]").fill("")
    page.locator("[data-argument=sizes]").fill("[1, 2]")
    page.locator("[data-argument=pieces]").fill("3")
    page.get_by_role("button", name="Approve with these arguments").click()
    expect(page.locator("#head .chip")).to_contain_text("completed")
    expect(page.locator("#msgs")).to_contain_text("('18', 3, True, None, [1, 2])")


@pytest.mark.parametrize(
    ("name", "text", "accepted"),
    [
        ("pieces", "lots", "Enter a whole number, such as 90."),
        ("pieces", "2.5", "Enter a whole number, such as 90."),
        ("sizes", "1, 2", "Enter a JSON list, such as [1, 2]."),
    ],
)
def test_an_invalid_argument_is_reported_below_its_field(
    visit: Visit, service: str, name: str, text: str, accepted: str
) -> None:
    """It says what is accepted, covers nothing, and disappears with the next valid text."""
    page = opened(visit, start(service, "order it"), status="paused")
    page.keyboard.press("e")
    field = page.locator(f"[data-argument={name}]")
    problem = page.locator(f"#dock dd[data-name={name}] .problem")
    field.fill(text)
    page.get_by_role("button", name="Approve with these arguments").click()
    expect(problem).to_have_text(accepted)
    expect(field).to_be_focused()
    expect(field).to_have_attribute("aria-invalid", "true")
    field.fill("[1]" if name == "sizes" else "7")
    expect(problem).to_be_empty()
    page.get_by_role("button", name="Approve with these arguments").click()
    expect(page.locator("#head .chip")).to_contain_text("completed")


def test_an_argument_that_the_server_refuses_is_reported_below_its_field(visit: Visit, service: str) -> None:
    """The form stays as it was written, and can be sent again."""
    page = opened(visit, start(service, "order it"), status="paused")
    page.keyboard.press("e")
    page.locator("[data-argument=sizes]").fill('["large"]')
    page.get_by_role("button", name="Approve with these arguments").click()
    expect(page.locator("#dock dd[data-name=sizes] .problem")).to_contain_text("valid integer")
    expect(page.locator("#dock > .problem")).to_contain_text("order does not accept these arguments")
    expect(page.locator("#toast")).not_to_have_class(re.compile("on"))
    visit.problems.clear()  # the browser reports the refused request
    page.locator("[data-argument=sizes]").fill("[5]")
    page.get_by_role("button", name="Approve with these arguments").click()
    expect(page.locator("#head .chip")).to_contain_text("completed")
    expect(page.locator("#msgs")).to_contain_text("[5])")


def test_a_refusal_carries_its_reason_to_the_model(visit: Visit, service: str) -> None:
    """The model gets the reason as the result of its call."""
    page = opened(visit, start(service, "pay the bill"), status="paused")
    page.keyboard.press("x")
    page.locator("#dock textarea").fill("It was paid in cash.")
    page.get_by_role("button", name="Refuse", exact=True).click()
    expect(page.locator("#toast")).to_have_text("Refused pay")
    expect(page.locator("#head .chip")).to_contain_text("completed")
    expect(page.locator("#msgs")).to_contain_text("It was paid in cash.")
    expect(page.locator("#tree .k-held .badge.bad")).to_have_text("refused")
    assert is_whole(page, "#tree .k-held .badge")


def is_whole(page: Page, selector: str) -> bool:
    """Whether the text of all these elements is within them and their nearest parents that clip it."""
    script = """found => found.every(e => { const box = e.getBoundingClientRect();
        if (e.scrollWidth > e.clientWidth + 1 || e.scrollHeight > e.clientHeight + 1) return false;
        for (let up = e.parentElement; up; up = up.parentElement) {
            const outer = up.getBoundingClientRect();
            if (getComputedStyle(up).overflowX === 'visible') continue;
            if (box.right > outer.right + 1 || box.bottom > outer.bottom + 1) return false;
        }
        return true; })"""
    return bool(page.locator(selector).evaluate_all(script))


@pytest.mark.parametrize("width", [390, 900, 1024, 1280, 1440])
def test_legends_switches_and_answers_are_whole_at_any_width(visit: Visit, service: str, width: int) -> None:
    """Nothing that names a state is cut: the legend gets a line of its own, and long names are cut instead."""
    page = opened(visit, start(service, "book a room"), status="paused")
    page.locator("#dock").get_by_role("button", name="garden").click()
    expect(page.locator("#tree .k-held.is-over .badge")).to_have_text("answered")
    page.set_viewport_size({"width": width, "height": 800})
    page.wait_for_timeout(300)

    try:
        shown = ["#ct1 > *", "#mode button"] + ([] if width < 860 else ["#fit button", "#foldall"])
        assert [one for one in [*shown, "#tree .badge"] if not is_whole(page, one)] == []
    finally:
        page.set_viewport_size({"width": 1440, "height": 900})


def test_the_rail_tells_runs_apart(visit: Visit, service: str) -> None:
    """By the start of their input, by what they wait for, and by their active time, as the header has it."""
    approval = start(service, "pay the bill of the hotel in Rome")
    question = start(service, "book a room with a view")
    page = opened(visit, approval, status="paused")
    expect(page.locator(f"#run-{approval} .goal")).to_have_text("pay the bill of the hotel in Rome")
    expect(page.locator(f"#run-{approval} .badge")).to_have_text("1 approval")
    expect(page.locator(f"#run-{question} .badge")).to_have_text("1 question")
    page.wait_for_timeout(1_500)  # it waits, and its active time stays as it is
    page.locator("#approve").click()
    expect(page.locator("#head .chip")).to_contain_text("completed")
    expect(page.locator(f"#run-{approval} .badge")).to_have_count(0)
    active = page.locator("#duration").inner_text().partition(" + ")[0]
    expect(page.locator(f"#run-{approval}")).to_contain_text(f" · {active}")


def test_the_parts_of_a_request_add_up(visit: Visit, service: str) -> None:
    """The tokens of instructions and messages are those that the bill has in total, also in a first request."""
    page = opened(visit, start(service, "chat about it"), "#request-1")
    expect(page.locator("#rq")).to_contain_text("tokens")
    total = int(re.findall(r"([\d,]+) tokens", page.locator("#rq").inner_text())[0].replace(",", ""))
    sizes = page.locator("#msgs .tk").all_inner_texts()[:2]
    assert sum(int(size.replace("≈", "").replace(",", "")) for size in sizes) == total
    page.locator("#msgs .row", has_text="instructions and tools").click()
    detail = page.locator("#detail")
    expect(detail.locator(".toolsizes")).to_be_visible()
    parts = [*detail.locator(".toolsizes dd").all_inner_texts(), *detail.locator("header").first.all_inner_texts()]
    figures = [int(found) for part in parts for found in re.findall(r"≈ (\d+)", part)]
    whole = int(sizes[0].replace("≈", "").replace(",", ""))
    assert abs(sum(figures) - whole) <= len(figures)


def test_a_question_of_a_tool_is_answered_by_choice_or_text(visit: Visit, service: str) -> None:
    """Choices are buttons, any other question has a text field; a text that is not sent survives new events."""
    page = opened(visit, start(service, "book a room"), status="paused")
    dock = page.locator("#dock")
    expect(dock).to_contain_text("Which room for Anna?")
    expect(page.locator("#tree .k-held")).to_contain_text("answer")
    dock.get_by_role("button", name="garden").click()
    expect(dock).to_contain_text("When do they arrive?")
    expect(page.locator("#toast")).to_have_text("Answered book: garden")
    header, toast = page.locator("#head").bounding_box(), page.locator("#toast").bounding_box()
    assert header is not None
    assert toast is not None
    assert toast["y"] > header["y"] + header["height"]
    expect(dock.locator(".since")).to_have_text(re.compile(r"^\d\.\d s ago$"))  # the time goes on without events
    dock.locator("textarea").fill("Monday")
    page.locator("#head h1").click()
    page.evaluate("import('/static/state.js').then(state => state.emit('view', { keep: true }))")
    expect(dock.locator("textarea")).to_have_value("Monday")
    dock.get_by_role("button", name="Send").click()
    expect(page.locator("#head .chip")).to_contain_text("completed")
    expect(page.locator("#msgs")).to_contain_text("The garden room is booked for Anna, from Monday on.")
    expect(page.locator("#tree .k-held")).to_have_count(2)
    expect(page.locator("#tree .k-held").first).to_contain_text("answered")


def test_an_agent_that_waits_for_input_gets_it(visit: Visit, service: str) -> None:
    """The reply of the agent is the question."""
    page = opened(visit, start(service, "Paint it.", agent="waiting"), status="paused")
    expect(page.locator("#dock")).to_contain_text("Which colour?")
    page.locator("#dock textarea").fill("green")
    page.locator("#dock textarea").press("Control+Enter")
    expect(page.locator("#head .chip")).to_contain_text("completed")
    expect(page.locator("#msgs")).to_contain_text("green")


@pytest.mark.parametrize(("button", "tools"), [("Approve", 1), ("Refuse…", 0)])
def test_a_consent_is_given_or_refused(visit: Visit, service: str, button: str, tools: int) -> None:
    """A toolset asks before it lists its tools; without consent the agent goes on without them."""
    page = opened(visit, start(service, "List them.", agent="connected"), status="paused")
    expect(page.locator("#dock")).to_contain_text("Waiting for consent")
    expect(page.locator("#dock")).to_contain_text("The server files changed its tools. Use them?")
    page.locator("#dock").get_by_text(button, exact=True).click()

    if not tools:
        page.get_by_role("button", name="Refuse", exact=True).click()

    expect(page.locator("#head .chip")).to_contain_text("completed")
    expect(page.locator("#msgs")).to_contain_text(f"I have {tools} tools.")


def test_a_guardrail_asks_about_input_and_calls(visit: Visit, service: str) -> None:
    """Its words are shown, of a call with the arguments; the tree has each decision with its words."""
    page = opened(visit, start(service, "doubtful transfer 500", agent="guarded"), status="paused")
    expect(page.locator("#dock")).to_contain_text("Is this input all right?")
    page.locator("#approve").click()
    expect(page.locator("#dock")).to_contain_text("Is this amount right?")
    expect(page.locator("#dock .args")).to_contain_text("500")
    page.keyboard.press("x")
    page.locator("#dock textarea").fill("Too much.")
    page.get_by_role("button", name="Refuse", exact=True).click()
    expect(page.locator("#head .chip")).to_contain_text("completed")
    rows = page.locator("#tree .k-guard")
    expect(rows.filter(has_text="on_topic")).to_contain_text("input: Is this input all right?")
    expect(rows.filter(has_text="small_amounts")).to_contain_text("transfer: Is this amount right?")
    expect(rows.filter(has_text="no_cards")).to_contain_text("rewritten")
    expect(page.locator("#tree .k-held").last).to_contain_text("refused")


def test_a_reply_that_a_guardrail_asks_about_is_shown_as_text(visit: Visit, service: str) -> None:
    """Whoever approves it has to read it: whole, with control characters as symbols, and without effect."""
    page = opened(visit, start(service, "attack", agent="guarded"), status="paused")
    checked = page.locator("#dock pre.raw")
    expect(page.locator("#dock")).to_contain_text("May this be sent?")
    expect(checked).to_contain_text("<script>window.attacked = 1</script><img src=x onerror=")
    expect(checked).to_contain_text("⟨U+202E⟩esrever⟨U+202C⟩ ␛[31mred␛[0m ␇ zero⟨U+200B⟩width")
    assert visit.figure("[window.attacked, document.querySelectorAll('#dock pre *, img').length]") == [None, 0]
    page.locator("#approve").click()
    expect(page.locator("#head .chip")).to_contain_text("completed")


def test_decisions_of_guardrails_are_in_the_tree(visit: Visit, service: str) -> None:
    """Which guardrail, on what, its outcome, and what it wrote; a refusal is marked."""
    page = opened(visit, start(service, "transfer 50", agent="guarded"))
    rows = page.locator("#tree .k-guard")
    expect(rows.filter(has_text="on_topic")).to_contain_text("passed")
    expect(rows.filter(has_text="small_amountsrewritten")).to_contain_text('transfer: {"to":"Anna Smith","amount":50}')
    page = opened(visit, start(service, "Write a poem.", agent="guarded"), status="stopped")
    expect(page.locator("#tree .k-guard.is-bad")).to_contain_text("Please ask about your order.")
    expect(page.locator("#tree .k-guard.is-bad")).to_contain_text("refused")


def test_a_running_tool_shows_its_newest_progress(visit: Visit, service: str, tmp_path: Path) -> None:
    """Text and fraction stand beside the call while it runs, and leave with its result."""
    reports = tmp_path / "reports"
    reports.write_text("", encoding="utf-8")
    page = opened(visit, start(service, f"copy {tmp_path}"), status="running")
    row = page.locator("#tree .k-tool")
    expect(row).to_contain_text(str(tmp_path)[:20])

    with reports.open("a", encoding="utf-8") as file:
        file.write(json.dumps({"message": "Copying", "progress": 3, "total": 10}) + "\n")

    expect(row).to_contain_text("Copying: 3/10")
    expect(row.locator("[role=progressbar]")).to_have_attribute("aria-valuenow", "30")
    page.reload()  # a new reader gets the newest report
    expect(row).to_contain_text("Copying: 3/10")

    with reports.open("a", encoding="utf-8") as file:
        file.write(json.dumps("<b>nearly</b> done") + "\n")

    expect(row).to_contain_text("<b>nearly</b> done")
    expect(row.locator("[role=progressbar]")).to_have_count(0)
    (tmp_path / "signal").touch()
    expect(page.locator("#head .chip")).to_contain_text("completed")
    expect(row).not_to_contain_text("nearly")


def test_a_request_in_flight_is_drawn_as_waiting(visit: Visit, service: str, tmp_path: Path) -> None:
    """Until the bill is known, its tokens are an estimate: neither cached nor fresh."""
    page = opened(visit, start(service, f"think until {tmp_path / 'idea'}"), status="running")
    expect(page.locator("#ct1")).to_contain_text("waiting, about")
    expect(page.locator("#rq")).to_contain_text("waiting for the reply")
    drawn = "['wait', 'fresh'].map(c => document.querySelector('.c-' + c).getAttribute('d').length > 0)"
    assert visit.figure(drawn) == [True, False]
    (tmp_path / "idea").touch()
    expect(page.locator("#head .chip")).to_contain_text("completed")
    expect(page.locator("#ct1")).to_contain_text("fresh")
    assert visit.figure(drawn) == [False, True]


KILLED_RUN = """
import asyncio, sys
from crew import CrewExecutor
from tests.support.inspector_desk import crew

asyncio.run(CrewExecutor(crew, store=sys.argv[1]).execute(sys.argv[3], run_id=sys.argv[2]))
"""


@pytest.fixture(scope="module")
def doubtful(tmp_path_factory: pytest.TempPathFactory, browser: Browser) -> Iterator[Visit]:
    """A service with three runs whose process was killed while a tool sent a parcel."""
    folder = tmp_path_factory.mktemp("doubtful")
    store = str(folder / "runs.db")

    for name in ("happened", "again", "skip"):
        command = [sys.executable, "-c", KILLED_RUN, store, name, f"send {folder / name}"]
        killed = subprocess.run(command, cwd=ROOT, check=False, capture_output=True, timeout=60)
        assert killed.returncode == -signal.SIGKILL, killed.stderr.decode()

    with crew_process("serve", DESK, "--store", store) as address, visiting(browser, address) as visit:
        yield visit


@pytest.mark.parametrize(
    ("run_id", "button", "answer", "output"),
    [
        ("happened", "It happened…", "result given", "Done: It was parcel 7."),
        ("again", "Run again", "run again", "Done: The parcel is sent."),
        ("skip", "Skip", "skipped", "Done: "),
    ],
)
def test_a_call_in_doubt_is_decided(doubtful: Visit, run_id: str, button: str, answer: str, output: str) -> None:
    """After a crash the run is interrupted; resumed, it asks what became of the call; no key alone repeats it."""
    page = opened(doubtful, run_id, status="interrupted")
    page.locator("#head").get_by_role("button", name="Resume the run").click()
    dock = page.locator("#dock")
    expect(dock).to_contain_text("It may have happened")
    expect(dock).to_contain_text("effect: write")
    expect(page.locator("#tree .k-held")).to_contain_text("in doubt")
    page.keyboard.press("e")
    expect(dock.get_by_text("Run again", exact=True)).to_be_focused()
    dock.get_by_text(button, exact=True).click()

    if run_id == "happened":
        dock.locator("textarea").fill("It was parcel 7.")
        dock.get_by_role("button", name="Use this result").click()

    expect(page.locator("#head .chip")).to_contain_text("completed")
    expect(page.locator("#msgs")).to_contain_text(output)
    expect(page.locator("#tree .k-held")).to_contain_text(answer)


# ------------------------------------------------------------------------------------------ the history view


@pytest.fixture(scope="module")
def long_run(visit: Visit, service: str) -> str:
    run_id = start(service, "find all words")
    visit.go(f"/runs/{run_id}")
    expect(visit.page.locator("#head .chip")).to_contain_text("completed", timeout=30_000)
    return run_id


def test_the_history_view_shows_evicted_messages_with_their_reason(visit: Visit, long_run: str) -> None:
    """A pruned request folds what it left out, says by which policy, and where the prefix broke."""
    page = opened(visit, long_run, "#request-20")
    fold = page.locator("#msgs .fold", has_text="evicted, rolling")
    expect(fold).to_be_visible()
    fold.click()
    evicted = page.locator("#msgs .msg.off").first
    expect(evicted).to_have_attribute(
        "title", re.compile(r"^evicted: rolling, before request \d+: \d+ messages are more")
    )
    page.keyboard.press("[")
    expect(page.locator("#rq")).to_contain_text("broke at")
    expect(page.locator("#msgs .cutline").first).to_contain_text("prefix broke")
    box = page.locator("#grid canvas").bounding_box()
    assert box is not None
    page.mouse.move(box["x"] + box["width"] - 20, box["y"] + box["height"] * 0.3)
    expect(page.locator("#tip")).to_contain_text("evicted, rolling")


def test_a_message_shows_its_life_and_its_full_text(visit: Visit, long_run: str) -> None:
    """Arguments and results are complete; the other half of a call is one click away."""
    page = opened(visit, long_run, "#request-20/message-3")
    detail = page.locator("#detail")
    expect(detail).to_contain_text("evicted")
    expect(detail).to_contain_text("More about it. " * 12)
    detail.get_by_text("call #2").click()
    expect(detail).to_contain_text('"word": "word-0"')
    page.keyboard.press("Escape")
    expect(detail).to_be_hidden()


def test_a_request_shows_the_instructions_of_its_agent(visit: Visit, service: str, long_run: str) -> None:
    """Their text with its estimated tokens, and those of each tool; a long text is collapsed."""
    page = opened(visit, long_run, "#request-3")
    page.locator("#msgs .row", has_text="instructions and tools").click()
    detail = page.locator("#detail")
    expect(detail.locator("pre")).to_have_text("Work.")
    expect(detail).to_contain_text(re.compile(r"≈ \d tokens"))
    expect(detail.locator(".toolsizes")).to_contain_text("look")
    page.wait_for_url(re.compile(r"#request-3/instructions$"))
    run_id = start(service, "List them.", agent="connected", metadata={"customer": "Anna <b>Smith</b>"})
    opened(visit, run_id, status="paused")
    page.locator("#approve").click()
    expect(page.locator("#head .chip")).to_contain_text("completed")
    page = visit.go(f"/runs/{run_id}#request-1/instructions")
    expect(detail).to_contain_text("recorded with the run")
    expect(detail.locator("pre")).to_contain_text("Today you work for Anna <b>Smith</b>.")
    shown = len(detail.locator("pre").inner_text())
    detail.get_by_text("Show all").click()
    expect(detail.get_by_text("Show all")).to_have_count(0)
    assert len(detail.locator("pre").inner_text()) > shown
    page.keyboard.press("Escape")
    expect(detail).to_be_hidden()


def test_what_if_shows_the_cost_of_other_policies(visit: Visit, long_run: str) -> None:
    """Each policy is replayed; differences compare replays, and the page says so."""
    page = opened(visit, long_run)
    page.keyboard.press("w")
    dialog = page.locator("#whatif")
    expect(dialog.locator(".thumb").nth(7).locator("b").nth(1)).to_have_text(re.compile(r"^\$\d"), timeout=60_000)
    costs = dialog.locator("tr").filter(has_text="unbounded").locator("td")
    expect(costs.nth(8)).to_have_text(re.compile(r"^\$0\.\d+$"))
    expect(dialog).to_contain_text("Differences compare replays")
    expect(dialog.locator("tr.base")).to_contain_text("as run")
    page.keyboard.press("Escape")
    expect(dialog).to_be_hidden()


def test_a_search_lists_the_messages_that_contain_all_words(visit: Visit, long_run: str) -> None:
    """The whole transcript is searched, not only what was sent or is in view."""
    page = opened(visit, long_run)
    page.keyboard.press("s")
    page.keyboard.type("word-7 found")
    expect(page.locator("#hits")).to_have_text("1")
    expect(page.locator("#msgs .msg.found")).to_have_count(1)
    page.keyboard.press("Escape")
    expect(page.locator("#hits")).to_have_text("")


def test_a_conversation_is_one_matrix_with_a_separator_for_each_turn(visit: Visit, service: str) -> None:
    """All turns share one transcript and one x axis."""
    for number in range(3):
        run_id = start(service, f"chat {number}", conversation="customer-42")
        opened(visit, run_id)

    page = visit.go("/conversations/customer-42")
    expect(page.locator("#head")).to_contain_text("3 turns")
    expect(page.locator("#rqh")).to_contain_text("of 3")
    expect(page.locator("#marks .turn")).to_have_count(2)
    expect(page.locator("#tree .k-turn")).to_have_count(3)


# ------------------------------------------------------------------------------------------ keyboard and links


def test_a_link_opens_the_request_and_message_that_it_names(visit: Visit, long_run: str) -> None:
    """`/runs/ID#request-12` alone works; the address follows the selection."""
    page = opened(visit, long_run, "#request-12")
    expect(page.locator("#rqh")).to_contain_text("Request 12 of 25")
    page.keyboard.press("l")
    expect(page.locator("#rqh")).to_contain_text("Request 13 of 25")
    page.wait_for_url(re.compile(r"#request-13$"))
    page.evaluate("location.hash = '#request-5/message-4'")
    expect(page.locator("#rqh")).to_contain_text("Request 5 of 25")
    expect(page.locator("#detail")).to_contain_text("#4 look")


def test_everything_can_be_reached_by_keyboard(visit: Visit, long_run: str) -> None:
    """Panes, rows, requests, folds, themes and help have keys; the help lists them."""
    page = opened(visit, long_run, "#request-10")
    page.keyboard.press("3")
    expect(page.locator("#msgs")).to_be_focused()
    page.keyboard.press("j")
    page.keyboard.press("j")
    selected = page.locator("#msgs [aria-selected=true]")
    expect(selected).to_have_count(1)
    before = selected.inner_text()
    page.keyboard.press("k")
    assert page.locator("#msgs [aria-selected=true]").inner_text() != before
    page.keyboard.press("f")
    expect(page.locator("#mode [aria-pressed=true]")).to_have_text("transcript")
    page.keyboard.press("f")
    page.keyboard.press("Home")
    expect(page.locator("#rqh")).to_contain_text("Request 1 of")
    page.keyboard.press("End")
    expect(page.locator("#rqh")).to_contain_text("Request 25 of")
    page.keyboard.press("1")
    page.keyboard.press("z")
    expect(page.locator("#foldall")).to_have_text("Expand")
    page.keyboard.press("z")
    theme = visit.figure("getComputedStyle(document.body).backgroundColor")
    page.keyboard.press("t")
    assert visit.figure("getComputedStyle(document.body).backgroundColor") != theme
    page.keyboard.press("t")
    page.keyboard.press("?")
    expect(page.locator("#help")).to_contain_text("previous, next prefix break")
    page.keyboard.press("Escape")


# ------------------------------------------------------------------------------------------ hostile output


def test_hostile_output_stays_text(visit: Visit, service: str) -> None:
    """Markup, scripts and links of models and tools are shown as text, and control characters as symbols."""
    page = opened(visit, start(service, "attack"), "#request-2")

    for number in (2, 3, 4):
        page.evaluate(f"location.hash = '#request-2/message-{number}'")
        expect(page.locator("#detail")).to_contain_text(f"#{number}")
        expect(page.locator("#detail")).to_contain_text("<script>window.attacked = 1</script>")

    expect(page.locator("#detail pre")).to_contain_text("⟨U+202E⟩esrever⟨U+202C⟩ ␛[31mred␛[0m ␇ zero⟨U+200B⟩width")
    page.locator("#tree .k-tool").first.hover()
    found = visit.figure(
        "[window.attacked, document.querySelectorAll('img, iframe, object, embed').length, "
        "[...document.links].filter(a => !a.href.startsWith(location.origin)).length, "
        "document.querySelectorAll('script:not([src]), style').length]"
    )
    assert found == [None, 0, 0, 0]
    shown = visit.figure(
        "document.body.innerText + [...document.querySelectorAll('[title]')].map(e => e.title).join('')"
    )
    assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b\u202a-\u202e]", shown)


# ------------------------------------------------------------------------------------------ large runs


@tool(effect="read")
def look(word: str) -> str:
    """Look a word up."""
    return f"{word}: found. " + "More about it. " * 20


def in_thread(work: Coroutine[Any, Any, Any]) -> Any:
    """Run a coroutine apart from the event loop of Playwright, which runs in this thread."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(asyncio.run, work).result()


@pytest.fixture(scope="module")
def large_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with more than 10,000 events, and a small one."""
    path = tmp_path_factory.mktemp("large") / "runs.db"

    async def fill() -> int:
        store = SQLiteStore(path)

        for run_id, requests in (("small", SMALL_REQUESTS), ("large", LARGE_REQUESTS)):
            lines = [call("look", word=f"word{n}") for n in range(requests)]
            agent = Agent("reader", model=ScriptedProvider(*lines, "Done."), tools=[look])
            executor = CrewExecutor(agent, store=store, limits=Limits(rounds=None))
            await executor.execute("Find all words.", run_id=run_id)

        count = len(await store.events("large", None, 100_000))
        store.close()
        return count

    assert in_thread(fill()) > 10_000
    return path


def response_times(page: Page, scroll: int) -> tuple[list[float], list[float]]:
    """How many milliseconds the page takes for each of 20 keys and 20 scrolls by so many pixels, sorted."""
    key = """key => new Promise(done => { const began = performance.now();
        document.body.dispatchEvent(new KeyboardEvent('keydown', { key, bubbles: true }));
        requestAnimationFrame(() => requestAnimationFrame(() => done(performance.now() - began))); })"""
    steps = sorted(page.evaluate(key, "l") for _ in range(20))
    scrolls = sorted(
        page.evaluate(
            """y => new Promise(done => { const began = performance.now();
            document.querySelector('#tree').scrollTop = y;
            requestAnimationFrame(() => requestAnimationFrame(() => done(performance.now() - began))); })""",
            position * scroll,
        )
        for position in range(20)
    )
    return steps, scrolls


def test_ten_thousand_events_stay_responsive(browser: Browser, large_store: Path, capsys: Any) -> None:
    """The document has few rows, whatever the run's size, and a key takes about as long as in a small run."""
    with crew_process("inspect", str(large_store)) as address, visiting(browser, address) as visit:
        page = opened(visit, "small", "#request-1")
        expect(page.locator("#rqh")).to_contain_text(f"Request 1 of {SMALL_REQUESTS + 1}")
        small_steps, small_scrolls = response_times(page, 100)
        page = opened(visit, "large", "#request-1000", seconds=60)
        expect(page.locator("#rqh")).to_contain_text("Request 1,000 of 2,001", timeout=60_000)
        opening = visit.figure("performance.now()")
        rows = visit.figure("document.querySelectorAll('.row').length")
        steps, scrolls = response_times(page, 4_000)
        page.keyboard.press("f")
        page.evaluate("document.querySelector('#msgs').scrollTop = 40000")
        page.wait_for_timeout(100)
        most = max(rows, visit.figure("document.querySelectorAll('.row').length"))
        elements = visit.figure("document.querySelectorAll('*').length")

    figures = (
        f"loaded after {opening / 1000:.1f} s, {most} rows, {elements} elements; next request {steps[10]:.0f} ms "
        f"(most {steps[-1]:.0f}), scroll {scrolls[10]:.0f} ms (most {scrolls[-1]:.0f}); "
        f"in a small run {small_steps[10]:.0f} and {small_scrolls[10]:.0f} ms"
    )

    with capsys.disabled():
        sys.stderr.write(f"\n10,000 events: {figures}\n")

    assert most < 500
    assert elements < 3_000
    assert opening < 60_000
    assert steps[10] < min(3 * small_steps[10] + 100, 2_000)
    assert scrolls[10] < min(3 * small_scrolls[10] + 100, 2_000)


# ------------------------------------------------------------------------------------------ read-only


def test_a_stored_file_is_shown_read_only(browser: Browser, tmp_path: Path) -> None:
    """`crew inspect` shows runs of a file; it offers no answer and no cancelling, and its API refuses them."""
    path = tmp_path / "runs.db"

    async def pause() -> None:
        store = SQLiteStore(path)
        agent = Agent("clerk", model=ScriptedProvider(call("pay", amount=3)), tools=[pay])
        await CrewExecutor(agent, store=store).execute("Pay.", run_id="paused")
        await CrewExecutor(desk_crew, store=store).execute("book a room", run_id="asks")
        store.close()

    in_thread(pause())

    with crew_process("inspect", str(path)) as address, visiting(browser, address) as visit:
        page = opened(visit, "paused", status="paused")
        expect(page.locator("#connection")).to_contain_text("read-only")
        expect(page.locator("#dock")).to_contain_text("Read-only")
        assert page.locator("#dock .btn.prime, #head .top .btn:has-text('Cancel')").count() == 0
        page = opened(visit, "asks", status="paused")
        expect(page.locator("#dock .choices li")).to_have_text(["garden", "street"])
        assert page.locator("#dock .acts button").count() == 0
        refused = page.evaluate(
            "fetch('/runs/paused/answers', {method: 'POST', body: '{\"answers\": {}}'}).then(r => r.status)"
        )
        assert 400 <= refused < 500
        visit.problems.clear()  # the browser reports the refused request


def test_a_stored_file_shows_instructions_of_a_crew_that_is_named(browser: Browser, tmp_path: Path) -> None:
    """Constant instructions are not in the file; `--crew` says where they are, and the page stays read-only."""
    path = tmp_path / "runs.db"

    async def talk() -> None:
        store = SQLiteStore(path)
        await CrewExecutor(desk_crew, store=store).execute("chat about it", run_id="talk")
        store.close()

    in_thread(talk())

    with crew_process("inspect", str(path)) as address, visiting(browser, address) as visit:
        visit.go("/runs/talk#request-1/instructions")
        expect(visit.page.locator("#detail")).to_contain_text("crew inspect FILE --crew CREW.py")

    with crew_process("inspect", str(path), "--crew", DESK) as address, visiting(browser, address) as visit:
        visit.go("/runs/talk#request-1/instructions")
        expect(visit.page.locator("#detail pre")).to_have_text("Work.")
        expect(visit.page.locator("#connection")).to_contain_text("read-only")


def test_a_database_is_shown_read_only(browser: Browser) -> None:
    """`crew inspect postgresql://…` shows the same page; the URL, which may hold a password, is not printed."""
    with ExitStack() as stack:
        try:
            server = stack.enter_context(running_postgres())
        except PostgresUnavailable as error:
            server_missing("postgres", str(error))

        async def pause() -> None:
            store = PostgresStore.from_url(server.url())
            agent = Agent("clerk", model=ScriptedProvider(call("pay", amount=3)), tools=[pay])
            await CrewExecutor(agent, store=store).execute("Pay.", run_id="paused")
            store.close()

        in_thread(pause())

        with crew_process("inspect", server.url()) as address, visiting(browser, address) as visit:
            page = opened(visit, "paused", status="paused")
            expect(page.locator("#dock")).to_contain_text("Read-only")


@tool(effect="write", approval="always")
def pay(amount: int) -> str:
    """Pay a bill."""
    return f"{amount} paid."


def test_a_lost_connection_is_shown_and_found_again(browser: Browser, tmp_path: Path) -> None:
    """Without the server the page keeps what it has and says so; when the server is back, it goes on by itself."""
    options = ("serve", DESK, "--store", str(tmp_path / "runs.db"), "--insecure-no-token")

    with ExitStack() as stack:
        with crew_process(*options) as address:
            visit = stack.enter_context(visiting(browser, address))
            run_id = start(address, "chat about it")
            page = opened(visit, run_id)

        expect(page.locator("#banner")).to_contain_text("No connection")
        expect(page.locator("#msgs")).to_contain_text("chat about it")

        with crew_process(*options, port=int(address.rstrip("/").rpartition(":")[2])):
            expect(page.locator("#banner")).to_be_hidden(timeout=40_000)
            second = start(address, "chat again")
            expect(page.locator(f"#run-{second}")).to_be_visible()
            visit.page.goto("about:blank")

        visit.problems.clear()  # the browser reports the requests that found no server


# ------------------------------------------------------------------------------------------ pictures


@pytest.fixture(scope="module")
def pictured(tmp_path_factory: pytest.TempPathFactory, browser: Browser) -> Iterator[Visit]:
    """A visit to `crew serve` with the runs of the documentation's pictures, most of them of crews that it lacks."""
    path = tmp_path_factory.mktemp("pictures") / "runs.db"
    in_thread(fill(path))

    with (
        crew_process("serve", "examples/incident.py", "--store", str(path)) as address,
        visiting(browser, address) as visit,
    ):
        yield visit


def test_runs_of_other_crews_are_only_shown(pictured: Visit) -> None:
    """What the service can't do is not offered: a failed run of a crew that it does not have can't be resumed here."""
    page = opened(pictured, "04de77a1", status="failed")
    expect(page.locator("#dock")).to_contain_text("529 overloaded_error")
    expect(page.get_by_role("button", name="Resume")).to_have_count(0)
    page = opened(pictured, "7f3a91c2", status="paused")
    expect(page.locator("#dock .btn.prime")).to_be_visible()


COLOURS = (
    "(() => { const c = document.querySelector('#grid canvas'), copy = document.createElement('canvas');"
    "copy.width = c.width; copy.height = c.height; if (!c.width || !c.height) return 0;"
    "const paper = copy.getContext('2d', { willReadFrequently: true }); paper.drawImage(c, 0, 0);"
    "const d = paper.getImageData(0, 0, c.width, c.height).data, seen = new Set();"
    "for (let i = 0; i < d.length; i += 4) if (d[i + 3]) seen.add(d[i] + ' ' + d[i + 1] + ' ' + d[i + 2]);"
    "return seen.size; })()"
)
"""How many colours the matrix has, read from a copy: the browser warns if a visible canvas is read repeatedly."""
PICTURES = {
    "inspector-light": ("/runs/7f3a91c2#request-22/message-23", "light", {"width": 1440, "height": 900}),
    "inspector-dark": ("/runs/c41d08e7#request-104/message-187", "dark", {"width": 1440, "height": 900}),
    "inspector-phone": ("/runs/7f3a91c2#request-22", "light", {"width": 390, "height": 844}),
    "inspector-what-if": ("/runs/7f3a91c2#request-22", "light", {"width": 1440, "height": 900}),
    "inspector-conversation": ("/conversations/customer-88123", "light", {"width": 1440, "height": 900}),
}


def test_the_pictures_of_the_documentation_can_be_taken(pictured: Visit, tmp_path: Path) -> None:
    """Light, dark, phone, what-if and a conversation; CREW_PICTURES=docs/images keeps them there."""
    folder = Path(os.environ.get("CREW_PICTURES") or tmp_path)

    for name, (path, scheme, size) in PICTURES.items():
        pictured.page.set_viewport_size(size)
        pictured.page.emulate_media(color_scheme=scheme, reduced_motion="reduce")
        pictured.page.goto("about:blank")
        page = pictured.go(path)
        expect(page.locator("#head h1")).to_be_visible()

        if name == "inspector-what-if":
            page.keyboard.press("w")
            last = page.locator("#whatif .thumb").nth(7).locator("b").nth(1)
            expect(last).to_have_text(re.compile(r"^\$\d"), timeout=90_000)

        page.wait_for_timeout(600)  # pictures of the documentation show the end of every animation

        for _ in range(300):  # the page forbids eval, which wait_for_function uses
            if pictured.figure(COLOURS) > 2:
                break

            page.wait_for_timeout(100)

        picture = page.screenshot(path=folder / f"{name}.png", animations="disabled")
        assert 20_000 < len(picture) < 400_000, f"{name}: {len(picture)} bytes"
        assert pictured.figure(COLOURS) > 2, f"{name}: the matrix is empty"


def type_checker() -> Path:
    """The TypeScript compiler, which is installed once and kept."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    folder = cache / "crew" / "typescript-5"
    compiler, problem = folder / "node_modules" / ".bin" / "tsc", ""
    npm = shutil.which("npm")

    if npm is None:
        server_missing("node", "no npm in the path")

    for _ in range(2):
        if compiler.exists():
            return compiler

        folder.mkdir(parents=True, exist_ok=True)
        install = [npm, "install", "--silent", "--no-audit", "--no-fund", "--prefix", str(folder), "typescript@5"]

        try:
            done = subprocess.run(install, check=False, capture_output=True, text=True, timeout=180)
            problem = done.stderr.strip()[-300:]
        except subprocess.TimeoutExpired:
            problem = "no answer within 180 s"

    if not compiler.exists():
        server_missing("node", f"npm can't install typescript: {problem}")

    return compiler


def test_the_scripts_of_the_page_pass_the_type_checker() -> None:
    """JSDoc types, checked by TypeScript; needs Node and its packages."""
    options = ["--checkJs", "--noEmit", "--strict", "--noImplicitAny", "false", "--target", "es2022"]
    options += ["--module", "es2022", "--moduleResolution", "bundler", "--lib", "es2023,dom,dom.iterable"]
    scripts = sorted(map(str, (Path(__file__).parents[2] / "crew/server/static").glob("*.js")))
    checked = subprocess.run(
        [str(type_checker()), *options, *scripts],
        check=False,
        capture_output=True,
        text=True,
        timeout=180,
    )
    assert (checked.returncode, checked.stdout) == (0, "")
