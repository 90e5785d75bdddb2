"""What survives: stores of runs, and the JSON that states and events become."""

from crew.store.codec import decode_events, decode_state, encode_events, encode_state
from crew.store.memory import MemoryStore

__all__ = ["MemoryStore", "decode_events", "decode_state", "encode_events", "encode_state"]
