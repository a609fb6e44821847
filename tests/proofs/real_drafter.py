"""A real drafter, trained and measured elsewhere, on the reference engine: does it reach its published figures here?

It needs `../shared/drafter-smollm2` and the question files beside it, and says so where they are not.
"""

import json
import platform
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from builders import imported_real_target
from outrider.core.results import Acceptance
from outrider.core.statistics import bootstrap
from outrider.drafters.eagle3 import Eagle3Drafter
from outrider.engines.reference.generation import PlainBatch, Running, load_pair, speculate
from outrider.engines.reference.sampling import Request
from outrider.targets.folder import TargetFolder
from outrider.targets.model import TargetModel

SHARED = Path(__file__).parents[3] / "shared"
NUM_TOKENS, MAX_TOKENS, NUM_QUESTIONS, NUM_TIMED = 3, 256, 60, 20
PUBLISHED = {"gsm8k": 2.679, "mt_bench": 1.989}


def main(out_folder: Path) -> None:
    """Write real-drafter.md."""
    folder = SHARED / "drafter-smollm2"
    if not folder.is_dir():
        print(f"skipped: no {folder}")
        return
    target = imported_real_target()
    model, drafter = load_pair(target, folder, torch.float32, torch.device("cpu"))
    assert drafter is not None
    pair = Pair(target, model, drafter)
    rows = [_row(name, published, [pair.drafted(request)[1] for request in pair.requests(name)]) for name, published in PUBLISHED.items()]
    timed = [(pair.plain(request), pair.drafted(request)) for request in pair.requests("gsm8k")[:NUM_TIMED]]
    num_same = sum(plain[0] == drafted[0] for plain, drafted in timed)
    speedup = bootstrap([(plain[1], drafted[2]) for plain, drafted in timed], _ratio)
    assert speedup is not None
    (out_folder / "real-drafter.md").write_text(
        "# A real drafter on the reference engine\n\n"
        f"`make proofs`, on {platform.machine()} with {torch.get_num_threads()} threads, torch {torch.__version__}, float32. The drafter "
        "is one for SmolLM2-135M-Instruct, made elsewhere, whose README gives the published figures (vLLM 0.25.0 on an H200, "
        f"bfloat16). First {NUM_QUESTIONS} questions of each set, K = {NUM_TOKENS}, temperature 0, at most {MAX_TOKENS} tokens, one "
        "request at a time.\n\n"
        "| set | verify steps | acceptance length | interval | published | difference | by position |\n|---|---|---|---|---|---|---|\n"
        + "\n".join(rows)
        + f"\n\nSpeedup on the first {NUM_TIMED} GSM8K questions, with and without in turn: {speedup.value:.2f} "
        f"[{speedup.low:.2f}, {speedup.high:.2f}]; outputs identical token for token in {num_same} of {NUM_TIMED}.\n"
    )


@dataclass(frozen=True)
class Pair:
    """The target and its drafter, in this process."""

    target: TargetFolder
    model: TargetModel
    drafter: Eagle3Drafter

    def requests(self, name: str) -> list[Request]:
        """The first questions of a set."""
        rows = (SHARED / "data" / f"eval_{name}.jsonl").read_text(encoding="utf-8").splitlines()[:NUM_QUESTIONS]
        questions = [json.loads(row)["turns"][0] for row in rows]
        stops = frozenset(self.target.eos_token_ids)
        ids = [self.target.prompt_ids([{"role": "user", "content": question}]) for question in questions]
        return [Request(tuple(prompt), MAX_TOKENS, stop_ids=stops) for prompt in ids]

    def drafted(self, request: Request) -> tuple[list[int], Acceptance, float]:
        """Tokens, acceptance and seconds with the drafter."""
        row, acceptance, started = Running(request), Acceptance(), time.monotonic()
        for _, counts in speculate(self.model, self.drafter, row, NUM_TOKENS):
            acceptance = acceptance + counts
        print(f"{len(row.tokens)} tokens, acceptance length {acceptance.acceptance_length}", flush=True)
        return row.tokens, acceptance, time.monotonic() - started

    @torch.inference_mode()
    def plain(self, request: Request) -> tuple[list[int], float]:
        """Tokens and seconds without it."""
        row, batch, started = Running(request), PlainBatch(self.model), time.monotonic()
        batch.add([row])
        while row.finish_reason is None:
            batch.step()
        return row.tokens, time.monotonic() - started


def _row(name: str, published: float, counted: Sequence[Acceptance]) -> str:
    total = sum(counted, Acceptance())
    interval = bootstrap(counted, lambda some: sum(some, Acceptance()).acceptance_length)
    assert interval is not None
    return (
        f"| {name} | {total.num_verify_steps:,} | {interval.value:.3f} | [{interval.low:.3f}, {interval.high:.3f}] | {published} "
        f"| {interval.value - published:+.3f} | {' '.join(f'{p:.3f}' for p in total.acceptance_at)} |"
    )


def _ratio(times: Sequence[tuple[float, float]]) -> float | None:
    """Seconds without ÷ with, for the same tokens."""
    return sum(plain_s for plain_s, _ in times) / sum(drafted_s for _, drafted_s in times)
