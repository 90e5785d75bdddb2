"""Tests marked `servers` skip if their server is not installed, unless CREW_REQUIRED_SERVERS lists it."""

import os
from typing import NoReturn

import pytest


def server_missing(name: str, reason: str) -> NoReturn:
    """Skip the test with the reason; fail it if CREW_REQUIRED_SERVERS, a list of names, contains the server."""
    if name in os.environ.get("CREW_REQUIRED_SERVERS", "").split():
        pytest.fail(f"{name} is required but missing: {reason}")

    pytest.skip(f"{name} is missing: {reason}")
