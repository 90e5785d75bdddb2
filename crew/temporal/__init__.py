"""The same engine on Temporal: runs that survive the loss of any process, and effects on many machines.

Needs the extra `temporal`.
"""

from typing import TYPE_CHECKING

from crew.lazy_names import lazy_names

if TYPE_CHECKING:
    from crew.temporal.temporal_executor import TemporalExecutor
    from crew.temporal.worker import CrewWorker
else:
    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            "crew.temporal.temporal_executor": "TemporalExecutor",
            "crew.temporal.worker": "CrewWorker",
        },
    )

__all__ = ["CrewWorker", "TemporalExecutor"]
