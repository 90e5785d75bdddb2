"""Errors for rejected requests, with the message and JSON shape of the real services."""

import json
from typing import NoReturn

from tests.wire.model import Protocol


class Refused(Exception):
    """A rejected request. `rule` is for tests; the client receives all other fields."""

    def __init__(
        self,
        rule: str,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        status: int = 400,
        kind: str = "invalid_request_error",
        headers: dict[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.rule, self.message, self.param, self.code = rule, message, param, code
        self.status, self.kind, self.headers = status, kind, headers or {}

    def body(self, protocol: Protocol, request_id: str) -> bytes:
        """Render the error as the protocol's service does."""
        return json.dumps(error_json(protocol, self, request_id)).encode()


def error_json(protocol: Protocol, refused: Refused, request_id: str) -> dict[str, object]:
    """Return the JSON of an error; Anthropic's has neither `param` nor `code`."""
    if protocol == "messages":
        error = {"type": refused.kind, "message": refused.message}
        return {"type": "error", "error": error, "request_id": request_id}
    return {
        "error": {
            "message": refused.message,
            "type": refused.kind,
            "param": refused.param,
            "code": refused.code,
        }
    }


def refuse(rule: str, message: str, param: str | None = None, code: str | None = None, status: int = 400) -> NoReturn:
    """Reject with an invalid_request_error."""
    raise Refused(rule, message, param=param, code=code, status=status)
