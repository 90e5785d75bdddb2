"""When a model can't take a request: the view is cut further, or the backup takes over. Transitions like any other."""

from __future__ import annotations

from dataclasses import replace

from crew.execution.advance.asking import ask
from crew.execution.advance.draft import Draft
from crew.execution.advance.looking import TARGET, Look
from crew.execution.gauges import gauge_of
from crew.history import Calibration, View
from crew.runs import AskModel
from crew.runs.events import FellBack, TooLong

ATTEMPTS = 3


def on_too_long(draft: Draft, event: TooLong) -> None:
    """The window is learned and the view cut: by half, by half again, then down to what must be shown."""
    state = draft.state
    again = state.next.again if isinstance(state.next, AskModel) else ""
    _learn(draft, event)
    seen = Look(draft)
    attempt = seen.view.too_long + 1
    seen.view = replace(seen.view, too_long=attempt)
    draft.set(views={**draft.state.views, seen.name: seen.view})
    target = TARGET * min(seen.tokens, seen.gauge.window) if attempt < ATTEMPTS else 0.0

    if attempt > ATTEMPTS or not _smaller(seen, target, event):
        raise seen.overflow(
            f"{event.model} refuses even what {seen.name!r} must see, about {seen.tokens} tokens, as too long: "
            f"{event.reason}",
            seen.gauge.window,
        )

    ask(draft, again)


def _smaller(seen: Look, target: float, event: TooLong) -> bool:
    reason = f"the model refused about {event.tokens} tokens as too long"

    if seen.cut("too_long", reason, target=target, ceiling=target):
        return True

    # Estimates that are far too low would let everything fit: then at least something leaves, and strictly.
    oldest = seen.tokens - 1
    return seen.cut("too_long", reason, target=oldest, ceiling=oldest)


def _learn(draft: Draft, event: TooLong) -> None:
    """What the error said of the window holds for every agent with this model; without a number, what was refused."""
    state = draft.state
    maximum = event.maximum or event.tokens
    gauges = {name: tuple(g.learned(event.model, maximum) for g in ranks) for name, ranks in state.gauges.items()}
    draft.set(gauges=gauges)

    room = maximum - gauge_of(draft.plan, draft.state, state.agent).reserve

    if event.tokens < room:
        # More was sent than the window holds, though less was estimated: this model counts higher than thought.
        known = state.calibrations.get(event.model, Calibration())
        factor = min(4.0, room / max(1, event.tokens))
        scale = known.scale if known.bills else known.scale * factor
        raised = replace(known, ratio=min(4.0, known.ratio * factor), scale=scale)
        draft.set(calibrations={**state.calibrations, event.model: raised})


def on_fallback(draft: Draft, event: FellBack) -> None:
    """The agent's backup takes over for the rest of the run, with a view for its own window."""
    state = draft.state
    again = state.next.again if isinstance(state.next, AskModel) else ""
    view = state.views.get(state.agent, View())
    view = replace(view, model="backup", too_long=0, moved="fallback")
    draft.set(views={**state.views, state.agent: view})
    ask(draft, again)
