"""The whole job through the real command line: what it gives, what a second run does, and what a change re-runs."""

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from outrider.core.files import file_digest
from outrider.core.names import STAGES
from pipeline.jobs import (
    NUM_GENERAL,
    NUM_TRAINING,
    NUM_WORKLOAD,
    Job,
    environment,
    events,
    outrider,
    processes_of,
    read_rows,
    run_job,
    started,
    wait_for,
)

_RUNNING_FILES = (".lock", "events.jsonl")  # the only ones that a run of nothing may touch


def _json(path: Path) -> Any:
    return json.loads(path.read_text())


def _contents(folder: Path) -> dict[str, str]:
    """Digest of every file below a folder."""
    files = (p for p in folder.rglob("*") if p.is_file() and p.name not in _RUNNING_FILES)
    return {str(p.relative_to(folder)): file_digest(p) for p in files}


def _verdicts(done: "subprocess.CompletedProcess[str]") -> dict[str, str]:
    """What the command said of each stage: "unchanged" or "done"."""
    return dict(re.findall(r"^\[\d+/10\] ([\w-]+): (unchanged|done)", done.stdout, re.MULTILINE))


def _expected(first_done: str) -> dict[str, str]:
    return {stage: "unchanged" if STAGES.index(stage) < STAGES.index(first_done) else "done" for stage in STAGES}


def test_every_stage_runs_once_in_order(straight: Job, straight_run: tuple[Job, "subprocess.CompletedProcess[str]"]) -> None:
    finished = [event["stage"] for event in events(straight) if event["event"] == "stage finished"]
    assert finished == list(STAGES)
    assert _verdicts(straight_run[1]) == dict.fromkeys(STAGES, "done")
    assert not processes_of(straight.folder)


def test_the_measurement_has_its_numbers_and_their_counters(straight: Job) -> None:
    measured = _json(straight.run / "measure.json")
    workload = measured["sets"]["workload"]
    assert list(measured["sets"]) == ["workload", "general"]
    assert measured["acceptance_length"] == workload["acceptance_length"] > 1
    assert measured["speedup"] == workload["speedup"]["value"] > 0
    assert workload["speedup"]["low"] <= workload["speedup"]["value"] <= workload["speedup"]["high"]
    counters, counted = workload["drafted"]["raw_counters"], workload["drafted"]["acceptance"]
    assert counters["reference_num_verify_steps_total"] == counted["num_verify_steps"] > 0
    assert counters["reference_num_accepted_tokens_total"] == counted["num_accepted_tokens"] > 0
    assert workload["acceptance_length"] == pytest.approx(1 + counted["num_accepted_tokens"] / counted["num_verify_steps"])
    assert workload["plain"]["acceptance"] is None
    for arm in ("plain", "drafted"):
        replies = [row for row in read_rows(straight.run / "measure" / "replies.jsonl") if (row["set"], row["arm"]) == ("workload", arm)]
        assert workload[arm]["output_tokens"] == sum(len(row["token_ids"]) for row in replies)
        assert workload[arm]["tok_per_s"] == pytest.approx(workload[arm]["output_tokens"] / workload[arm]["wall_s"])


def test_greedy_outputs_are_identical_in_float32(straight: Job) -> None:
    sets = _json(straight.run / "measure.json")["sets"]
    for name, number in (("workload", NUM_WORKLOAD), ("general", NUM_GENERAL)):
        assert (sets[name]["num_identical"], sets[name]["num_prompts"]) == (number, number)
        assert sets[name]["first_difference"] == {}


def test_replay_counts_what_the_engine_counts(straight: Job) -> None:
    measured, replayed = _json(straight.run / "measure.json")["sets"], _json(straight.run / "replay.json")["sets"]
    assert {name: found["drafted"]["acceptance"] for name, found in measured.items()} == {n: r["total"] for n, r in replayed.items()}
    assert {name: found["drafted"]["by_prompt"] for name, found in measured.items()} == {n: r["by_prompt"] for n, r in replayed.items()}


def test_the_preflights_find_nothing_wrong(straight: Job) -> None:
    for name in ("preflight", "preflight-export"):
        found = _json(straight.run / f"{name}.json")
        assert found["verdict"] in ("pass", "warn", "unknown")
        assert found["findings"]


def test_the_diagnosis_sees_no_integration_fault(straight: Job) -> None:
    judged = _json(straight.run / "diagnose.json")
    assert judged["cause"] in ("as expected", "training", "regime")
    assert judged["sets"]["workload"]["difference"] == {"value": 0, "low": 0, "high": 0}


def test_answers_are_the_engines_own(straight: Job) -> None:
    rows = read_rows(straight.run / "synthesize" / "training" / "answers.jsonl")
    assert len({row["id"] for row in rows}) == len(rows) == NUM_TRAINING


def test_the_report_is_there_and_shows_the_numbers(straight: Job) -> None:
    page = (straight.run / "report" / "report.html").read_text()
    length = _json(straight.run / "measure.json")["acceptance_length"]
    assert page.lstrip().lower().startswith("<!doctype html>")
    assert f"{length:.2f}" in page


def test_a_second_run_changes_nothing_and_says_so(straight: Job, copy_of: Callable[[Job], Job]) -> None:
    job = copy_of(straight)
    shutil.copy(job.run / "run.json", job.folder / "first.json")
    run_job(job)  # a copy lies elsewhere: run.json names the new place
    before = _contents(job.run)
    done = run_job(job)
    assert done.returncode == 0, done.stderr
    assert _verdicts(done) == dict.fromkeys(STAGES, "unchanged")
    assert _contents(job.run) == before
    first, now = _contents(straight.run), _contents(job.run)
    assert {name for name in first if first[name] != now.get(name)} == {"run.json"}


def test_a_changed_setting_reruns_its_stage_and_later_ones_and_keeps_the_old_files(straight: Job, copy_of: Callable[[Job], Job]) -> None:
    job = copy_of(straight)
    job.change("learning_rate = 3e-3", "learning_rate = 1e-3")
    before = _contents(job.run)
    done = run_job(job)
    assert done.returncode == 0, done.stderr
    assert _verdicts(done) == _expected("train")
    now = _contents(job.run)
    moved = [name for name in before if name.split("/")[0] in STAGES[STAGES.index("train") :]]
    assert "train/checkpoint.pt" in moved
    assert set(before) - set(moved) <= set(now)
    for name in moved:
        stage, rest = name.split("/", 1)
        kept = [digest for path, digest in now.items() if re.fullmatch(rf"superseded/{stage}-[0-9a-f]+\+*/{re.escape(rest)}", path)]
        assert before[name] in kept, name
    assert now["train/checkpoint.pt"] != before["train/checkpoint.pt"]


def test_the_results_of_superseded_stages_are_kept_too(straight: Job, copy_of: Callable[[Job], Job]) -> None:
    job = copy_of(straight)
    job.change("num_speculative_tokens = 3", "num_speculative_tokens = 2")
    old = file_digest(job.run / "replay.json")
    done = run_job(job, "replay")
    assert done.returncode == 0, done.stderr
    assert old != file_digest(job.run / "replay.json")
    assert old in _contents(job.run).values(), "the counts of the earlier replay are nowhere in the run folder"


@pytest.mark.parametrize(
    "name",
    [
        "synthesize/training/answers.jsonl",
        "extract/training/shard-00001.safetensors",
        "train/checkpoint.pt",
        "export/drafter/model.safetensors",
    ],
)
def test_a_lost_output_is_made_again(straight: Job, copy_of: Callable[[Job], Job], name: str) -> None:
    job, stage = copy_of(straight), name.split("/")[0]
    before = file_digest(job.run / name)
    (job.run / name).unlink()
    done = run_job(job, stage)
    assert done.returncode == 0, done.stderr
    assert _verdicts(done)[stage] == "done"
    assert file_digest(job.run / name) == before


def test_a_second_process_on_one_run_is_refused(straight: Job, copy_of: Callable[[Job], Job]) -> None:
    job = copy_of(straight)
    shutil.rmtree(job.run)
    with started(job) as first:
        wait_for("the first to begin", lambda: bool(events(job)))
        second = run_job(job)
        assert second.returncode == 2
        assert second.stderr.startswith("error: another outrider works in")
        assert str(first.pid) in second.stderr
        assert second.stderr.count("error:") == 1 and "Traceback" not in second.stderr
        assert first.wait(120) == 0
    assert (job.run / "synthesize.json").exists()


def test_results_alone_give_the_report_again(straight: Job, copy_of: Callable[[Job], Job]) -> None:
    job = copy_of(straight)
    page = job.run / "report" / "report.html"
    page.unlink()
    done = outrider("report", job.run)
    assert done.returncode == 0, done.stderr
    assert page.read_bytes() == (straight.run / "report" / "report.html").read_bytes()
    assert "acceptance length" in done.stdout


def test_results_are_reported_without_torch(straight: Job, copy_of: Callable[[Job], Job]) -> None:
    job = copy_of(straight)
    without_torch = f"""
import sys
sys.modules.update(torch=None, transformers=None, numpy=None)  # importing any of them is an error
from outrider.cli.main import main
sys.argv = ["outrider", "report", {str(job.run)!r}]
main()
"""
    done = subprocess.run([sys.executable, "-c", without_torch], env=environment(), capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert "acceptance length" in done.stdout
