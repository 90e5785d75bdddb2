"""A request that the real service would refuse, in that service's words and shape."""

import json
from typing import NoReturn

from tests.wire.model import Protocol


class Refused(Exception):
    """`rule` names the rule for tests; everything else goes over the wire."""

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
        """The error in the shape of the protocol's service."""
        return json.dumps(error_json(protocol, self, request_id)).encode()


def error_json(protocol: Protocol, refused: Refused, request_id: str) -> dict[str, object]:
    """The JSON of an error; Anthropic knows neither `param` nor `code`."""
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
    """Refuse with the everyday kind of error."""
    raise Refused(rule, message, param=param, code=code, status=status)
