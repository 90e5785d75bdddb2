"""A local server that implements three LLM APIs and rejects what the real services reject; see README.md."""

from tests.wire.billing import Account, Prices, Usage
from tests.wire.cache import Cache
from tests.wire.faults import BAD_JSON, KINDS, Fault, at, chance, date_in, every_kind, first_of, never
from tests.wire.model import Era, Model, Protocol
from tests.wire.process import WireProcess, wire_process
from tests.wire.replies import Reply
from tests.wire.responders import Responder, always, by_agent, echo, instructions, newest, scripted, tool_loop
from tests.wire.responders import tools as tool_names
from tests.wire.server import WireServer
from tests.wire.service import Received
from tests.wire.tokens import count

__all__ = [
    "BAD_JSON",
    "KINDS",
    "Account",
    "Responder",
    "Cache",
    "Era",
    "Fault",
    "Model",
    "Prices",
    "Protocol",
    "Received",
    "Reply",
    "Usage",
    "WireProcess",
    "WireServer",
    "always",
    "at",
    "by_agent",
    "chance",
    "count",
    "date_in",
    "echo",
    "every_kind",
    "first_of",
    "instructions",
    "never",
    "newest",
    "scripted",
    "tool_loop",
    "tool_names",
    "wire_process",
]
