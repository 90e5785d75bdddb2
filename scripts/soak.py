"""Runs the long tests for CREW_SOAK_MINUTES (default 60): random faults, soak tests, and property tests in rounds.

Two processes work at the same time. One runs random crews with random faults (tests/support/chaos.py). The other runs
the tests marked `soak` or `hypothesis`, with other examples in each round (CREW_SOAK_EXAMPLES, default 1,000).
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
ENVIRONMENT = os.environ | {"PYTHONPATH": str(ROOT), "CREW_SOAK": "1"}


def commit() -> str:
    """The commit that is tested."""
    found = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    return found.stdout.strip() or "unknown"


def run_chaos(minutes: float, outcome: list[str]) -> None:
    """Print each line of progress; the last one is the outcome, empty if a run broke an invariant."""
    command = [sys.executable, "-m", "tests.support.chaos", "--minutes", str(minutes)]
    last = ""

    with subprocess.Popen(
        command, cwd=ROOT, env=ENVIRONMENT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as chaos:
        for line in chaos.stdout or ():
            last = line.strip()
            print(last, flush=True)

    outcome.append(last if chaos.returncode == 0 else "")


def run_tests(end: float, number: int) -> tuple[bool, str]:
    """One round of the tests: whether none failed, and pytest's last line. At the end of the time it is stopped."""
    examples = os.environ.get("CREW_SOAK_EXAMPLES", "1000")
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "-m", "soak or hypothesis"]
    began = time.monotonic()

    with subprocess.Popen(
        command,
        cwd=ROOT,
        env=ENVIRONMENT | {"CREW_SOAK_EXAMPLES": examples},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as tests:
        try:
            output, _ = tests.communicate(timeout=max(1.0, end - time.monotonic()))
        except subprocess.TimeoutExpired:
            tests.kill()
            output, _ = tests.communicate()
            marks = "".join(line.partition(" [")[0] for line in output.splitlines())
            last = f"stopped at the end of the time, {marks.count('.')} tests passed"
            print(f"{output}\n" * ("F" in marks) + f"tests: round {number}: {last}", flush=True)
            return "F" not in marks, last

    last = output.strip().splitlines()[-1] if output.strip() else "no output"

    if tests.returncode:
        print(output, flush=True)

    print(f"tests: round {number}, {time.monotonic() - began:.0f} s: {last}", flush=True)
    return tests.returncode == 0, last


def main() -> int:
    minutes = float(os.environ.get("CREW_SOAK_MINUTES", "60"))
    end = time.monotonic() + 60 * minutes
    print(f"soak: {minutes:g} minutes, commit {commit()}, {time.strftime('%Y-%m-%d %H:%M')}", flush=True)
    outcome: list[str] = []
    chaos = threading.Thread(target=run_chaos, args=(minutes, outcome))
    chaos.start()
    rounds, passed = 0, True

    while passed and end - time.monotonic() > 1:
        rounds += 1
        passed, last = run_tests(end, rounds)

    chaos.join()
    print(f"soak: {rounds} rounds of tests, the last one: {last}", flush=True)
    print(f"soak: {'passed' if passed and outcome[0] else 'FAILED'}", flush=True)
    return 0 if passed and outcome[0] else 1


if __name__ == "__main__":
    sys.exit(main())
