"""Stores of runs, and the JSON encoding of states and events."""

from typing import TYPE_CHECKING

from crew.lazy_names import lazy_names

if TYPE_CHECKING:
    from crew.store.codec import decode_events, decode_state, encode_events, encode_state
    from crew.store.location import open_store
    from crew.store.memory import MemoryStore
    from crew.store.postgres import PostgresStore
    from crew.store.run_export import export_runs
    from crew.store.sqlite import SQLiteStore
else:
    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            "crew.store.codec": "decode_events decode_state encode_events encode_state",
            "crew.store.location": "open_store",
            "crew.store.memory": "MemoryStore",
            "crew.store.postgres": "PostgresStore",
            "crew.store.run_export": "export_runs",
            "crew.store.sqlite": "SQLiteStore",
        },
    )

__all__ = [
    "MemoryStore",
    "PostgresStore",
    "SQLiteStore",
    "decode_events",
    "decode_state",
    "encode_events",
    "encode_state",
    "export_runs",
    "open_store",
]
