"""Runs a real Jaeger on loopback: for people by command, for tests by `running_jaeger()`."""

import argparse
import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from jaeger_program import RELEASE, JaegerFailed, JaegerUnavailable, cache_folder, ensure
from jaeger_server import HOST, PORTS, Jaeger, has_pages, launch, running_jaeger

__all__ = ["Jaeger", "JaegerFailed", "JaegerUnavailable", "running_jaeger"]

HELP = f"""Get Jaeger {RELEASE} and run it on {HOST}, with the traces in memory.

  jaeger.py ensure                find the program, or build it with Go (minutes); print its path
  jaeger.py start                 run it until Ctrl-C: OTLP on 4317 and 4318, query API on 16686
  jaeger.py start --background    run it behind; `jaeger.py stop` ends it
  jaeger.py start --free-ports    beside another Jaeger: take any free ports

It is looked for in $CREW_JAEGER, then as `jaeger` on PATH, then in the cache folder, where builds
are kept: ${{XDG_CACHE_HOME:-~/.cache}}/crew/jaeger. A build answers the whole query API but shows a
placeholder page instead of the web UI, which is no Go module. The container image and the release
binary have the UI.

Exit codes: 0 done, 1 it went wrong, 2 wrong usage, 3 no Jaeger here and no Go to build it with."""


def show(jaeger: Jaeger, how_to_stop: str) -> None:
    page = has_pages(jaeger)
    print(f"Jaeger runs. {'Web UI' if page else 'Query API, without a web UI'}: {jaeger.query}")
    print(f"  OTLP/HTTP    {jaeger.otlp_http}\n  OTLP/gRPC    {jaeger.otlp_grpc}")
    print(f"  to export    OTEL_EXPORTER_OTLP_ENDPOINT={jaeger.otlp_http}")
    print(f"  to read      {jaeger.query}/{'trace' if page else 'api/traces'}/<trace id>\n{how_to_stop}", flush=True)


def stay(ports: dict[str, int] | None) -> None:
    with contextlib.suppress(KeyboardInterrupt), running_jaeger(ports) as jaeger:
        show(jaeger, "Stop it with Ctrl-C.")
        raise JaegerFailed(f"Jaeger ended by itself, with exit code {jaeger.process.wait()}.")
    print("Jaeger is stopped.")


def leave(ports: dict[str, int] | None, pid_file: Path) -> None:
    if pid := live_pid(pid_file):
        raise JaegerFailed(f"Already running (pid {pid}): stop it, or give another --pid-file.")

    pid_file.parent.mkdir(parents=True, exist_ok=True)
    jaeger = launch(ports, pid_file)
    pid_file.write_text(f"{jaeger.process.pid}\n")
    show(jaeger, f"Stop it with: python {sys.argv[0]} stop --pid-file {pid_file}")


def stop(pid_file: Path) -> None:
    pid, deadline = live_pid(pid_file), time.monotonic() + 10
    if pid is None:
        print(f"No Jaeger of {pid_file} is running.")
        return

    with contextlib.suppress(ProcessLookupError):  # it ended just now
        os.kill(pid, signal.SIGTERM)
        while live_pid(pid_file):
            time.sleep(0.05)
            if time.monotonic() > deadline:
                os.kill(pid, signal.SIGKILL)
    pid_file.unlink()
    print(f"Jaeger (pid {pid}) is stopped.")
    return


def live_pid(pid_file: Path) -> int | None:
    """The pid in the file, if that process still is the Jaeger of the configuration beside it."""
    try:
        pid = int(pid_file.read_text())
        if Path("/proc/self").exists():
            command = Path(f"/proc/{pid}/cmdline").read_text()
        else:
            ps = ["ps", "-ww", "-o", "command=", "-p", str(pid)]
            command = subprocess.check_output(ps, text=True)
    except (OSError, ValueError, subprocess.CalledProcessError):
        return None
    return pid if str(pid_file.with_suffix(".yaml")) in command else None


def arguments() -> argparse.Namespace:
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=HELP, formatter_class=raw)
    add = parser.add_argument
    add("command", choices=["ensure", "start", "stop"])
    add("--otlp-grpc", type=int, default=PORTS["otlp_grpc"], metavar="PORT", help="%(default)s")
    add("--otlp-http", type=int, default=PORTS["otlp_http"], metavar="PORT", help="%(default)s")
    add("--query", type=int, default=PORTS["query"], metavar="PORT", help="%(default)s")
    add("--free-ports", action="store_true", help="take any free ports instead")
    add("--background", action="store_true", help="return when it runs, leaving a pid file")
    add("--pid-file", type=Path, default=cache_folder() / "jaeger.pid", help="%(default)s")
    add("--jobs", type=int, default=os.cpu_count() or 1, help="cores for a build (all of them)")
    return parser.parse_args()


def main() -> None:
    args = arguments()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # so that we end what we started
    ports = None if args.free_ports else {name: getattr(args, name) for name in PORTS}
    if args.command == "stop":
        stop(args.pid_file.resolve())
        return

    program = ensure(args.jobs)
    if args.command == "ensure":
        print(program)
    elif args.background:
        leave(ports, args.pid_file.resolve())
    else:
        stay(ports)
    return


if __name__ == "__main__":
    try:
        main()
    except (JaegerFailed, JaegerUnavailable) as error:
        print(error, file=sys.stderr)
        sys.exit(3 if isinstance(error, JaegerUnavailable) else 1)
    except KeyboardInterrupt:
        sys.exit(130)
