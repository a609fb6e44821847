"""The list of target types is lifted in old vLLM, in each of its processes, and put back without a trace."""

import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from engines.gate_rig import listing, old_vllm, said_by, source_digest
from outrider.core.errors import EngineFailed, InputError
from outrider.engines.engine import ServeSpec
from outrider.engines.environment import Environment
from outrider.engines.environments import environment_for
from outrider.engines.facts import Listed
from outrider.engines.gates import PLUGIN, VARIABLE, is_refused, launch_env, lift, lifted_types, require_list, restore, with_lifted
from outrider.engines.serving import engine_named
from outrider.targets.folder import TargetFolder

OUTRIDER = Path(sys.executable).parent / "outrider"
VLLM = engine_named("vllm")
SIZES = {"hidden_size": 64, "intermediate_size": 128, "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 300}
DRAFTER = SIZES | {"architectures": ["LlamaForCausalLMEagle3"], "model_type": "llama", "num_hidden_layers": 1, "draft_vocab_size": 300}
GRANITE = SIZES | {"architectures": ["GraniteForCausalLM"], "model_type": "granite", "num_hidden_layers": 4}
PHI = SIZES | {"architectures": ["PhiForCausalLM"], "model_type": "phi", "num_hidden_layers": 4}
NOT_FOR_TENSORS = "'tensor_parallel_size' is not a valid argument"


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Targets of two types that no list names, and a drafter: configs are enough."""
    folder = tmp_path_factory.mktemp("configs")
    for name, config in {"granite": GRANITE, "phi": PHI, "drafter": DRAFTER}.items():
        (folder / name).mkdir()
        (folder / name / "config.json").write_text(json.dumps(config | {"max_position_embeddings": 512, "torch_dtype": "float32"}))
    return folder


def case(folders: Path, target: Path, **more: Any) -> dict[str, Any]:
    speculative = {"method": "eagle3", "model": str(folders / "drafter"), "num_speculative_tokens": 2}
    return {"model": str(target), "dtype": "float32", "max_model_len": 256, "speculative_config": speculative | more}


def environ(**more: str) -> dict[str, str]:
    # Python is to leave behind what it leaves behind
    return {**os.environ, "HF_HUB_OFFLINE": "1", "PYTHONSAFEPATH": "1", "PYTHONDONTWRITEBYTECODE": "", **more}


def outrider(*arguments: str, **more: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([OUTRIDER, *arguments], capture_output=True, text=True, env={**os.environ, **more}, check=False)


def test_the_list_of_0_16_0_is_lifted_and_restored(vllm: Environment, folders: Path, shared: Path, tmp_path: Path) -> None:
    """With a target of a latent-attention type, which another type would turn into a target without."""
    python = old_vllm("0.16.0", vllm, tmp_path / "venv")
    place = environment_for(VLLM, None, python)
    granite, kimi = case(folders, folders / "granite"), case(folders, shared / "configs" / "kimi-k2.5")
    wrong, other = case(folders, folders / "granite", tensor_parallel_size=2), case(folders, folders / "phi")
    refused = said_by(python, [granite, kimi], environ())
    for process in ("parent", "child"):
        assert "Eagle3 is only supported for ['llama'" in refused[process][0]["error"]
        assert "model_type='kimi_k2'" in refused[process][1]["error"]
    before, source = listing(place.packages), source_digest(place.packages)

    lifting = ("engine", "gate", "lift", "--engine-python", str(python), "--model-type", "kimi_k2", "--model-type", "granite")
    assert outrider(*lifting, "--target", str(tmp_path / "nowhere")).returncode == 2
    assert listing(place.packages) == before, "what cannot be read is told before anything is put in"
    done = outrider(*lifting, "--target", str(shared / "configs" / "kimi-k2.5"))
    assert done.returncode == 0, done.stderr
    assert "target_interface would still fail" in done.stdout and "target_types would" not in done.stdout
    assert "before   Value error, Eagle3 is only supported for" in done.stdout
    assert "after    kimi_k2 is accepted" in done.stdout
    assert lifted_types(place) == ("granite", "kimi_k2")
    said = said_by(python, [granite, kimi, wrong, other], environ())
    for process in ("parent", "child"):
        accepted, latent, still_wrong, still_refused = said[process]
        assert (accepted["error"], accepted["model_type"], accepted["kind"]) == (None, "granite", "ModelConfig")
        assert (latent["error"], latent["model_type"], latent["use_mla"], latent["same_target"]) == (None, "kimi_k2", True, True)
        assert NOT_FOR_TENSORS in still_wrong["error"]
        assert "model_type='phi'" in still_refused["error"]
    kept_out = said_by(python, [granite], environ(VLLM_PLUGINS=""))
    assert kept_out["parent"][0] == kept_out["child"][0] == refused["parent"][0]

    status = outrider("engine", "gate", "status", "--engine-python", str(python))
    assert "lifted   granite, kimi_k2" in status.stdout and str(place.packages / PLUGIN) in status.stdout
    assert (place.packages / PLUGIN / "__pycache__").is_dir(), "else its removal is not tested"
    done = outrider("engine", "gate", "restore", "--engine-python", str(python))
    assert (done.returncode, "lifted were granite, kimi_k2" in done.stdout) == (0, True), done.stderr
    assert listing(place.packages) == before
    assert source_digest(place.packages) == source


def test_the_list_of_0_21_0_is_lifted_for_launches_of_ours_and_of_others(vllm: Environment, folders: Path, tmp_path: Path) -> None:
    python = old_vllm("0.21.0", vllm, tmp_path / "venv")
    place = environment_for(VLLM, None, python)
    granite, other = case(folders, folders / "granite"), case(folders, folders / "phi")
    # the validator of this version writes to the configuration that it checks
    rewritten = case(folders, folders / "granite", rejection_sample_method="synthetic", synthetic_acceptance_length=2.0)
    before, source = listing(place.packages), source_digest(place.packages)

    spec = ServeSpec(folders / "granite", folders / "drafter", 2, "float32", 0, lift_target_types=("granite",))
    said = said_by(python, [granite, rewritten, other], environ(**VLLM.launch(place, spec).env))
    for process in ("parent", "child"):
        accepted, consolidated, still_refused = said[process]
        assert (accepted["error"], accepted["model_type"], accepted["rates"]) == (None, "granite", None)
        assert consolidated["error"] is None and len(consolidated["rates"]) == 2
        assert "eagle3 is only supported for ['llama'" in still_refused["error"]
    assert listing(place.packages) == before

    answers = lift(place, ["granite"], "eagle3")
    assert "model_type='granite'" in str(answers["granite"].before) and answers["granite"].after is None
    said = said_by(python, [granite], environ())
    assert said["parent"][0]["error"] is said["child"][0]["error"] is None
    pip = [sys.executable, "-m", "pip", "--python", str(python), "uninstall", "--yes", "outrider-gate"]
    subprocess.run(pip, check=True, capture_output=True)
    assert listing(place.packages) == before, "pip knows how to take it out as well"
    assert source_digest(place.packages) == source
    assert outrider("engine", "gate", "restore", "--engine-python", str(python)).stdout.startswith("nothing was lifted")


def test_a_version_without_the_list_has_nothing_to_lift(vllm: Environment) -> None:
    before = {path.name for path in vllm.packages.iterdir()}
    done = outrider("engine", "gate", "lift", "--environment", vllm.name, "--model-type", "kimi_k2")
    assert (done.returncode, "has no list of target types" in done.stdout) == (0, True), done.stderr
    done = outrider("engine", "gate", "restore", "--environment", vllm.name)
    assert (done.returncode, done.stdout.startswith("nothing was lifted")) == (0, True), done.stderr
    assert "lifted   nothing" in outrider("engine", "gate", "status", "--environment", vllm.name).stdout
    assert {path.name for path in vllm.packages.iterdir()} == before
    with pytest.raises(InputError, match="has no list of target types to lift"):
        require_list(VLLM, vllm, ("kimi_k2",))
    require_list(VLLM, vllm, ())


@pytest.mark.parametrize("engine", ["reference", "vllm"])
def test_a_launch_that_has_nothing_to_lift_is_refused(
    engine: str, tiny_target: TargetFolder, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    if engine == "vllm":
        request.getfixturevalue("vllm")
    log = str(tmp_path / "server.log")
    serve = ("serve", "--target", str(tiny_target.path), "--engine", engine, "--port", "0", "--log", log)
    done = outrider(*serve, "--lift-gate", "llama")
    assert (done.returncode, "has no list of target types to lift" in done.stderr) == (2, True), done.stderr
    config = tmp_path / "run.toml"
    config.write_text(f'[target]\npath = "{tiny_target.path}"\n[engine]\nname = "{engine}"\nlift_target_types = ["llama"]\n')
    done = outrider("run", str(config), "--folder", str(tmp_path / "run"))
    assert (done.returncode, "leave out lift_target_types" in done.stderr) == (2, True), done.stderr
    assert not Path(log).exists()


@pytest.fixture
def place(tmp_path: Path) -> Environment:
    """An environment whose interpreter has no engine at all."""
    (tmp_path / "packages").mkdir()
    return Environment("x", "vllm", "vllm", "0.16.0", Path(sys.executable), tmp_path / "packages", ours=False)


def test_an_engine_that_cannot_be_asked_is_left_as_it_was(place: Environment) -> None:
    with pytest.raises(EngineFailed, match="could not be asked"):
        lift(place, ["kimi_k2"], "eagle3")
    assert listing(place.packages) == {}


def test_packages_that_cannot_be_written_to_are_left_as_they_were(place: Environment) -> None:
    in_the_way = place.packages / f"{PLUGIN}-1.dist-info"
    in_the_way.write_text("a file where a folder must be")
    before = listing(place.packages)
    with pytest.raises(InputError, match="cannot be written to") as caught:
        lift(place, ["kimi_k2"], "eagle3")
    assert (caught.value.effect, "--lift-gate" in caught.value.fix) == ("nothing was changed", True)
    assert listing(place.packages) == before


def test_without_a_lift_there_is_nothing_to_restore(place: Environment) -> None:
    assert restore(place) is None
    assert lifted_types(place) == ()
    (place.packages / PLUGIN).mkdir()
    (place.packages / PLUGIN / "__init__.py").write_text("")
    assert restore(place) == (), "what a killed lift has left is taken out"
    assert listing(place.packages) == {}


@pytest.mark.parametrize("name", ["", "kimi k2", "a,b", "x\ny"])
def test_what_is_no_type_is_refused(place: Environment, name: str) -> None:
    with pytest.raises(InputError, match="no type of a target"):
        launch_env([name], {})
    with pytest.raises(InputError, match="no type of a target"):
        lift(place, [name], "eagle3")
    assert listing(place.packages) == {}


def test_a_launch_keeps_what_the_environment_says() -> None:
    assert launch_env((), {"VLLM_PLUGINS": ""}) == {}
    env = launch_env(("kimi_k2", "granite"), {"PYTHONPATH": "/mine", "VLLM_PLUGINS": f"a,{PLUGIN}"})
    folder, *others = env["PYTHONPATH"].split(os.pathsep)
    assert (Path(folder) / PLUGIN / "__init__.py").is_file() and others == ["/mine"]
    assert env[VARIABLE] == "granite,kimi_k2"


@pytest.mark.parametrize("allowed", ["", "a,b", f"{PLUGIN}s"])
def test_an_environment_that_keeps_the_plug_in_out_is_told(place: Environment, monkeypatch: pytest.MonkeyPatch, allowed: str) -> None:
    with pytest.raises(InputError, match="keeps the plug-in out") as caught:
        launch_env(["kimi_k2"], {"VLLM_PLUGINS": allowed})
    assert PLUGIN in caught.value.fix
    monkeypatch.setenv("VLLM_PLUGINS", allowed)
    with pytest.raises(InputError, match="keeps the plug-in out"):
        lift(place, ["kimi_k2"], "eagle3")
    assert listing(place.packages) == {}


def test_facts_take_in_what_is_lifted(place: Environment) -> None:
    facts = dataclasses.replace(engine_named("reference").facts(place), target_types=Listed(("llama",), "file:1"))
    assert is_refused(facts, "kimi_k2") and not is_refused(facts, "llama4_text")
    assert with_lifted(facts, place) is facts
    lifted = with_lifted(facts, place, ["kimi"])
    assert not is_refused(lifted, "kimi_k2") and is_refused(lifted, "phi")
    assert lifted.target_types and "lifted" in lifted.target_types.evidence
    without = dataclasses.replace(facts, target_types=None)
    assert not is_refused(without, "phi") and with_lifted(without, place, ["kimi"]) is without
    with pytest.raises(InputError, match="could not be read"):
        is_refused(dataclasses.replace(facts, target_types=Listed((), "file:1")), "phi")
