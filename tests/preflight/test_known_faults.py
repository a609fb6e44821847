"""The table of known faults, against the facts of the versions that it speaks of: each row with its sound counterpart."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from packaging.specifiers import SpecifierSet
from packaging.version import Version
from pydantic import ValidationError

from outrider.core.results import Finding
from outrider.engines.known import facts_of_version, known_versions
from outrider.preflight.checks.known_faults import KnownFault, faults_of, known_faults
from outrider.preflight.conditions import Condition
from outrider.preflight.stage import subject_of
from preflight.folders import DRAFTER, REFERENCE, TARGET, H, L, Tensors, V, drafter_tensors, finding_of, write_drafter, write_target, zeros

KEY = "eagle_aux_hidden_state_layer_ids"
MLA_DRAFTER = {"architectures": ["Eagle3DeepseekV2ForCausalLM"], "model_type": "deepseek_v2", "q_lora_rank": 6}
MLA_TARGET = {"architectures": ["DeepseekV3ForCausalLM"], "model_type": "deepseek_v3", "kv_lora_rank": 5, "q_lora_rank": 6}
GPT_OSS = {"architectures": ["GptOssForCausalLM"], "model_type": "gpt_oss"}
GEMMA = {"architectures": ["Gemma3ForCausalLM"], "model_type": "gemma3_text"}
WHOLE: Tensors = {n: t for n, t in drafter_tensors().items() if n not in ("d2t", "t2d")} | {"lm_head.weight": zeros("F32", V, H)}
HEADLESS: Tensors = {n: t for n, t in WHOLE.items() if n != "lm_head.weight"}


def layers(*ids: int) -> dict[str, Any]:
    """Both places, as each engine counts."""
    return {KEY: list(ids), "eagle_config": {KEY: [layer - 1 for layer in ids]}}


@dataclass(frozen=True)
class Case:
    """What meets a fault, and what does not.

    Attributes:
        sound: versions that do not have it; empty where all do.
        mended: a case in the same version that does not meet it, as differences.
    """

    version: str
    sound: tuple[str, ...] = ()
    target: Mapping[str, Any] = field(default_factory=dict)
    drafter: Mapping[str, Any] = field(default_factory=dict)
    arguments: Sequence[str] = ()
    tensors: Tensors = field(default_factory=drafter_tensors)
    mended: Mapping[str, Any] = field(default_factory=dict)


CASES = {
    "sglang-custom-layers-lost": Case(
        "0.5.10.post1", ("0.5.11",), drafter=layers(3, 6, 10), mended={"arguments": ["--disable-cuda-graph"]}
    ),
    "sglang-partial-sums": Case("0.5.13.post1", ("0.5.14",), MLA_TARGET, arguments=["--tp", "8"], mended={"arguments": ["--tp", "1"]}),
    "sglang-gemma3-without-residual": Case("0.5.23", ("0.5.16",), GEMMA, mended={"target": {}}),
    "sglang-gpt-oss-last-layer": Case(
        "0.5.16", ("0.5.17",), GPT_OSS, {"eagle_config": {KEY: [1, 5, L - 1]}, KEY: [2, 6, L]}, mended={"drafter": layers(2, 6, 9)}
    ),
    "sglang-one-aux-layer": Case("0.5.23", drafter=layers(6), mended={"drafter": layers(2, 6)}),
    "sglang-tied-head": Case("0.5.23", drafter={"tie_word_embeddings": True}, mended={"drafter": {"tie_word_embeddings": False}}),
    "sglang-null-target-width": Case("0.5.23", drafter={"target_hidden_size": None}, mended={"drafter": {"target_hidden_size": H}}),
    "sglang-second-layer-norm": Case("0.5.12", ("0.5.11",), drafter={"num_hidden_layers": 2}, mended={"drafter": {}}),
    "sglang-unread-keys": Case(
        "0.5.23", drafter={"norm_before_residual": True}, mended={"drafter": {"fc_norm": True, "norm_output": True}}
    ),
    "sglang-lossy-acceptance": Case(
        "0.5.23",
        arguments=["--speculative-accept-threshold-single", "0.9"],
        mended={"arguments": ["--speculative-accept-threshold-single", "1.0", "--speculative-accept-threshold-acc", "x"]},
    ),
    "sglang-48-requests": Case(
        "0.5.23",
        arguments=["--speculative-algorithm", "EAGLE3"],
        mended={"arguments": ["--speculative-algorithm", "EAGLE3", "--max-running-requests", "256"]},
    ),
    "sglang-mla-without-q-lora": Case("0.5.12", ("0.5.11",), drafter=MLA_DRAFTER | {"q_lora_rank": None}, mended={"drafter": MLA_DRAFTER}),
    "vllm-mla-without-q-lora": Case("0.33.0", drafter=MLA_DRAFTER | {"q_lora_rank": None}, mended={"drafter": MLA_DRAFTER}),
    "vllm-mla-plain-rope": Case(
        "0.27.1", ("0.28.0",), drafter=MLA_DRAFTER | {"rope_theta": 50000.0}, mended={"drafter": MLA_DRAFTER | {"rope_theta": 10000.0}}
    ),
    "vllm-quantised-target": Case(
        "0.11.0", ("0.11.1", "0.10.2"), {"text_config": TARGET | {"quantization_config": {"bits": 4}}}, mended={"target": {}}
    ),
    "vllm-own-head-replaced": Case(
        "0.11.0", ("0.11.1", "0.10.2"), drafter={"draft_vocab_size": V}, tensors=WHOLE, mended={"tensors": HEADLESS}
    ),
    "vllm-first-or-last-layer": Case("0.17.1", ("0.18.0",), drafter=layers(2, 6, L), mended={"drafter": layers(2, 6, L - 1)}),
    "vllm-deepseek-first-layer": Case("0.33.0", ("0.17.1",), MLA_TARGET, {KEY: [0, 6, 9], "eagle_config": {}}, mended={"target": {}}),
    "vllm-deepseek-last-layer": Case("0.24.0", ("0.25.0",), MLA_TARGET, layers(2, 6, L), mended={"target": {}}),
    "vllm-short-drafter": Case(
        "0.26.0", ("0.27.0",), drafter={"max_position_embeddings": 32}, mended={"arguments": ["--max-model-len", "32"]}
    ),
    "vllm-triton-mla-prefill": Case("0.30.0", ("0.31.0",), MLA_TARGET, mended={"arguments": ["--attention-backend", "FLASHMLA"]}),
    "vllm-triton-mla-graphs": Case("0.21.0", ("0.22.0",), MLA_TARGET, mended={"target": {}}),
    "vllm-unread-keys": Case("0.21.0", ("0.22.0",), drafter={"norm_output": True}, mended={"drafter": {"norm_before_residual": True}}),
}


def found_in(place: Path, case: Case, engine: str, version: str, changes: Mapping[str, Any]) -> set[str]:
    """The ids of the faults that one case meets."""
    said = {name: changes.get(name, getattr(case, name)) for name in ("target", "drafter", "arguments", "tensors")}
    target = write_target(place / "target", TARGET | said["target"])
    drafter = write_drafter(place / "drafter", DRAFTER | said["drafter"], said["tensors"])
    subject = subject_of(target, drafter, facts_of_version(engine, version), said["arguments"])
    return {fault.id for fault in faults_of(subject)}


def test_every_row_has_a_case() -> None:
    assert [fault.id for fault in known_faults()] == list(CASES)
    assert len(CASES) == len(known_faults())


@pytest.mark.parametrize("fault", known_faults(), ids=lambda fault: fault.id)
def test_a_row_and_its_sound_counterparts(tmp_path: Path, fault: KnownFault) -> None:
    case = CASES[fault.id]
    assert fault.id in found_in(tmp_path / "bad", case, fault.engine, case.version, {})
    assert fault.id not in found_in(tmp_path / "mended", case, fault.engine, case.version, case.mended)
    for version in case.sound:
        assert fault.id not in found_in(tmp_path / version, case, fault.engine, version, {})


@pytest.mark.parametrize("fault", known_faults(), ids=lambda fault: fault.id)
def test_a_row_says_all_it_should(fault: KnownFault) -> None:
    versions = [version for version in known_versions(fault.engine) if Version(version) in SpecifierSet(fault.versions, prereleases=True)]
    assert versions and fault.effect and fault.fix and fault.place.startswith(fault.engine)
    assert fault.seen == "source" or fault.link
    assert not fault.link or fault.link.startswith("https://github.com/")
    assert bool(fault.versions) == (len(versions) < len(known_versions(fault.engine)))


def finding(tmp_path: Path, engine: str, version: str, drafter: Mapping[str, Any], arguments: Sequence[str] = ()) -> Finding:
    target, folder = write_target(tmp_path / "target"), write_drafter(tmp_path / "drafter", DRAFTER | dict(drafter))
    return finding_of("known_faults", target, folder, facts_of_version(engine, version), arguments)


def test_all_that_apply_are_told_and_the_worst_counts(tmp_path: Path) -> None:
    drafter = layers(3, 6, 10) | {"norm_before_residual": True}
    found = finding(tmp_path, "sglang", "0.5.9", drafter, ["--speculative-algorithm", "EAGLE3"])
    assert found.verdict == "fail"
    worst_first = "sglang-unread-keys (sglang all), sglang-custom-layers-lost (sglang <0.5.11), sglang-48-requests (sglang all)"
    assert found.found == worst_first
    assert "pull/22836" in found.evidence and "--max-running-requests" in found.fix
    assert "custom aux layers" in found.title and "48 requests" in found.title


def test_warnings_alone_warn(tmp_path: Path) -> None:
    assert finding(tmp_path, "vllm", "0.26.0", {"max_position_embeddings": 32}).verdict == "warn"


@pytest.mark.parametrize(("engine", "version"), [("vllm", "0.33.0"), ("vllm", "0.16.0"), ("sglang", "0.5.23"), ("sglang", "0.5.9")])
def test_a_sound_pair_meets_none(tmp_path: Path, engine: str, version: str) -> None:
    found = finding(tmp_path, engine, version, {})
    assert found.verdict == "pass" and "none of the" in found.title


@pytest.mark.parametrize(("version", "verdict"), [("0.24.0", "fail"), ("0.25.0", "pass")])
def test_a_key_that_is_not_handed_to_the_drafters_class(tmp_path: Path, version: str, verdict: str) -> None:
    """vLLM's class knows norm_output from 0.22.0 on; of a config in the layout of `speculators` it is told from 0.25.0 on."""
    layer = {key: value for key, value in DRAFTER.items() if key not in ("architectures", "draft_vocab_size", KEY, "eagle_config")}
    drafter = {"architectures": ["Eagle3DraftModel"], "speculators_model_type": "eagle3", "draft_vocab_size": 24, "norm_output": True}
    target = write_target(tmp_path / "target", TARGET)
    found = finding_of("known_faults", target, drafter | {"transformer_layer_config": layer}, facts_of_version("vllm", version))
    assert found.verdict == verdict


def test_an_engine_without_known_faults(tmp_path: Path) -> None:
    target, folder = write_target(tmp_path / "target"), write_drafter(tmp_path / "drafter")
    assert finding_of("known_faults", target, folder, REFERENCE).verdict == "pass"


def test_a_condition_that_is_not_known_is_refused() -> None:
    with pytest.raises(ValidationError):
        Condition.model_validate({"target_clases": ["LlamaForCausalLM"]})
