"""Two bad minutes for ``toyserve serve``: 64 clients at once, of which many do not behave.

    python benchmarks/soak_server.py --seconds 120 --clients 64

Some read whole answers, some streams, some hang up in the middle or at once, some ask nonsense, two
never read what they asked for. Checked: every text is the one that the model gives to that prompt
alone, the server's memory does not grow, and afterwards no block and no request is left.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import random
import subprocess
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import httpx

PROMPTS = tuple(f"{name}:\n" for name in (
    "ROMEO", "JULIET", "HAMLET", "KING", "OPHELIA", "IAGO", "PUCK", "FALSTAFF", "PORTIA", "BRUTUS",
))  # fmt: skip
NONSENSE = (
    {"prompt": ""},
    {"prompt": "x", "temperature": -1},
    {"prompt": [10**9]},
    {"prompt": "x", "model": "gpt-4"},
    {"prompt": "x", "max_tokens": 0},
    ["no object"],
)


@dataclass
class Report:
    """What the clients saw. ``wrong``: answers that were not the expected ones."""

    done: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)


class Crowd:
    """Clients of one server. expected: prompt -> the whole greedy answer of ``max_tokens``."""

    def __init__(self, url: str, expected: dict[str, str], max_tokens: int, seed: int = 0) -> None:
        self.url, self.expected, self.max_tokens = url, expected, max_tokens
        self.random = random.Random(seed)
        self.report = Report()

    async def run(self, seconds: float, num_clients: int) -> Report:
        limits = httpx.Limits(max_connections=None)
        end = time.monotonic() + seconds
        async with httpx.AsyncClient(timeout=120, limits=limits, base_url=self.url) as client:
            deaf = [await self._deaf() for _ in range(2)]
            await asyncio.gather(*(self._client(client, end) for _ in range(num_clients)))
            for writer in deaf:
                writer.close()
        return self.report

    async def _client(self, client: httpx.AsyncClient, end: float) -> None:
        manners = (self._whole, self._stream, self._hang_up, self._stop_string, self._nonsense)
        while time.monotonic() < end:
            manner = self.random.choices(manners, (3, 4, 3, 3, 1))[0]
            await manner(client, self.random.choice(list(self.expected)))
            self.report.done[manner.__name__.strip("_")] += 1

    def _body(self, prompt: str, **more: object) -> dict[str, object]:
        return {"prompt": prompt, "temperature": 0, "max_tokens": self.max_tokens} | more

    def _compare(self, prompt: str, got: str, expected: str) -> None:
        if got != expected:
            self.report.wrong.append(f"{prompt!r}: {got!r} instead of {expected!r}")

    async def _whole(self, client: httpx.AsyncClient, prompt: str) -> None:
        answer = await client.post("/v1/completions", json=self._body(prompt))
        got = answer.json()["choices"][0]["text"] if answer.status_code == 200 else answer.text
        self._compare(prompt, got, self.expected[prompt])

    async def _stream(self, client: httpx.AsyncClient, prompt: str) -> None:
        self._compare(prompt, await self._read(client, self._body(prompt)), self.expected[prompt])

    async def _stop_string(self, client: httpx.AsyncClient, prompt: str) -> None:
        text = self.expected[prompt]
        start = self.random.randrange(len(text))
        stop = text[start : start + self.random.randint(1, 12)]
        got = await self._read(client, self._body(prompt, stop=[stop]))
        self._compare(prompt, got, text[: text.index(stop)])

    async def _read(
        self, client: httpx.AsyncClient, body: dict[str, object], num_lines: int | None = None
    ) -> str:
        parts = []
        async with client.stream("POST", "/v1/completions", json=body | {"stream": True}) as answer:
            async for line in answer.aiter_lines():
                if num_lines is not None and len(parts) >= num_lines:
                    break
                if line.startswith("data: {"):
                    chunk = json.loads(line[6:])
                    parts.append(chunk["choices"][0]["text"] if "choices" in chunk else line)
        return "".join(parts)

    async def _hang_up(self, client: httpx.AsyncClient, prompt: str) -> None:
        """In the middle of a stream, or while a whole answer is awaited."""
        body = self._body(prompt, ignore_eos=True, max_tokens=200)
        if self.random.random() < 0.5:
            await self._read(client, body, num_lines=self.random.randint(0, 5))
            return
        with contextlib.suppress(httpx.TimeoutException):
            await client.post("/v1/completions", json=body, timeout=self.random.random() * 0.5)

    async def _nonsense(self, client: httpx.AsyncClient, _: str) -> None:
        answer = await client.post("/v1/completions", json=self.random.choice(NONSENSE))
        if answer.status_code not in (400, 404) or "error" not in answer.json():
            self.report.wrong.append(f"nonsense was answered {answer.status_code}: {answer.text}")

    async def _deaf(self) -> asyncio.StreamWriter:
        """Asks for a long stream and never reads a byte of it."""
        url = httpx.URL(self.url)
        _, writer = await asyncio.open_connection(url.host, url.port, limit=1)
        body = json.dumps({"prompt": "x", "max_tokens": 900, "ignore_eos": True, "stream": True})
        head = "POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
        writer.write(f"{head}Content-Length: {len(body)}\r\n\r\n{body}".encode())
        await writer.drain()
        writer.transport.pause_reading()  # type: ignore[attr-defined]
        return writer


def gauges(url: str) -> dict[str, float]:
    lines = httpx.get(url + "/metrics").text.splitlines()
    wanted = ("vllm:num_requests_", "vllm:kv_cache_usage_perc")
    return {
        line.split("{")[0]: float(line.rsplit(" ", 1)[1])
        for line in lines
        if line.startswith(wanted)
    }


def resident_mb(pid: int) -> float:
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.split("VmRSS:")[1].split()[0]) / 1024


async def watch(pid: int, memory: list[float]) -> None:
    while True:
        memory.append(resident_mb(pid))
        await asyncio.sleep(5)


def greedy_answers(max_tokens: int) -> dict[str, str]:
    from toyserve import LLM, SamplingParams

    llm, params = LLM("toy", max_running=1), SamplingParams(temperature=0, max_tokens=max_tokens)
    return {prompt: llm.generate(prompt, params)[0].text for prompt in PROMPTS}


async def soak(url: str, pid: int, options: argparse.Namespace) -> tuple[Report, list[float]]:
    memory: list[float] = []
    watching = asyncio.create_task(watch(pid, memory))
    crowd = Crowd(url, greedy_answers(options.max_tokens), options.max_tokens)
    report = await crowd.run(options.seconds, options.clients)
    watching.cancel()
    return report, memory


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=120)
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--max-tokens", type=int, default=24)
    parser.add_argument(
        "--max-steps",
        type=int,
        default=200,  # so that the recording is soon as long as it gets
        help="of the server's recording, which grows until it has twice as many",
    )
    options = parser.parse_args()
    command = [sys.executable, "-m", "toyserve", "serve", "--port", "0", "--prefix-caching"]
    command += ["--max-steps", str(options.max_steps)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        url = server.stdout.readline().split(" at ")[1].split("/v1")[0]
        try:
            report, memory = asyncio.run(soak(url, server.pid, options))
            for _ in range(600):
                left = gauges(url)
                if not any(left.values()):
                    break
                time.sleep(0.1)
        finally:
            server.terminate()
    print(f"done: {dict(report.done)}; wrong: {len(report.wrong)}")
    for line in report.wrong[:5]:
        print(" ", line)
    print("server's memory, MB, every 5 s:", " ".join(f"{mb:.0f}" for mb in memory))
    print("left afterwards:", left, "exit code", server.returncode)
    return 1 if report.wrong or any(left.values()) or server.returncode else 0


if __name__ == "__main__":
    sys.exit(main())
