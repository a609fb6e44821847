"""How fast an engine's log is read: 200 MB of it at once, and 10,000 lines a second as they are written."""

import platform
import resource
import time
from dataclasses import dataclass
from pathlib import Path

from outrider.engines.log_reader import LogReader
from outrider.engines.log_rules import LogRules
from outrider.engines.sglang.log_rules import LOG as SGLANG
from outrider.engines.vllm.log_rules import LOG as VLLM

_MB = 200
_PIECE_BYTES = 1 << 20
_LIVE_LINES_PER_S, _LIVE_S, _LIVE_STEP_S = 10_000, 20, 0.1

_INTRODUCTION = """# Reading an engine's log

`make proofs` wrote this page, on {system}. Each log begins as the engine's and goes on with the lines of one kind, over and over.
"at once": {mb} MB in pieces of 1 MiB. "live": {rate:,} lines/s for {live_s} s in steps of {step_s} s; CPU is that of reading alone, as a
share of one core, and the verdict is the time from the piece with the fatal line to the event.

| log | at once | lines/s | memory of the process | live: CPU | live: verdict after |
|---|---|---|---|---|---|
"""


@dataclass(frozen=True)
class _Log:
    """A log of the engine: how it starts, what it goes on with, and the line that ends it."""

    name: str
    rules: LogRules
    start: str
    lines: tuple[str, ...]
    fatal: str

    def body(self, num_bytes: int) -> bytes:
        """Lines of the log, each with numbers of its own, of about so many bytes."""
        once = "".join(f"{line}\n" for line in self.lines)
        return "".join(once.replace("#", str(10_000 + number)) for number in range(num_bytes // len(once) + 1)).encode()


_VLLM_START = """(APIServer pid=1) INFO 12-01 01:52:28 [api_utils.py:273] non-default args: {'model': '/models/target'}
(EngineCore pid=2) INFO 12-01 01:53:04 [core.py:114] Initializing a V1 LLM engine (v0.25.0) with config: model='/models/target'
(EngineCore pid=2) INFO 12-01 01:53:06 [model_runner.py:281] Loading model from scratch...
"""
_VLLM_READY = "(APIServer pid=1) INFO:     Application startup complete.\n"
_VLLM_FATAL = (
    "(EngineCore pid=2) ERROR 12-01 12:01:51 [m.py:315] Worker proc VllmWorker-0 died unexpectedly (exit code: -9), shutting down.\n\n"
)
_ACCESS = '(APIServer pid=1) INFO:     127.0.0.1:# - "POST /v1/chat/completions HTTP/1.1" 200 OK'
_LOGS = (
    _Log(
        "vLLM, serving",
        VLLM,
        _VLLM_START + _VLLM_READY,
        (
            _ACCESS,
            "(APIServer pid=1) INFO 12-01 01:54:10 [loggers.py:259] Engine 000: Avg prompt throughput: #.1 tokens/s, "
            "Avg generation throughput: 80.1 tokens/s, Running: 1 reqs, GPU KV cache usage: 0.1%, Prefix cache hit rate: 0.0%",
            "(APIServer pid=1) INFO 12-01 01:54:10 [metrics.py:96] SpecDecoding metrics: Mean acceptance length: 1.87, Accepted: # tokens",
        ),
        _VLLM_FATAL,
    ),
    _Log("vLLM, starting", VLLM, _VLLM_START, ("(EngineCore pid=2) INFO 12-01 01:53:08 [x.py:#] a line that no rule knows",), _VLLM_FATAL),
    _Log(
        "vLLM, refusing request after request",
        VLLM,
        _VLLM_START + _VLLM_READY,
        (
            "(APIServer pid=1) ERROR 12-01 01:54:10 [serving.py:9] Traceback (most recent call last):",
            *('(APIServer pid=1) ERROR 12-01 01:54:10 [serving.py:9]   File "/opt/engine/site-packages/vllm/x.py", line #, in f',) * 12,
            "(APIServer pid=1) ERROR 12-01 01:54:10 [serving.py:9] ValueError: the prompt is too long",
            _ACCESS,
        ),
        _VLLM_FATAL,
    ),
    _Log(
        "SGLang, serving",
        SGLANG,
        "[2026-12-01 02:07:31] server_args=ServerArgs(model_path='/models/target')\n"
        "[2026-12-01 02:08:12] The server is fired up and ready to roll!\n",
        (
            "[2026-12-01 02:08:14] Decode batch, #running-req: 1, #token: 85, token usage: 0.00, accept len: 1.00, accept rate: 0.00, "
            "cuda graph: True, gen throughput (token/s): 385.23, #queue-req: 0",
            '[2026-12-01 02:08:20] INFO:     127.0.0.1:# - "POST /v1/chat/completions HTTP/1.1" 200 OK',
        ),
        "[2026-12-01 02:07:52] Subprocess scheduler_0 (pid=1700) crashed with exit code -9. Triggering SIGQUIT for cleanup...\n\n",
    ),
)


def main(out_folder: Path) -> None:
    """Write `out_folder`/log-reading.md; ends with an error if a log is not read to its end."""
    introduction = _INTRODUCTION.format(
        system=f"{platform.machine()}, Python {platform.python_version()}",
        mb=_MB,
        rate=_LIVE_LINES_PER_S,
        live_s=_LIVE_S,
        step_s=_LIVE_STEP_S,
    )
    (out_folder / "log-reading.md").write_text(introduction + "".join(map(_row, _LOGS)), encoding="utf-8")


def _row(log: _Log) -> str:
    seconds, lines_per_s = _at_once(log)
    memory_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10
    cpu, verdict_s = _live(log)
    row = f"| {log.name} | {seconds:.1f} s | {lines_per_s:,.0f} | {memory_mb} MB | {cpu:.1%} | {verdict_s * 1000:.1f} ms |\n"
    print(row, end="", flush=True)
    return row


def _at_once(log: _Log) -> tuple[float, float]:
    """Seconds for the whole log, and lines a second."""
    reader, body = LogReader(log.rules), log.body(_PIECE_BYTES)
    began = time.perf_counter()
    reader.feed(log.start.encode(), 0.0)
    for _ in range(_MB):
        reader.feed(body, 1.0)
    reader.feed(log.fatal.encode(), 2.0)
    seconds = time.perf_counter() - began
    if reader.failure is None or reader.failure.id != "worker-died":
        raise RuntimeError(f"{log.name}: the end was not seen: {reader.failure}")
    return seconds, _MB * body.count(b"\n") / seconds


def _live(log: _Log) -> tuple[float, float]:
    """CPU of reading as a share of one core, and seconds from the piece with the fatal line to the verdict."""
    reader = LogReader(log.rules)
    lines = log.body(_PIECE_BYTES).splitlines(keepends=True)
    piece = b"".join((lines * 100)[: int(_LIVE_LINES_PER_S * _LIVE_STEP_S)])
    reader.feed(log.start.encode(), 0.0)
    began = time.process_time()
    num_steps = int(_LIVE_S / _LIVE_STEP_S)
    for step in range(num_steps):
        reader.feed(piece, step * _LIVE_STEP_S)
    cpu_s = time.process_time() - began
    before = time.perf_counter()
    reader.feed(piece + log.fatal.encode() + piece, _LIVE_S)
    if reader.failure is None:
        raise RuntimeError(f"{log.name}: the end was not seen at once")
    return cpu_s / _LIVE_S, time.perf_counter() - before
