"""`outrider diagnose` on a measurement made in this process by the reference engine: sound, broken, miscounted, and not there."""

import json
from dataclasses import dataclass
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner, Result

from builders import greedy_answer, random_drafter, write_drafter
from outrider.cli.diagnose import diagnose
from outrider.core.errors import InputError
from outrider.core.record import RunFolder
from outrider.core.results import Acceptance, ArmResult, DiagnoseResult, MeasureResult, ReplayResult, SetMeasurement
from outrider.drafters.eagle3 import Eagle3Drafter
from outrider.engines.reference.generation import Running, speculate
from outrider.engines.reference.sampling import Request
from outrider.targets.folder import TargetFolder
from outrider.targets.model import TargetModel

K, MAX_TOKENS = 3, 24
Prompt = tuple[int, ...]


@dataclass(frozen=True)
class Served:
    """A target and its greedy answers."""

    folder: TargetFolder
    model: TargetModel
    answers: dict[Prompt, list[int]]

    def counts(self, drafter: Eagle3Drafter) -> dict[str, Acceptance]:
        """What the reference engine counts for each prompt with a drafter."""
        return {f"p{i}": self._of_prompt(drafter, prompt) for i, prompt in enumerate(self.answers)}

    def _of_prompt(self, drafter: Eagle3Drafter, prompt: Prompt) -> Acceptance:
        row = Running(Request(prompt, MAX_TOKENS, stop_ids=frozenset(self.folder.eos_token_ids)))
        return sum((step for _, step in speculate(self.model, drafter, row, K)), Acceptance())


def _arm(by_prompt: dict[str, Acceptance]) -> ArmResult:
    total = sum(by_prompt.values(), Acceptance()) if by_prompt else None
    return ArmResult(output_tokens=9, wall_s=1.0, tok_per_s=9.0, acceptance=total, by_prompt=by_prompt, raw_counters={})


def _measurement(path: Path, served: Served, by_prompt: dict[str, Acceptance]) -> Path:
    """A folder as `outrider measure` leaves it."""
    drafted = _arm(by_prompt)
    length = drafted.acceptance.acceptance_length if drafted.acceptance else None
    of_set = SetMeasurement(
        plain=_arm({}),
        drafted=drafted,
        acceptance_length=length,
        acceptance_length_interval=None,
        speedup=None,
        speedup_missing="it was not timed",
        num_prompts=len(by_prompt),
        num_identical=len(by_prompt),
        first_difference={},
        num_distinct_answers=len(by_prompt),
    )
    result = MeasureResult(
        engine="reference",
        engine_version="1",
        num_speculative_tokens=K,
        temperature=0.0,
        max_tokens=MAX_TOKENS,
        acceptance_length=length,
        speedup=None,
        sets={"mine": of_set},
    )

    def work(place: Path) -> MeasureResult:
        rows = [
            {"set": "mine", "arm": arm, "prompt": f"p{i}", "prompt_ids": prompt, "token_ids": answer}
            for i, (prompt, answer) in enumerate(served.answers.items())
            for arm in ("plain", "drafted")
        ]
        (place / "replies.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
        return result

    RunFolder(path).stage("measure", {}, MeasureResult, work)
    return path


@pytest.fixture(scope="module")
def served(tiny_target: TargetFolder, tiny_model: TargetModel, tiny_taught: Eagle3Drafter, tiny_prompts: list[Prompt]) -> Served:
    answers = {prompt: greedy_answer(tiny_model, prompt, MAX_TOKENS, tiny_target.eos_token_ids) for prompt in tiny_prompts[:10]}
    return Served(tiny_target, tiny_model, answers)


@pytest.fixture(scope="module")
def sound(served: Served, tiny_taught: Eagle3Drafter) -> dict[str, Acceptance]:
    """What the engine counts when it serves the drafter that was taught."""
    return served.counts(tiny_taught)


def _told(*options: object) -> Result:
    app = typer.Typer()
    app.command()(diagnose)
    return CliRunner().invoke(app, [str(option) for option in options])


def test_an_engine_that_serves_rightly(tmp_path: Path, served: Served, sound: dict[str, Acceptance], tiny_taught_folder: Path) -> None:
    place = _measurement(tmp_path, served, sound)
    options = ("--target", served.folder.path, "--drafter", tiny_taught_folder, "--measured", place)
    done = _told(*options)
    assert done.exit_code == 0, done.output
    lines = done.stdout.splitlines()
    assert lines[0] == "not measured: no speedup on mine: it was not timed"
    assert lines[1].startswith("diagnosis: as expected; on mine, the engine serves the drafter as replay says")
    found = RunFolder(place).result("diagnose", DiagnoseResult)
    difference = found.sets["mine"].difference
    assert difference is not None and (difference.low, difference.high) == (0, 0)
    assert RunFolder(place).result("replay", ReplayResult).sets["mine"].by_prompt == sound
    written = (place / "diagnose.json").stat().st_mtime_ns
    assert _told(*options).exit_code == 0
    assert (place / "diagnose.json").stat().st_mtime_ns == written, "the same inputs are not diagnosed again"


def test_an_engine_that_serves_another_drafter_than_it_was_given(tmp_path: Path, served: Served, tiny_taught_folder: Path) -> None:
    place = _measurement(tmp_path / "measured", served, served.counts(random_drafter(served.folder).eval()))
    out = tmp_path / "out"
    done = _told("--target", served.folder.path, "--drafter", tiny_taught_folder, "--measured", place, "--out", out)
    assert done.exit_code == 1, done.output
    assert "diagnosis: integration; on mine, the engine accepts less" in done.stdout and "next: position 1" in done.stdout
    assert RunFolder(out).result("diagnose", DiagnoseResult).cause == "integration"
    assert not (place / "diagnose.json").exists()


def test_a_replay_of_a_worse_drafter_makes_the_measurement_invalid(tmp_path: Path, served: Served, sound: dict[str, Acceptance]) -> None:
    place = _measurement(tmp_path / "measured", served, sound)
    worse = write_drafter(random_drafter(served.folder), tmp_path / "worse")
    done = _told("--target", served.folder.path, "--drafter", worse, "--measured", place)
    assert done.exit_code == 4, done.output
    assert "diagnosis: invalid" in done.stdout


@pytest.mark.parametrize("missing", ["measure.json", "measure/replies.jsonl"])
def test_a_measurement_that_is_not_there(
    tmp_path: Path, served: Served, sound: dict[str, Acceptance], tiny_taught_folder: Path, missing: str
) -> None:
    place = _measurement(tmp_path, served, sound)
    (place / missing).unlink()
    done = _told("--target", served.folder.path, "--drafter", tiny_taught_folder, "--measured", place)
    assert isinstance(done.exception, InputError) and missing in done.exception.evidence
