"""Kill -9 in every stage: what was finished is kept, nothing is done twice, and the end is that of a run never killed."""

import random
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from outrider.core.names import STAGES
from pipeline.jobs import (
    Job,
    differences,
    events,
    kill_within,
    nothing_left,
    processes_of,
    read_rows,
    run_job,
    started,
    wait_for,
    write_job,
)

_SEED = time.time_ns() % 1_000_000


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Job]:
    """One job, killed once in each stage and then run to its end."""
    job = write_job(tmp_path_factory.mktemp("killed"))
    rng = random.Random(_SEED)
    for stage in STAGES:
        kill = kill_within(job, stage, rng)
        print(f"seed {_SEED}: {kill}")
        assert nothing_left(job.folder), f"{stage}: {[p.cmdline() for p in processes_of(job.folder)]}"
    done = run_job(job)
    assert done.returncode == 0, done.stderr
    yield job


def test_the_end_is_that_of_a_run_never_killed(killed: Job, straight: Job) -> None:
    assert differences(killed.run, straight.run) == [], f"seed {_SEED}"


def test_no_finished_stage_was_begun_again(killed: Job) -> None:
    finished: set[str] = set()
    for event in events(killed):
        if event["event"] == "stage started":
            assert event["stage"] not in finished, f"seed {_SEED}"
        elif event["event"] == "stage finished":
            finished.add(event["stage"])
    assert finished == set(STAGES)


def test_nothing_half_written_is_left(killed: Job) -> None:
    left = [p for p in killed.run.rglob("*") if p.name.endswith(".tmp") and not _is_of_a_killed_process(p)]
    assert left == [], f"seed {_SEED}"


def _is_of_a_killed_process(path: Path) -> bool:
    """`.NAME.PID.tmp` of a process that is gone: a few bytes that nobody reads."""
    parts = path.name.split(".")
    return len(parts) > 3 and parts[-2].isdigit() and not psutil.pid_exists(int(parts[-2]))


def test_a_killed_engine_is_one_clear_error_and_a_second_run_finishes(straight: Job, tmp_path: Path) -> None:
    job = write_job(tmp_path)
    journal = job.run / "synthesize" / "training" / "answers.partial.jsonl"
    with started(job, "synthesize") as cli:
        wait_for("the first answers", lambda: journal.exists() and journal.stat().st_size > 0)
        for process in processes_of(job.folder):
            if "outrider.engines.reference.server" in process.cmdline() and "outrider.core.guard" not in process.cmdline():
                process.kill()
        code = cli.wait(60)
    said = (job.folder / "run.log").read_text()
    assert code == 3, said
    assert said.count("error:") == 1 and "Traceback" not in said
    assert nothing_left(job.folder)
    assert 0 < len(read_rows(journal)) < 12
    done = run_job(job, "synthesize")
    assert done.returncode == 0, done.stderr
    place = Path("synthesize") / "training" / "answers.jsonl"
    assert (job.run / place).read_bytes() == (straight.run / place).read_bytes()
