"""Measures start-up and memory: the CPU time of imports and `crew --help`, and the memory after a first model call.

    python benchmarks/startup.py [PYTHON]

Imports are compared with pydantic's and, if PYTHON is an interpreter that has it, with agent_framework's. The call is
compared with the same call on the bare SDK; both go to a local server in a separate process.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tests.wire import wire_process

ROOT = Path(__file__).resolve().parents[1]
TRIES = 12
PYDANTIC = "from pydantic import BaseModel, TypeAdapter"
NAMES = "from crew import Agent, Crew, CrewExecutor, tool"
HELP = "from crew.cli import main; main(['--help'])"
MEMORY = """
import gc, sys
gc.collect()
fields = dict(line.split(":") for line in open("/proc/self/status"))
print(fields["VmRSS"].split()[0], fields["RssAnon"].split()[0], len(sys.modules))
"""
SDK_CALL = """
import asyncio, openai, os

async def main():
    client = openai.AsyncOpenAI(api_key="k", base_url=os.environ["URL"], http_client=openai.DefaultAioHttpClient())
    messages = [{"role": "system", "content": "Work."}, {"role": "user", "content": "Hi"}]

    async with client:
        reply = await client.chat.completions.create(model="gpt-5", messages=messages)
        assert reply.choices[0].message.content

asyncio.run(main())
"""
CREW_CALL = """
import asyncio, os
from crew import Agent, CrewExecutor
from crew.providers import OpenAIChat

async def main():
    model = OpenAIChat("gpt-5", base_url=os.environ["URL"], api_key="k")

    async with CrewExecutor(Agent("worker", instructions="Work.", model=model)) as executor:
        assert (await executor.execute("Hi")).output

asyncio.run(main())
"""
LOAD_TOKENIZER = "\nfrom crew.history import exact_counter\nexact_counter('openai', 'gpt-5').count('Hi' * 100_000)\n"


def run(code: str, python: str = sys.executable, **environment: str) -> tuple[str, float]:
    """Run code in a new process; its output and CPU seconds."""
    process = subprocess.Popen(
        [python, "-c", code], stdout=subprocess.PIPE, text=True, cwd=ROOT, env=os.environ | environment
    )
    assert process.stdout is not None
    output = process.stdout.read()
    _, status, usage = os.wait4(process.pid, 0)
    assert status == 0, code
    return output, usage.ru_utime + usage.ru_stime


def start_up(other: str | None) -> None:
    """CPU time of imports, the minimum of several tries in turn, without that of Python itself."""
    codes = {"pass": sys.executable, PYDANTIC: sys.executable, "import crew": sys.executable, NAMES: sys.executable}
    codes |= {HELP: sys.executable}
    codes |= {"import agent_framework": other, "from agent_framework import Agent, tool": other} if other else {}
    least = dict.fromkeys(codes, float("inf"))

    # Installed packages are compiled; the checkout is, too, after the first round.
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(TRIES + 1):
            for code, python in codes.items():
                seconds = run(code, python, PYTHONPYCACHEPREFIX=folder, PYTHONDONTWRITEBYTECODE="")[1]
                least[code] = min(least[code], seconds)

    python, pydantic = least.pop("pass"), least[PYDANTIC]
    print(f"CPU time beyond that of Python ({python * 1e3:.0f} ms):")

    for code, seconds in least.items():
        ratio = (seconds - python) / (pydantic - python)
        print(f"  {code:50} {(seconds - python) * 1e3:4.0f} ms, {ratio:.2f} of pydantic")


def memory() -> None:
    """Resident memory after a first call."""
    with wire_process("--responder", "echo", "--no-checks") as server:
        print("Memory after a first call, in MB:            resident  private  modules")

        for label, code in {
            "Python": "",
            "bare SDK": SDK_CALL,
            "Crew": CREW_CALL,
            "Crew, with the tokenizer of the extra `tokens`": CREW_CALL + LOAD_TOKENIZER,
        }.items():
            resident, private, modules = run(code + MEMORY, URL=server.openai_url)[0].split()
            print(f"  {label:46} {int(resident) / 1024:5.1f}    {int(private) / 1024:5.1f}     {modules:>4}")


if __name__ == "__main__":
    start_up(sys.argv[1] if len(sys.argv) > 1 else None)
    memory()
