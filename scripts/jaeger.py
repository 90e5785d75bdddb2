"""Runs a real Jaeger on loopback, as a command or in tests with `running_jaeger()`."""

import argparse
import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from jaeger_program import RELEASE, JaegerFailed, JaegerUnavailable, cache_folder, ensure
from jaeger_server import HOST, PORTS, Jaeger, has_web_ui, launch, running_jaeger

__all__ = ["Jaeger", "JaegerFailed", "JaegerUnavailable", "running_jaeger"]

HELP = f"""Get Jaeger {RELEASE} and run it on {HOST}, with the traces in memory.

  jaeger.py ensure                find the program, or build it with Go (minutes); print its path
  jaeger.py start                 run it until Ctrl-C: OTLP on 4317 and 4318, query API on 16686
  jaeger.py start --background    run it in the background; `jaeger.py stop` stops it
  jaeger.py start --free-ports    use any free ports, for example next to another Jaeger

The program is searched in $CREW_JAEGER, then as `jaeger` on PATH, then in the cache folder for builds,
${{XDG_CACHE_HOME:-~/.cache}}/crew/jaeger. A build has the whole query API but a placeholder page
instead of the web UI, which is not a Go module. The container image and the release binary have the UI.

Exit codes: 0 success, 1 failure, 2 wrong usage, 3 neither Jaeger nor Go to build it is installed."""


def show(jaeger: Jaeger, how_to_stop: str) -> None:
    page = has_web_ui(jaeger)
    print(f"Jaeger is running. {'Web UI' if page else 'Query API, without a web UI'}: {jaeger.query}")
    print(f"  OTLP/HTTP    {jaeger.otlp_http}\n  OTLP/gRPC    {jaeger.otlp_grpc}")
    print(f"  to export    OTEL_EXPORTER_OTLP_ENDPOINT={jaeger.otlp_http}")
    print(f"  to read      {jaeger.query}/{'trace' if page else 'api/traces'}/<trace id>\n{how_to_stop}", flush=True)


def run_in_foreground(ports: dict[str, int] | None) -> None:
    with contextlib.suppress(KeyboardInterrupt), running_jaeger(ports) as jaeger:
        show(jaeger, "Press Ctrl-C to stop it.")
        raise JaegerFailed(f"Jaeger exited unexpectedly with code {jaeger.process.wait()}.")
    print("Jaeger has stopped.")


def run_in_background(ports: dict[str, int] | None, pid_file: Path) -> None:
    if pid := live_pid(pid_file):
        raise JaegerFailed(f"Already running (pid {pid}): stop it, or pass another --pid-file.")

    pid_file.parent.mkdir(parents=True, exist_ok=True)
    jaeger = launch(ports, pid_file)
    pid_file.write_text(f"{jaeger.process.pid}\n")
    show(jaeger, f"Stop it with: python {sys.argv[0]} stop --pid-file {pid_file}")


def stop(pid_file: Path) -> None:
    pid, deadline = live_pid(pid_file), time.monotonic() + 10
    if pid is None:
        print(f"No Jaeger with the pid file {pid_file} is running.")
        return

    with contextlib.suppress(ProcessLookupError):  # it has just exited
        os.kill(pid, signal.SIGTERM)
        while live_pid(pid_file):
            time.sleep(0.05)
            if time.monotonic() > deadline:
                os.kill(pid, signal.SIGKILL)
    pid_file.unlink()
    print(f"Jaeger (pid {pid}) has stopped.")


def live_pid(pid_file: Path) -> int | None:
    """The pid in the file, if that process is a Jaeger that uses the configuration next to the file."""
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


def parse_arguments() -> argparse.Namespace:
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=HELP, formatter_class=raw)
    add = parser.add_argument
    add("command", choices=["ensure", "start", "stop"])
    add("--otlp-grpc", type=int, default=PORTS["otlp_grpc"], metavar="PORT", help="%(default)s")
    add("--otlp-http", type=int, default=PORTS["otlp_http"], metavar="PORT", help="%(default)s")
    add("--query", type=int, default=PORTS["query"], metavar="PORT", help="%(default)s")
    add("--free-ports", action="store_true", help="use any free ports instead")
    add("--background", action="store_true", help="return once it is running, and write a pid file")
    add("--pid-file", type=Path, default=cache_folder() / "jaeger.pid", help="%(default)s")
    add("--jobs", type=int, default=os.cpu_count() or 1, help="number of cores for a build (default: all)")
    return parser.parse_args()


def main() -> None:
    args = parse_arguments()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # so that the Jaeger process is ended
    ports = None if args.free_ports else {name: getattr(args, name) for name in PORTS}
    if args.command == "stop":
        stop(args.pid_file.resolve())
        return

    program = ensure(args.jobs)
    if args.command == "ensure":
        print(program)
    elif args.background:
        run_in_background(ports, args.pid_file.resolve())
    else:
        run_in_foreground(ports)


if __name__ == "__main__":
    try:
        main()
    except (JaegerFailed, JaegerUnavailable) as error:
        print(error, file=sys.stderr)
        sys.exit(3 if isinstance(error, JaegerUnavailable) else 1)
    except KeyboardInterrupt:
        sys.exit(130)
