"""Finds the Jaeger program, or builds it with Go into a cache that outlives the checkout."""

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
RELEASE = "2.13.0"  # the same source: its module tag still counts in 1.x
DOWNLOAD_SECONDS, BUILD_SECONDS = 300, 1800  # a network that swallows everything must not hold us for ever
PACKAGES = 2330  # what a first build of this version compiles, for the progress line
OTHER_WAYS = f"""Other ways to a Jaeger, both with its web UI:
  - container: docker run --rm -p 127.0.0.1:4317:4317 -p 127.0.0.1:4318:4318 \
-p 127.0.0.1:16686:16686 jaegertracing/jaeger:{RELEASE}
  - release binary from https://www.jaegertracing.io/download: put `jaeger` on PATH, or its path
    into CREW_JAEGER"""


class JaegerUnavailable(Exception):
    """There is no Jaeger on this machine; the reason says how to get one."""


class JaegerFailed(Exception):
    """Building or starting Jaeger was tried and went wrong."""


def cache_folder() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "crew" / "jaeger"


def find() -> Path:
    named = os.environ.get("CREW_JAEGER")
    if named and not shutil.which(named):
        raise JaegerFailed(f"CREW_JAEGER is {named!r}, which can't be run: correct it or unset it.")

    found = shutil.which(named or "jaeger") or shutil.which(cache_folder() / VERSION / "jaeger")
    if not found:
        raise JaegerUnavailable("No Jaeger on this machine yet: run `python scripts/jaeger.py ensure`.")
    return Path(found)


def ensure(jobs: int) -> Path:
    with contextlib.suppress(JaegerUnavailable):
        return find()

    if go := shutil.which("go"):
        return build(go, jobs)
    raise JaegerUnavailable(f"No Jaeger here, and no Go (1.25 or newer) to build it.\n{OTHER_WAYS}")


def build(go: str, jobs: int) -> Path:
    target = cache_folder() / VERSION / "jaeger"
    target.parent.mkdir(parents=True, exist_ok=True)
    tell(f"Building Jaeger {RELEASE}, once: some five minutes on two cores, 3 GB in Go's caches.")
    with tempfile.TemporaryDirectory(dir=target.parent, prefix="build-") as folder:
        made = Path(folder, "jaeger")
        compile_module(go, jobs, source=download(go, Path(folder)), made=made)
        made.replace(target)  # in one step, so that nobody ever finds half a program
    return target


def download(go: str, folder: Path) -> Path:
    command = [go, "mod", "download", "-json", f"{MODULE}@{VERSION}"]
    try:
        got = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, timeout=DOWNLOAD_SECONDS)
    except subprocess.TimeoutExpired as error:
        raise JaegerFailed(f"{MODULE}@{VERSION} was not here after {error.timeout:g} s.\n{OTHER_WAYS}") from error
    if got.returncode:
        raise JaegerFailed(f"Go can't download {MODULE}@{VERSION}:\n{got.stdout}{got.stderr}{OTHER_WAYS}")
    return Path(json.loads(got.stdout)["Dir"])


def compile_module(go: str, jobs: int, *, source: Path, made: Path) -> None:
    """Compile inside the module: `go install` refuses its replacements; and its go.sum decides."""
    log = made.with_suffix(".log")
    stamp = f"-ldflags=-s -w -X {MODULE}/internal/version.latestVersion={VERSION}"
    flags = [
        "-v",
        "-trimpath",
        "-mod=readonly",
        "-buildvcs=false",
        f"-p={jobs}",
        stamp,
        f"-o={made}",
    ]
    command = [*nice(), go, "build", *flags, "./cmd/jaeger"]
    env = os.environ | {"CGO_ENABLED": "0", "GOWORK": "off", "GOMAXPROCS": str(jobs)}
    with log.open("wb") as sink:
        process = subprocess.Popen(command, cwd=source, env=env, stdout=sink, stderr=sink)
    try:
        watch(process, log)
    finally:
        end(process)

    if process.returncode:
        raise JaegerFailed(f"The build failed (exit code {process.returncode}):\n{tail(log)}\n{OTHER_WAYS}")


def watch(process: subprocess.Popen[bytes], log: Path) -> None:
    begun = time.monotonic()
    while process.poll() is None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(timeout=10)
        lines = log.read_text(errors="replace").splitlines()
        fetched = sum(line.startswith("go: downloading") for line in lines)
        compiled = f"{len(lines) - fetched} of at most {PACKAGES} packages compiled"
        tell(f"  {time.monotonic() - begun:4.0f} s: {fetched} modules fetched, {compiled}")
        if time.monotonic() - begun > BUILD_SECONDS:
            raise JaegerFailed(f"The build was not through after {BUILD_SECONDS} s:\n{tail(log)}\n{OTHER_WAYS}")


def nice() -> list[str]:
    return ["nice", "-n", "15"] if shutil.which("nice") else []


def end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(timeout=10)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def tail(log: Path) -> str:
    return "\n".join(log.read_text(errors="replace").splitlines()[-15:])


def tell(words: str) -> None:
    print(words, file=sys.stderr, flush=True)
