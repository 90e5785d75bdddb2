"""Stores of runs, and the JSON encoding of states and events."""

from crew.store.codec import decode_events, decode_state, encode_events, encode_state
from crew.store.memory import MemoryStore
from crew.store.sqlite import SQLiteStore

__all__ = [
    "MemoryStore",
    "SQLiteStore",
    "decode_events",
    "decode_state",
    "encode_events",
    "encode_state",
]
