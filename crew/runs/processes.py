"""Identifies processes, so that a lease whose process has ended does not have to lapse first."""

from __future__ import annotations

import os
import platform
from functools import cache
from pathlib import Path

from crew.runs.leases import LeaseHolder


def this_holder(executor: str) -> LeaseHolder:
    """The holder for an executor in this process; a forked process is another holder."""
    pid = os.getpid()
    return LeaseHolder(host=platform.node(), pid=pid, started=_own_start(pid), executor=f"{executor}-{pid}")


def is_gone(holder: LeaseHolder) -> bool:
    """Whether the process of this holder has certainly ended; always False for a process of another host.

    A host is recognised by its name, its boot and its namespace of pids: containers and machines may share a name.
    """
    scope = holder.started.rpartition("/")[0]

    if holder.host != platform.node() or scope != _scope():
        return False

    stat = _read_stat(holder.pid)

    if stat is None:
        return not _exists(holder.pid)

    state, start = stat
    return state in ("Z", "X") or f"{scope}/{start}" != holder.started


@cache
def _own_start(pid: int) -> str:
    stat = _read_stat(pid)
    return f"{_scope()}/{'' if stat is None else stat[1]}"


@cache
def _scope() -> str:
    """The boot and the namespace of pids; empty where /proc does not exist."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        return f"{boot}/{Path('/proc/self/ns/pid').stat().st_ino}"
    except OSError:
        return ""


def _read_stat(pid: int) -> tuple[str, str] | None:
    """The state of a process and its start in clock ticks since the boot; None if /proc does not show it."""
    try:
        # The name of the program, in parentheses, may contain anything.
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
    except OSError:
        return None

    return fields[0], fields[19]


def _exists(pid: int) -> bool:
    if os.name != "posix":
        return True  # not known: there, os.kill would end the process

    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True  # the process of another user

    return True
