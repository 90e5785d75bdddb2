"""Everything that the command prints goes through here: no text of a model, a tool or a file controls the terminal."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from typing import TextIO

from crew.control_characters import escape_controls


class EscapedStream:
    """A text stream that escapes control characters and direction marks; tabs and line ends stay."""

    def __init__(self, stream: TextIO) -> None:
        self.stream = stream
        self._held = ""
        """A carriage return at the end of a piece: the next piece shows whether it is part of a line end."""

    def write(self, text: str) -> int:
        whole = self._held + text
        self._held = "\r" if whole.endswith("\r") else ""
        self.stream.write(escape_controls(whole.removesuffix("\r") if self._held else whole))
        return len(text)

    def flush(self) -> None:
        self.stream.flush()

    def isatty(self) -> bool:
        return False  # log lines are without colours: their codes would be escaped

    def fileno(self) -> int:
        return self.stream.fileno()

    @property
    def encoding(self) -> str:
        return self.stream.encoding

    @property
    def errors(self) -> str | None:
        return self.stream.errors


@contextlib.contextmanager
def escaped_output() -> Iterator[None]:
    """Escape what is printed to stdout and stderr."""
    with (
        contextlib.redirect_stdout(EscapedStream(sys.stdout)),
        contextlib.redirect_stderr(EscapedStream(sys.stderr)),
    ):
        yield


def stdout_is_terminal() -> bool:
    """Whether a person reads what is printed."""
    out = sys.stdout
    return (out.stream if isinstance(out, EscapedStream) else out).isatty()


@contextlib.contextmanager
def terminal_streams() -> Iterator[None]:
    """The streams as they were: `input` edits lines only if they are the terminal's."""
    out, err = sys.stdout, sys.stderr

    with (
        contextlib.redirect_stdout(out.stream if isinstance(out, EscapedStream) else out),
        contextlib.redirect_stderr(err.stream if isinstance(err, EscapedStream) else err),
    ):
        yield
