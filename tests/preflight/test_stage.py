"""The stage: its verdict, what it refuses, what it prints, and the drafter that is only planned."""

import io
import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import typer
from rich.console import Console
from typer.testing import CliRunner

from builders import write_drafter as write_drafter_of
from outrider.cli.preflight import preflight as command
from outrider.core.errors import FindingFailed, InputError
from outrider.core.results import PreflightResult
from outrider.drafters.eagle3 import Eagle3Drafter
from outrider.engines.environment import own_environment
from outrider.engines.reference.facts import facts_of as reference_facts
from outrider.preflight.planned import planned_config, planned_eagle3
from outrider.preflight.stage import all_checks, preflight, require
from outrider.preflight.terminal import print_preflight
from outrider.targets.folder import TargetFolder
from outrider.targets.weights import embedding
from outrider.train.drafter import config_for
from preflight.folders import DRAFTER, LISTED, TARGET, VLLM, drafter_tensors, write_drafter, write_target


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return write_target(tmp_path / "target")


@pytest.fixture
def drafter(tmp_path: Path) -> Path:
    return write_drafter(tmp_path / "drafter")


def deep(levels: int) -> object:
    """Lists within lists."""
    value: object = 1
    for _ in range(levels):
        value = [value]
    return value


def test_checks_are_those_of_the_files_in_order() -> None:
    ids = [check.id for check in all_checks()]
    assert ids == [
        "engine_facts",
        "method_known",
        "target_types",
        "drafter_architecture",
        "method_fits",
        "remote_code",
        "serve_flags",
        "parallel_limits",
        "image_token",
        "target_interface",
        "drafter_class",
        "tensor_names",
        "tensor_shapes",
        "vocabulary_map",
        "aux_layers",
        "target_tensors",
        "tokenizer",
        "known_faults",
    ]


def test_a_sound_drafter_passes_every_check(target: Path, drafter: Path) -> None:
    result = preflight(target, drafter, VLLM)
    assert result.verdict == "pass" and {finding.verdict for finding in result.findings} == {"pass"}
    assert (result.engine.name, result.engine.version, result.engine.runner) == ("vllm", "0.32.0", "V1")
    require(result)


def test_the_verdict_is_the_worst(tmp_path: Path, target: Path) -> None:
    assert preflight(target, DRAFTER, VLLM).verdict == "unknown"
    odd = write_drafter(tmp_path / "odd", DRAFTER | {"eos_token_id": 7, "speculators_model_type": "eagle3"})
    assert preflight(target, odd, VLLM).verdict == "warn"
    wrong = write_drafter(tmp_path / "wrong", DRAFTER | {"eos_token_id": 7, "architectures": ["Foo"]})
    assert preflight(target, wrong, VLLM).verdict == "fail"


def test_what_failed_stops_with_all_its_parts(tmp_path: Path, drafter: Path) -> None:
    target = write_target(tmp_path / "other", TARGET | {"model_type": "kimi_k2", "architectures": ["OlderForCausalLM"]})
    with pytest.raises(FindingFailed) as caught:
        require(preflight(target, drafter, LISTED))
    error = caught.value
    assert error.exit_code == 1
    assert error.what.endswith('of type "kimi_k2" (and 1 more failed: target_interface)')
    assert "found" in error.evidence and "expected one of llama, qwen" in error.evidence and "speculative.py:689" in error.evidence
    assert error.effect and error.fix


def test_what_could_not_be_checked_does_not_stop(target: Path) -> None:
    require(preflight(target, DRAFTER, VLLM))


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (lambda target, drafter: (target / "config.json").unlink(), "the target's config is missing"),
        (lambda target, drafter: (target / "config.json").write_text("{"), "the target's config is not valid JSON"),
        (lambda target, drafter: (target / "config.json").write_text("[]"), "the target's config is not an object"),
        (lambda target, drafter: (drafter / "config.json").write_text("[" * 5000), "the drafter's config is not valid JSON"),
        (lambda target, drafter: (drafter / "config.json").write_text(json.dumps({"a": deep(90)})), "64 levels"),
        (lambda target, drafter: (drafter / "config.json").write_text('{"a": 1' + "0" * 5000 + "}"), "not valid JSON"),
        (lambda target, drafter: (drafter / "model.safetensors").write_bytes(b"short"), "truncated or damaged"),
        (lambda target, drafter: (target / "model.safetensors.index.json").write_text('{"weight_map": {"a": "b.safetensors"}}'), "missing"),
        (lambda target, drafter: drafter.rename(drafter.with_name("away")), "no drafter at"),
        (lambda target, drafter: target.rename(target.with_name("away")), "no target at"),
    ],
)
def test_what_cannot_be_read_is_an_input_error(target: Path, drafter: Path, damage: object, says: str) -> None:
    assert callable(damage)
    damage(target, drafter)
    with pytest.raises(InputError) as caught:
        preflight(target, drafter, VLLM)
    assert says in caught.value.what
    assert caught.value.evidence


def test_a_target_may_be_a_config_and_an_index(target: Path, drafter: Path) -> None:
    (target / "model.safetensors").unlink()
    (target / "model.safetensors.index.json").write_text(
        json.dumps({"weight_map": dict.fromkeys(("model.embed_tokens.weight", "lm_head.weight"), "model-00001-of-00064.safetensors")})
    )
    assert preflight(target, drafter, VLLM).verdict == "pass"


def test_the_planned_drafter_is_what_export_writes(tmp_path: Path, tiny_target: TargetFolder) -> None:
    layers, size = (1, 3, 5), 200
    config = config_for(tiny_target, layers, size, 96)
    drafter = Eagle3Drafter(config, embedding(tiny_target), torch.arange(size))
    written = json.loads((write_drafter_of(drafter, tmp_path / "drafter") / "config.json").read_text())
    assert planned_config(tiny_target, layers, size, 96, "float32") == written


def test_a_planned_vocabulary_is_no_larger_than_the_targets(tiny_target: TargetFolder) -> None:
    assert planned_config(tiny_target, (1, 3, 5), 32000, None, "bfloat16")["draft_vocab_size"] == tiny_target.vocab_size


def test_a_drafter_is_planned_from_a_config_alone(shared: Path) -> None:
    planned = planned_eagle3(shared / "configs" / "kimi-k2.5")
    assert planned["eagle_aux_hidden_state_layer_ids"] == [2, 30, 58]
    assert planned["hidden_size"] == 7168 and planned["eos_token_id"] == 163585
    facts = reference_facts(own_environment("reference", "0.1.0"))
    told = {finding.id: finding.verdict for finding in preflight(shared / "configs" / "kimi-k2.5", planned, facts).findings}
    assert "fail" not in told.values() and told["target_interface"] == told["aux_layers"] == "pass"


@pytest.mark.parametrize(
    "changes", [{"num_attention_heads": None}, {"num_attention_heads": 0}, {"rope_theta": "far"}, {"hidden_size": [1]}]
)
def test_a_drafter_that_cannot_be_planned_is_an_input_error(tmp_path: Path, changes: dict[str, object]) -> None:
    target = write_target(tmp_path / "target", TARGET | changes)
    with pytest.raises(InputError, match="no drafter can be planned"):
        planned_eagle3(target)


def test_a_drafter_is_planned_for_a_target_without_a_width_of_its_own(tmp_path: Path) -> None:
    """Mixtures of experts state the width of an expert alone."""
    config = {key: value for key, value in TARGET.items() if key != "intermediate_size"} | {"moe_intermediate_size": 4, "num_experts": 8}
    target = write_target(tmp_path / "target", config)
    assert planned_eagle3(target)["intermediate_size"] == 4 * TARGET["hidden_size"]
    assert planned_eagle3(write_target(tmp_path / "dense"))["intermediate_size"] == TARGET["intermediate_size"]
    with pytest.raises(InputError, match="no drafter can be planned"):
        planned_eagle3(write_target(tmp_path / "wrong", config | {"intermediate_size": "wide"}))


def test_a_planned_drafter_of_our_own_target_passes(tiny_target: TargetFolder) -> None:
    facts = reference_facts(own_environment("reference", "0.1.0"))
    result = preflight(tiny_target.path, planned_config(tiny_target, (1, 3, 5), 200, None, "bfloat16"), facts)
    assert {finding.verdict for finding in result.findings} == {"pass", "unknown"}


def test_an_exported_drafter_passes_with_its_record(tmp_path: Path, tiny_target: TargetFolder, tiny_drafter: Path) -> None:
    facts = reference_facts(own_environment("reference", "0.1.0"))
    assert preflight(tiny_target.path, tiny_drafter, facts).verdict == "pass"


def printed(result: PreflightResult) -> str:
    console = Console(file=io.StringIO(), width=100, soft_wrap=True, color_system=None)
    print_preflight(result, console)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_findings_are_printed_with_their_parts_and_passes_in_a_line(tmp_path: Path, drafter: Path) -> None:
    target = write_target(tmp_path / "kimi", TARGET | {"model_type": "kimi_k2"})
    lines = printed(preflight(target, drafter, LISTED)).splitlines()
    failing = [line.startswith("FAIL ") for line in lines]
    first = failing.index(True)
    assert lines[first].startswith('FAIL    target_types          vllm 0.16.0 does not accept eagle3 for targets of type "kimi_k2"')
    assert [line.split()[0] for line in lines[first + 1 : first + 6]] == ["found", "expected", "evidence", "effect", "fix"]
    num_passes = sum(line.startswith("pass ") for line in lines)
    assert sum(failing) == 1 and num_passes == len(all_checks()) - 1
    assert lines[-2] == f"vllm 0.16.0, V1 runner: fail (1 fail, {num_passes} pass)"


def test_nothing_of_a_file_acts_on_the_terminal(tmp_path: Path, drafter: Path) -> None:
    target = write_target(tmp_path / "\x1b[2Jred", TARGET | {"model_type": "\x1b[31m[bold]\ud800"})
    text = printed(preflight(target, drafter, LISTED))
    assert "\x1b" not in text and "[bold]" in text and "\\ud800" in text


def invoke(*arguments: str) -> tuple[int, str]:
    app = typer.Typer()
    app.command()(command)
    result = CliRunner().invoke(app, arguments)
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result.exit_code, result.output


def test_the_command_tells_by_its_exit_code(tmp_path: Path, target: Path, drafter: Path) -> None:
    asked = ("--target", str(target), "--drafter")
    assert invoke(*asked, str(drafter))[0] == 0
    assert invoke(*asked, str(drafter), "--strict")[0] == 0
    assert invoke(*asked, "eagle3")[0] == 0
    assert invoke(*asked, "eagle3", "--strict")[0] == 1
    bare = {name: tensor for name, tensor in drafter_tensors().items() if name != "fc.weight"}
    code, text = invoke(*asked, str(write_drafter(tmp_path / "bare", tensors=bare)))
    assert code == 1 and "FAIL    tensor_names" in text


def test_the_command_prints_one_json_object(target: Path, drafter: Path) -> None:
    code, text = invoke("--target", str(target), "--drafter", str(drafter), "--json")
    result = PreflightResult.model_validate_json(text)
    assert code == 0 and result.verdict == "pass" and len(result.findings) == len(all_checks())
    told = json.loads(text)
    assert set(told) == {"verdict", "engine", "findings"} and set(told["engine"]) == {"name", "version", "runner", "source"}
    keys = {"id", "verdict", "title", "found", "expected", "evidence", "effect", "fix"}
    assert all(set(finding) == keys and finding["verdict"] in ("pass", "warn", "fail", "unknown") for finding in told["findings"])


def test_the_json_of_a_path_that_is_no_text(tmp_path: Path, drafter: Path) -> None:
    target = write_target(tmp_path / os.fsdecode(b"odd\xff\x1b"))
    code, text = invoke("--target", str(target), "--drafter", str(drafter), "--json")
    assert code == 0 and text.isascii() and "odd\\udcff\\u001b" in text
    assert json.loads(text)["verdict"] == "pass"


def test_a_drafter_that_is_neither_folder_nor_algorithm(target: Path) -> None:
    app = typer.Typer()
    app.command()(command)
    result = CliRunner().invoke(app, ["--target", str(target), "--drafter", "eagel3"])
    assert isinstance(result.exception, InputError)
    assert result.exception.exit_code == 2 and "eagle3" in result.exception.fix


def test_no_torch_is_imported() -> None:
    code = """
import sys
from outrider.cli.preflight import preflight
import outrider.preflight.planned, outrider.preflight.terminal
from outrider.engines.serving import engine_named
from outrider.engines.environments import environment_for
from outrider.preflight.stage import all_checks
engine = engine_named("reference")
engine.facts(environment_for(engine, None, None))
engine_named("vllm")
all_checks()
heavy = {"torch", "transformers", "numpy", "vllm"} & set(sys.modules)
sys.exit(f"imported: {heavy}" if heavy else 0)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr


def test_the_engine_of_a_result_is_that_of_its_facts(target: Path, drafter: Path) -> None:
    result = preflight(target, drafter, replace(VLLM, runner=None, version="9.9"))
    assert (result.engine.runner, result.engine.version, result.engine.source) == (None, "9.9", VLLM.source)
