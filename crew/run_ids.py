"""The rule for the ids of runs and conversations; imports nothing of Crew, so that the command line starts fast."""

from __future__ import annotations

import re

RUN_ID_PATTERN = "[A-Za-z0-9_.:-]{1,128}"
RUN_ID_RULE = "1–128 characters A–Z a–z 0–9 _ . : -"

_RUN_ID = re.compile(RUN_ID_PATTERN)


def is_run_id(value: object) -> bool:
    """Whether a value can be the id of a run or of a conversation."""
    return isinstance(value, str) and _RUN_ID.fullmatch(value) is not None
