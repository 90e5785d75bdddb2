"""The bodies and queries that the native API accepts."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, JsonValue, StringConstraints

from crew.run_ids import RUN_ID_PATTERN
from crew.runs.interfaces import Cursor
from crew.runs.parameters import RequestParameters
from crew.runs.state import StopReason

RunId = Annotated[str, StringConstraints(pattern=f"^{RUN_ID_PATTERN}$")]
CURSOR_PATTERN = r"^[0-9]{1,15}\.[0-9]{1,15}$"
CursorText = Annotated[str, StringConstraints(pattern=CURSOR_PATTERN)]
RunStatus = Literal["running", "interrupted", StopReason]


class StartRun(BaseModel):
    """The body of `POST /runs`."""

    model_config = ConfigDict(extra="forbid")

    input: str = Field(description="The task for the crew.")
    crew: str | None = Field(None, description="The crew; may be omitted if the service has one.")
    agent: str | None = Field(None, description="The agent that starts; by default the crew's entry.")
    conversation: RunId | None = Field(None, description="The stored conversation that this run continues or begins.")
    on_busy: Literal["error", "wait"] = Field("error", description="If another turn of the conversation is under way.")
    on_paused: Literal["error", "cancel"] = Field("error", description="If its last turn waits for an answer.")
    parameters: RequestParameters | None = Field(None, description="Compression and limits of each request.")
    metadata: dict[str, JsonValue] = Field(
        default_factory=dict, description="JSON values that are stored with the run."
    )


class StreamChoice(BaseModel):
    """The query of requests whose answer may be a stream."""

    model_config = ConfigDict(extra="forbid")

    stream: bool = Field(default=False, description="Answer with server-sent events, like `Accept: text/event-stream`.")


class Answers(BaseModel):
    """The body of `POST /runs/{run_id}/answers`."""

    model_config = ConfigDict(extra="forbid")

    answers: dict[str, JsonValue] = Field(default_factory=dict, description="The answer to each pause, by its id.")


class ListRuns(BaseModel):
    """The query of `GET /runs`."""

    model_config = ConfigDict(extra="forbid")

    crew: str | None = None
    status: RunStatus | None = None
    conversation: RunId | None = None
    since: float | None = Field(None, description="Only runs whose `updated` is at or after this time, in seconds.")
    limit: int = Field(50, ge=1, le=500)
    cursor: str | None = Field(None, max_length=500, description="The `cursor` of the page before.")


class ListConversations(BaseModel):
    """The query of `GET /conversations`."""

    model_config = ConfigDict(extra="forbid")

    crew: str | None = None
    limit: int = Field(50, ge=1, le=500, description="The number of runs whose conversations are listed.")
    cursor: str | None = Field(None, max_length=500, description="The `cursor` of the page before.")


class ReadEvents(BaseModel):
    """The query of `GET /runs/{run_id}/events`."""

    model_config = ConfigDict(extra="forbid")

    after: CursorText | None = Field(None, description="The cursor of the last event; `Last-Event-ID` goes first.")
    follow: bool = Field(default=False, description="Stay connected while the run is paused, failed or interrupted.")


def parse_cursor(text: str | None) -> Cursor | None:
    """The cursor of a query or header; None for the start of the log."""
    return None if text is None else Cursor.parse(text)
