"""The whole job through real vLLM."""

import json

import pytest

from outrider.core.names import STAGES
from outrider.engines.environment import Environment
from pipeline.jobs import Job, events, nothing_left, run_job, write_job


@pytest.fixture(scope="module")
def job(vllm: Environment, tmp_path_factory: pytest.TempPathFactory) -> Job:
    """The job after one run of all stages."""
    made = write_job(tmp_path_factory.mktemp("vllm-job"), head_dim=32)
    made.change('dtype = "float32"\nthreads = 1', f'name = "vllm"\nenvironment = "{vllm.name}"\ndtype = "float32"')
    done = run_job(made, timeout_s=900)
    assert done.returncode == 0, done.stderr
    return made


def test_every_stage_runs(job: Job) -> None:
    assert [event["stage"] for event in events(job) if event["event"] == "stage finished"] == list(STAGES)
    assert nothing_left(job.folder)


def test_replay_counts_what_vllm_counts(job: Job) -> None:
    """In float32 vLLM and transformers agree on every token, so a right integration gives equal counts, step by step."""
    measured = json.loads((job.run / "measure.json").read_text())
    replayed = json.loads((job.run / "replay.json").read_text())
    assert (measured["engine"], measured["engine_version"].split("+")[0]) == ("vllm", "0.32.0")
    for name, found in measured["sets"].items():
        assert found["num_identical"] == found["num_prompts"]
        assert found["drafted"]["by_prompt"] == replayed["sets"][name]["by_prompt"]
    assert measured["acceptance_length"] > 1


def test_the_raw_counters_are_vllms_own(job: Job) -> None:
    found = json.loads((job.run / "measure.json").read_text())["sets"]["workload"]["drafted"]
    assert found["raw_counters"]["vllm:spec_decode_num_drafts_total"] == found["acceptance"]["num_verify_steps"] > 0
    assert found["raw_counters"]["vllm:spec_decode_num_accepted_tokens_total"] >= found["acceptance"]["num_accepted_tokens"]


def test_both_preflights_and_the_diagnosis_hold(job: Job) -> None:
    for name in ("preflight", "preflight-export"):
        findings = {f["id"]: f for f in json.loads((job.run / f"{name}.json").read_text())["findings"]}
        assert all(finding["verdict"] != "fail" for finding in findings.values())
    judged = json.loads((job.run / "diagnose.json").read_text())
    assert judged["cause"] in ("as expected", "training", "regime")
