"""The context for rendering an answer, and token counts of JSON values."""

import json
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from tests.wire.billing import Usage
from tests.wire.model import Json, Model, Protocol
from tests.wire.signing import Signer
from tests.wire.tokens import count, count_dense

Event = tuple[str | None, Json]
IMAGE = 765


@dataclass(slots=True, kw_only=True)
class RequestContext:
    """What rendering an answer needs to know about its request."""

    body: Json
    protocol: Protocol
    model: Model
    turn: str
    signer: Signer
    created: int
    piece: int = 24
    usage: Usage = field(default_factory=Usage)

    @property
    def name(self) -> str:
        """The model's name in the request."""
        return str(self.body["model"])

    def pieces(self, text: str) -> Iterator[str]:
        """Split a text into stream deltas."""
        for start in range(0, len(text), self.piece):
            yield text[start : start + self.piece]


# One encoder for all: `json.dumps` with options builds a new one each time, which costs more than the encoding.
_encode = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode


def dump(value: Any) -> str:
    """Encode a value; keys keep their order, because another order is another prompt."""
    return _encode(value)


# A model does not read these as text: ids, signatures and image data.
_SILENT = frozenset(
    {"signature", "data", "encrypted_content", "id", "tool_call_id", "tool_use_id", "call_id", "cache_control"}
)
_IMAGES = frozenset({"image_url", "image", "input_image"})


def weigh(value: Any, counter: Callable[[str], int] = count) -> int:
    """Count the tokens of a message or block: its texts, and a fixed number for an image."""
    if isinstance(value, str):
        return counter(value)
    if isinstance(value, list):
        return sum(weigh(inner, counter) for inner in value)
    if not isinstance(value, dict):
        return 0 if value is None else 1
    if value.get("type") in _IMAGES:
        return IMAGE
    read = (inner for key, inner in value.items() if key not in _SILENT and key not in ("type", "role"))
    return sum(weigh(inner, counter) for inner in read)


@lru_cache(maxsize=65_536)
def _weigh_encoded(dumped: str, counter: Callable[[str], int]) -> int:
    return weigh(json.loads(dumped), counter)


def weigh_text(dumped: str, model: Model) -> int:
    """Count the tokens of an encoded value for this model; cached, since every request repeats the history."""
    return scaled(_weigh_encoded(dumped, count_dense if model.dense else count), model)


def scaled(tokens: int, model: Model) -> int:
    """Convert tokens of o200k to tokens of this model."""
    return tokens if model.factor == 1.0 else math.ceil(tokens * model.factor)


Render = Callable[[RequestContext, Any], Json]
