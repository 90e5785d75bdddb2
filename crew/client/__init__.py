"""The client of a service that `crew serve` started."""

from typing import TYPE_CHECKING

from crew.lazy_names import lazy_names

if TYPE_CHECKING:
    from crew.client.crew_client import CrewClient, RemoteStream
    from crew.client.remote_runs import RemoteConversation, RemotePause, RemoteRun, ServiceError
else:
    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            "crew.client.crew_client": "CrewClient RemoteStream",
            "crew.client.remote_runs": "RemoteConversation RemotePause RemoteRun ServiceError",
        },
    )

__all__ = ["CrewClient", "RemoteConversation", "RemotePause", "RemoteRun", "RemoteStream", "ServiceError"]
