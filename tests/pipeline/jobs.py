"""A small whole job on the tiny target, run through the real command line; and what is watched around it."""

import contextlib
import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from builders import write_tiny_target
from outrider.core.names import STAGES
from outrider.formats.training import load_training
from outrider.targets.folder import TargetFolder

OUTRIDER = Path(sys.executable).parent / "outrider"
NUM_TRAINING, NUM_WORKLOAD, NUM_GENERAL = 12, 6, 3  # diagnose says nothing of fewer than 6 prompts
_WAIT_S = 180.0
_POLL_S = 0.02

_RUN_TOML = """
[target]
path = "target"

[engine]
dtype = "float32"
threads = 1

[synthesize]
prompts = ["prompts/training.jsonl"]
max_tokens = 24
concurrency = 3
dtype = "float32"

[extract]
aux_layers = [1, 3, 5]
compute_dtype = "float32"
dtype = "float32"
batch_tokens = 256
shard_tokens = 128

[train]
draft_vocab_size = 200
ttt_steps = 3
epochs = 30
batch_tokens = 128
learning_rate = 3e-3
held_out_fraction = 0.2
evaluations = 2
checkpoints = 10

[export]
dtype = "float32"

[measure]
num_speculative_tokens = 3
max_tokens = 24

[measure.prompts]
workload = "prompts/workload.jsonl"
general = "prompts/general.jsonl"
"""


def environment() -> dict[str, str]:
    """One thread and no spinning, so that the numbers do not depend on the machine's load."""
    return {**os.environ, "OMP_NUM_THREADS": "1", "GOMP_SPINCOUNT": "0", "COLUMNS": "200", "NO_COLOR": "1"}


@dataclass(frozen=True)
class Job:
    """A folder with a target, prompts and run.toml; its run is in `run`.

    All that a job starts has the folder's path in its command line.
    """

    folder: Path

    @property
    def run(self) -> Path:
        return self.folder / "run"

    @property
    def config(self) -> Path:
        return self.folder / "run.toml"

    def command(self, until: str = STAGES[-1]) -> list[str]:
        """`outrider run` on this job."""
        return [str(OUTRIDER), "run", str(self.config), "--folder", str(self.run), "--until", until]

    def change(self, old: str, new: str) -> None:
        """Replace one setting's line of run.toml."""
        text = self.config.read_text()
        assert text.count(old) == 1
        self.config.write_text(text.replace(old, new))


def write_job(folder: Path, head_dim: int = 16) -> Job:
    """Write the tiny target, its prompts and run.toml."""
    write_tiny_target(folder / "target", head_dim)
    (folder / "prompts").mkdir()
    training = [f"Is the road number {n} clear?" for n in range(NUM_TRAINING)]
    _write_prompts(folder / "prompts" / "training.jsonl", training)
    _write_prompts(folder / "prompts" / "workload.jsonl", training[:NUM_WORKLOAD])  # learnt by heart: some drafts must be right
    _write_prompts(folder / "prompts" / "general.jsonl", [f"What is nothing, {n} times?" for n in range(NUM_GENERAL)])
    job = Job(folder)
    job.config.write_text(_RUN_TOML)
    return job


def write_wider_target(folder: Path) -> TargetFolder:
    """Write another target than the tiny one: wider, with the same tokenizer."""
    write_tiny_target(folder)
    config = LlamaConfig.from_pretrained(folder)
    config.hidden_size = 80
    LlamaForCausalLM(config).to(torch.float32).save_pretrained(folder)
    return TargetFolder.open(folder)


def _write_prompts(path: Path, prompts: list[str]) -> None:
    path.write_text("".join(json.dumps({"prompt": prompt}) + "\n" for prompt in prompts))


def outrider(*arguments: str | Path, cwd: Path | None = None, timeout_s: float = _WAIT_S) -> subprocess.CompletedProcess[str]:
    """Run the command line to its end."""
    command = [str(OUTRIDER), *map(str, arguments)]
    return subprocess.run(command, env=environment(), cwd=cwd, capture_output=True, text=True, timeout=timeout_s)


def run_job(job: Job, until: str = STAGES[-1], timeout_s: float = _WAIT_S) -> subprocess.CompletedProcess[str]:
    """Run a job's stages to their end."""
    return subprocess.run(job.command(until), env=environment(), capture_output=True, text=True, timeout=timeout_s)


@contextlib.contextmanager
def started(job: Job, until: str = STAGES[-1]) -> Iterator["subprocess.Popen[bytes]"]:
    """A job that runs beside the test, its output in run.log; made to end with the block."""
    with (job.folder / "run.log").open("ab") as log, subprocess.Popen(job.command(until), env=environment(), stdout=log, stderr=log) as cli:
        try:
            yield cli
        finally:
            cli.kill()


def wait_for(what: str, condition: Callable[[], bool], timeout_s: float = _WAIT_S) -> None:
    """Wait until `condition` holds.

    Raises:
        TimeoutError: it did not come to hold in time.
    """
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"waited {timeout_s:.0f} s for: {what}")
        time.sleep(_POLL_S)


def events(job: Job) -> list[dict[str, Any]]:
    """What the run has noted; a line being written is left out."""
    path = job.run / "events.jsonl"
    text = path.read_text() if path.exists() else ""
    return [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]


def processes_of(folder: Path) -> list[psutil.Process]:
    """Processes with the folder's path in their command line."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.NoSuchProcess, psutil.AccessDenied):
            if process.status() != psutil.STATUS_ZOMBIE and any(str(folder) in part for part in process.cmdline()):
                found.append(process)
    return found


def nothing_left(folder: Path, timeout_s: float = 20.0) -> bool:
    """Whether all that had to do with the folder is gone within a few seconds."""
    with contextlib.suppress(TimeoutError):
        wait_for("processes to end", lambda: not processes_of(folder), timeout_s)
    return not processes_of(folder)


@dataclass(frozen=True)
class Kill:
    """A kill that was made: `delay_s` after the stage began; `hit` unless the run had ended before it."""

    stage: str
    delay_s: float
    hit: bool


def kill_within(job: Job, stage: str, rng: random.Random) -> Kill:
    """Start the job up to `stage`, and kill the command (SIGKILL) at a random moment after that stage has begun.

    The delay is drawn over as long as the stage takes, as far as it is known: long where servers start, short elsewhere.
    """
    longest_s = {"synthesize": 7.0, "extract": 0.4, "train": 3.0, "measure": 14.0, "replay": 0.4}.get(stage, 0.05)
    delay_s = rng.uniform(0.0, longest_s)
    before = len(events(job))

    def has_begun() -> bool:
        new = events(job)[before:]
        return cli.poll() is not None or any(event["event"] == "stage started" and event["stage"] == stage for event in new)

    with started(job, stage) as cli:
        wait_for(f"the beginning of {stage}", has_begun)
        with contextlib.suppress(subprocess.TimeoutExpired):
            cli.wait(delay_s)
        hit = cli.poll() is None
        cli.kill()
        cli.wait()
    return Kill(stage, delay_s, hit)


def differences(killed: Path, straight: Path) -> list[str]:
    """How a run that was killed differs from one that was not; empty if it does not.

    Compared byte for byte: answers, stores and the exported folder; bit for bit: tensors, optimiser and step of the
    training checkpoint (its pickle writes strings read from an earlier checkpoint in another way). Of what carries times:
    that no optimiser step and no measured prompt is there twice, none is missing, and the counts are equal.
    """
    patterns = ("synthesize/*/answers.jsonl", "extract/*/*", "export/drafter/*")
    names = sorted(str(p.relative_to(straight)) for pattern in patterns for p in straight.glob(pattern) if p.is_file())
    extra = sorted(str(p.relative_to(killed)) for pattern in patterns for p in killed.glob(pattern) if p.is_file())
    found = [f"{name}: only in one run" for name in sorted(set(names) ^ set(extra))]
    found += [f"{name}: other bytes" for name in names if name in extra and (killed / name).read_bytes() != (straight / name).read_bytes()]
    if _checkpoint(killed) != _checkpoint(straight):
        found.append("train/checkpoint.pt: other content")
    for name in ("answers.partial.jsonl", "self-prompts.partial.jsonl"):
        for path in killed.glob(f"synthesize/*/{name}"):
            found += _repeated(path, [(row["item"],) for row in read_rows(path)])
    found += _other_rows(killed, straight, "train/metrics.jsonl", ("step", "loss", "held_out_loss", "accuracy_at", "held_out_accuracy_at"))
    found += _other_rows(killed, straight, "measure/replies.jsonl", ("set", "arm", "prompt", "token_ids", "counters"))
    if json.loads((killed / "replay.json").read_text())["sets"] != json.loads((straight / "replay.json").read_text())["sets"]:
        found.append("replay.json: other counts")
    return found


def _checkpoint(run: Path) -> dict[str, Any]:
    """All that the training checkpoint holds, tensors as bytes."""
    found = load_training(run / "train" / "checkpoint.pt")
    states = {f"{n}.{name}": value for n, state in found.optimizer["state"].items() for name, value in state.items()}
    return {
        **{name: tensor.numpy().tobytes() for name, tensor in {**found.drafter.tensors, **states}.items()},
        "rest": (found.step, found.identity, found.record, found.drafter.config, found.optimizer["param_groups"]),
    }


def _other_rows(killed: Path, straight: Path, name: str, keys: tuple[str, ...]) -> list[str]:
    mine, theirs = (
        [tuple(json.dumps(_comparable(row.get(key))) for key in keys) for row in read_rows(folder / name)] for folder in (killed, straight)
    )
    found = _repeated(killed / name, [(row[:3] if "measure" in name else (row[0], row[1] == "null")) for row in mine])
    return found + ([f"{name}: other rows"] if mine != theirs else [])


def _comparable(value: Any) -> Any:
    """Counters without the number of requests, which the engine raises only after an answer has left."""
    return {k: v for k, v in value.items() if k != "reference_requests_total"} if isinstance(value, dict) else value


def _repeated(path: Path, keys: list[tuple[Any, ...]]) -> list[str]:
    return [f"{path.name}: {key} is there {keys.count(key)} times" for key in sorted(set(keys)) if keys.count(key) > 1]


def read_rows(path: Path) -> list[dict[str, Any]]:
    """The rows of a JSONL file."""
    return [json.loads(line) for line in path.read_text().splitlines()]
