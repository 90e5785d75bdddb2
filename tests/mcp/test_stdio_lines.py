"""The lines of a server process: any chunks give the same lines, and a line that is too long keeps its request id."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from crew.mcp.stdio_process import Line, parse_line


def read(chunks: list[bytes], limit: int) -> list[Line]:
    """The lines of these chunks, as `ServerProcess.lines` makes them."""
    lines, line = [], Line()

    for chunk in chunks:
        first, *others = chunk.split(b"\n")
        line.extend(first, limit)

        for part in others:
            lines.append(line)
            line = Line()
            line.extend(part, limit)

    return lines


@given(st.lists(st.binary(max_size=30), max_size=20), st.integers(1, 200))
def test_chunks_do_not_matter(chunks: list[bytes], limit: int) -> None:
    """A line that fits is complete; of a longer one at most two ends are kept."""
    whole = b"".join(chunks).split(b"\n")[:-1]
    lines = read(chunks, limit)
    assert len(lines) == len(whole)

    for line, expected in zip(lines, whole, strict=True):
        if len(expected) <= limit:
            assert (bytes(line.data), line.cut) == (expected, 0)
        else:
            assert line.cut == limit
            assert len(line.data) + len(line.tail) <= 600
            assert expected.startswith(bytes(line.data))
            assert expected.endswith(line.tail)


@pytest.mark.parametrize("id_first", [True, False])
@pytest.mark.parametrize("id", [7, "seven"])
@pytest.mark.parametrize("piece", [10, 1_000, 65_536])
def test_a_huge_answer_is_an_error_of_its_request(id: int | str, id_first: bool, piece: int) -> None:
    """The id stands at the beginning or at the end; ids inside the result do not count."""
    result = {"content": [{"type": "text", "text": "x" * 5_000, "id": 99}]}
    parts = (
        {"jsonrpc": "2.0", "id": id, "result": result} if id_first else {"result": result, "jsonrpc": "2.0", "id": id}
    )
    data = json.dumps(parts).encode() + b"\n"
    [line] = read([data[at : at + piece] for at in range(0, len(data), piece)], 1_000)
    message = parse_line(line).message
    assert message.id == id
    assert message.error.message == "the answer of the server is larger than 1,000 bytes"


def test_an_answer_that_cannot_be_read_is_an_error_of_its_request() -> None:
    """Without an id, the line is noise."""
    assert parse_line(Line(bytearray(b'{"jsonrpc": "2.0", "id": 3, "result": {]}'))).message.id == 3
    assert isinstance(parse_line(Line(bytearray(b"Server is running."))), ValueError)
