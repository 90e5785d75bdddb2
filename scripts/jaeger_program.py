"""Finds the Jaeger program, or builds it with Go into a cache outside the repository."""

import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

MODULE, VERSION = "github.com/jaegertracing/jaeger", "v1.76.0"
RELEASE = "2.13.0"  # the same source; the Go module is tagged 1.x
DOWNLOAD_SECONDS, BUILD_SECONDS = 300, 1800  # bounds for a network that does not respond
PACKAGES = 2330  # packages that a first build compiles, for the progress output
OTHER_WAYS = f"""Other ways to get Jaeger, both with its web UI:
  - container: docker run --rm -p 127.0.0.1:4317:4317 -p 127.0.0.1:4318:4318 \
-p 127.0.0.1:16686:16686 jaegertracing/jaeger:{RELEASE}
  - release binary from https://www.jaegertracing.io/download: put `jaeger` on PATH, or set
    CREW_JAEGER to its path"""


class JaegerUnavailable(Exception):
    """Jaeger is not installed; the message says how to get it."""


class JaegerFailed(Exception):
    """Building or starting Jaeger failed."""


def cache_folder() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "crew" / "jaeger"


def find() -> Path:
    named = os.environ.get("CREW_JAEGER")
    if named and not shutil.which(named):
        raise JaegerFailed(f"CREW_JAEGER is {named!r}, which is not an executable: correct or unset it.")

    found = shutil.which(named or "jaeger") or shutil.which(cache_folder() / VERSION / "jaeger")
    if not found:
        raise JaegerUnavailable("Jaeger is not installed: run `python scripts/jaeger.py ensure`.")
    return Path(found)


def ensure(jobs: int) -> Path:
    with contextlib.suppress(JaegerUnavailable):
        return find()

    if go := shutil.which("go"):
        return build(go, jobs)
    raise JaegerUnavailable(f"Neither Jaeger nor Go (1.25 or newer) to build it is installed.\n{OTHER_WAYS}")


def build(go: str, jobs: int) -> Path:
    target = cache_folder() / VERSION / "jaeger"
    target.parent.mkdir(parents=True, exist_ok=True)
    log_progress(f"Building Jaeger {RELEASE} once: about five minutes on two cores, 3 GB in Go's caches.")
    with tempfile.TemporaryDirectory(dir=target.parent, prefix="build-") as folder:
        built = Path(folder, "jaeger")
        compile_module(go, jobs, source=download(go, Path(folder)), output=built)
        built.replace(target)  # atomically, so that a partial file is never found
    return target


def download(go: str, folder: Path) -> Path:
    command = [go, "mod", "download", "-json", f"{MODULE}@{VERSION}"]
    try:
        completed = subprocess.run(
            command, cwd=folder, capture_output=True, text=True, check=False, timeout=DOWNLOAD_SECONDS
        )
    except subprocess.TimeoutExpired as error:
        raise JaegerFailed(
            f"The download of {MODULE}@{VERSION} timed out after {error.timeout:g} s.\n{OTHER_WAYS}"
        ) from error
    if completed.returncode:
        raise JaegerFailed(f"Go can't download {MODULE}@{VERSION}:\n{completed.stdout}{completed.stderr}{OTHER_WAYS}")
    return Path(json.loads(completed.stdout)["Dir"])


def compile_module(go: str, jobs: int, *, source: Path, output: Path) -> None:
    """Compile inside the module, with its go.sum; `go install` rejects its replace directives."""
    log = output.with_suffix(".log")
    stamp = f"-ldflags=-s -w -X {MODULE}/internal/version.latestVersion={VERSION}"
    flags = [
        "-v",
        "-trimpath",
        "-mod=readonly",
        "-buildvcs=false",
        f"-p={jobs}",
        stamp,
        f"-o={output}",
    ]
    command = [*nice(), go, "build", *flags, "./cmd/jaeger"]
    env = os.environ | {"CGO_ENABLED": "0", "GOWORK": "off", "GOMAXPROCS": str(jobs)}
    with log.open("wb") as sink:
        process = subprocess.Popen(command, cwd=source, env=env, stdout=sink, stderr=sink)
    try:
        report_progress(process, log)
    finally:
        terminate(process)

    if process.returncode:
        raise JaegerFailed(f"The build failed (exit code {process.returncode}):\n{tail(log)}\n{OTHER_WAYS}")


def report_progress(process: subprocess.Popen[bytes], log: Path) -> None:
    start = time.monotonic()
    while process.poll() is None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(timeout=10)
        lines = log.read_text(errors="replace").splitlines()
        fetched = sum(line.startswith("go: downloading") for line in lines)
        compiled = f"{len(lines) - fetched} of at most {PACKAGES} packages compiled"
        log_progress(f"  {time.monotonic() - start:4.0f} s: {fetched} modules fetched, {compiled}")
        if time.monotonic() - start > BUILD_SECONDS:
            raise JaegerFailed(f"The build timed out after {BUILD_SECONDS} s:\n{tail(log)}\n{OTHER_WAYS}")


def nice() -> list[str]:
    return ["nice", "-n", "15"] if shutil.which("nice") else []


def terminate(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(timeout=10)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def tail(log: Path) -> str:
    return "\n".join(log.read_text(errors="replace").splitlines()[-15:])


def log_progress(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
