"""Ids and signatures that the server can verify without storing what it wrote.

A turn is 22 hex digits. Ids end in two digits for the place in the turn; an item of the Responses protocol has one more
digit before them: 1 if the turn began with reasoning.
"""

import base64
import hashlib
import hmac
import json
import re
from typing import NamedTuple

_ITEM = re.compile(r"(?:rs|msg|fc)_([0-9a-f]{22})([01])([0-9a-f]{2})")
_CALL = re.compile(r"call_([0-9a-f]{22})([0-9a-f]{2})")


class ItemId(NamedTuple):
    """The parts of an item id that this server made."""

    turn: str
    reasoned: bool
    place: int


def item_id(prefix: str, turn: str, place: int, *, reasoned: bool) -> str:
    """Make the id of an output item: `rs_…`, `msg_…`, `fc_…`."""
    return f"{prefix}_{turn}{int(reasoned)}{place:02x}"


def read_item_id(text: object) -> ItemId | None:
    """Parse an item id; None if this server did not make it."""
    found = _ITEM.fullmatch(text) if isinstance(text, str) else None
    return ItemId(found[1], found[2] == "1", int(found[3], 16)) if found else None


def turn_of_call(call_id: object) -> str | None:
    """Return the turn of a call id; None if this server did not make it."""
    found = _CALL.fullmatch(call_id) if isinstance(call_id, str) else None
    return found[1] if found else None


class Signed(NamedTuple):
    """What the signature of a thinking block covers besides its text."""

    turn: str
    place: int
    total: int


class Signer:
    """Signs and verifies with one secret; servers with the same secret are the same service."""

    def __init__(self, secret: bytes = b"wire") -> None:
        self._secret = secret

    def new_turn(self, number: int) -> str:
        """Return the turn id of the n-th request."""
        return hashlib.sha256(self._secret + b"turn%d" % number).hexdigest()[:22]

    def sign(self, model: str, content: str, signed: Signed) -> str:
        """Sign the model, the text and the position among the turn's thinking blocks."""
        head = json.dumps(list(signed)).encode()
        return base64.b64encode(head + b"|" + self._digest(head, model, content)).decode()

    def verify(self, model: str, content: str, signature: str) -> Signed | None:
        """Return what the signature covers; None if model or text differ from what was signed."""
        try:
            head, _, digest = base64.b64decode(signature, validate=True).partition(b"|")
            signed = Signed(*json.loads(head))
        except (ValueError, TypeError):
            return None
        return signed if hmac.compare_digest(digest, self._digest(head, model, content)) else None

    def _digest(self, head: bytes, model: str, content: str) -> bytes:
        text = b"\0".join([head, model.encode(), content.encode(errors="surrogatepass")])
        return hmac.new(self._secret, text, "sha256").hexdigest().encode()
