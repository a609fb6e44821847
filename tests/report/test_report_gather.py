"""What a report reads from a run folder: all that is there, and nothing that is not."""

import json
import tomllib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from run_folders import FAIL, UNKNOWN, WARN, config_of, full_results, preflight, training_log, write_run

from outrider.core.config import RunConfig
from outrider.core.errors import InputError
from outrider.report.findings import checked, details, engine_of, tally
from outrider.report.gather import gather
from outrider.report.provenance import as_toml

_STAGES = ("preflight", "synthesize", "extract", "train", "export", "preflight-export", "measure", "replay", "diagnose")


def test_a_full_run(tmp_path: Path) -> None:
    results = full_results()
    data = gather(write_run(tmp_path / "mine", results, config_of(workload="w.jsonl"), log=True))
    assert {name: data.results.of(name) for name in _STAGES} == results
    assert data.run_name == "mine"
    assert [s.name for s in data.sets] == ["workload", "outside"]
    assert [s.num_shared_prompts for s in data.sets] == [0, 3]
    assert [s.diagnosis.cause for s in data.sets if s.diagnosis] == ["as expected", "undecided"]
    assert [s.replayed.num_verify_steps for s in data.sets if s.replayed] == [4790, 6120]
    assert [check.subject for check in data.preflights] == ["planned drafter", "exported folder"]
    assert [stage.name for stage in data.stages] == list(_STAGES)
    assert all(stage.made and stage.wall_s is not None and len(stage.inputs_digest) == 64 for stage in data.stages)
    assert data.config is not None and data.config["measure"]["prompts"] == {"workload": "w.jsonl"}
    assert data.versions["outrider"] and data.versions["python"]


def test_an_empty_run_has_no_numbers(tmp_path: Path) -> None:
    data = gather(write_run(tmp_path, {}))
    assert all(data.results.of(name) is None for name in _STAGES)
    assert all(stage.made is None and stage.wall_s is None for stage in data.stages)
    assert (data.sets, data.preflights, data.config, data.curve.loss) == ((), (), None, ())
    assert data.curve.problem == "There is no training log."


def test_the_curve_is_the_log(tmp_path: Path) -> None:
    curve = gather(write_run(tmp_path, {}, log=True)).curve
    log = training_log()
    assert curve.loss == tuple((line["step"], line["loss"]) for line in log if "loss" in line)
    assert [step for step, _ in curve.held_out_loss] == [240, 480, 720, 960, 1200]
    assert [len(points) for points in curve.held_out_accuracy_at] == [5, 5, 5, 5]
    assert curve.problem == ""


def _write_log(run: Path, text: str) -> None:
    (run / "train").mkdir(parents=True)
    (run / "train" / "metrics.jsonl").write_text(text, encoding="utf-8")


def test_a_log_cut_in_mid_line_is_shown_to_there(tmp_path: Path) -> None:
    _write_log(tmp_path, '{"step": 1, "loss": 3.5}\n{"step": 2, "lo')
    curve = gather(write_run(tmp_path, {})).curve
    assert curve.loss == ((1, 3.5),)
    assert "Only the beginning" in curve.problem


def test_a_step_logged_again_after_a_restart_counts_once(tmp_path: Path) -> None:
    _write_log(tmp_path, '{"step": 2, "loss": 3.5}\n{"step": 1, "loss": 3.9}\n{"step": 2, "loss": 3.4}\n')
    assert gather(write_run(tmp_path, {})).curve.loss == ((1, 3.9), (2, 3.4))


def test_other_values_in_the_log_are_passed_over(tmp_path: Path) -> None:
    lines = ('{"step": 1, "loss": null, "held_out_accuracy_at": 3}', '{"loss": 1.0}', '{"step": 2, "held_out_accuracy_at": [0.5, "x"]}')
    _write_log(tmp_path, "\n".join(lines))
    curve = gather(write_run(tmp_path, {})).curve
    assert curve.loss == ()
    assert curve.held_out_accuracy_at[0] == ((2, 0.5),)


@pytest.mark.parametrize("record", ['{"result": {"unknown": 1}, "wall_s": 1}', "{}", "[]"])
def test_a_result_of_another_version_is_an_input_error(tmp_path: Path, record: str) -> None:
    (tmp_path / "replay.json").write_text(record)
    with pytest.raises(InputError, match="stage replay") as caught:
        gather(write_run(tmp_path, {}))
    assert "replay.json" in caught.value.evidence


def test_findings_are_sorted_worst_first() -> None:
    found = checked("planned drafter", preflight(WARN, UNKNOWN, FAIL))
    assert (found.open, found.unknown, len(found.passed)) == ((FAIL, WARN), (UNKNOWN,), 24)
    assert tally(found.result) == "1 fail, 1 warn, 1 unknown, 24 pass"
    assert engine_of(found.result) == "vllm 0.16.0, V1 runner"
    assert engine_of(preflight(runner=None)) == "vllm 0.16.0"
    assert [name for name, _ in details(FAIL)] == ["found", "expected", "evidence", "effect", "fix"]
    assert details(UNKNOWN) == (("evidence", "drafter/model.safetensors: no such file"),)


def test_a_preflight_without_checks_is_said() -> None:
    assert tally(preflight().model_copy(update={"findings": ()})) == "no check"


def test_the_configuration_as_toml_is_the_configuration() -> None:
    config = config_of(**{"a.b": "x.jsonl", 'quo"te': 'C:\\x "y"\n', "ünï": "z"})
    text = as_toml(json.loads(config.model_dump_json()))
    assert RunConfig.model_validate(tomllib.loads(text)) == config


_TEXT = st.text(st.characters(exclude_categories=["Cs"]))
_LEAVES = st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False) | _TEXT
_TABLES = st.dictionaries(
    _TEXT, st.recursive(_LEAVES, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_TEXT, inner, max_size=3), max_leaves=8)
)


@given(config=_TABLES)
def test_any_configuration_survives_toml(config: dict[str, Any]) -> None:
    assert tomllib.loads(as_toml(config)) == config


def test_keys_without_a_value_are_left_out() -> None:
    assert as_toml({"a": None, "b": {"c": None, "d": 1}}) == "[b]\nd = 1\n"
