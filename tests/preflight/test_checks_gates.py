"""The gates that a drafter's config meets: method, architecture after the engine's rewrites, remote code."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from outrider.engines.facts import EngineFacts, Rewrite
from preflight.folders import DRAFTER, TARGET, VLLM, finding_of, write_drafter, write_target

OLD = replace(VLLM, registered={"Eagle3LlamaForCausalLM": "Eagle3LlamaForCausalLM"}, config_types=("eagle",), version="0.9.2")
SGLANG = replace(
    VLLM,
    engine="sglang",
    version="0.5.11",
    runner=None,
    registered={"LlamaForCausalLMEagle3": "LlamaForCausalLMEagle3", "DeepseekV3ForCausalLMNextN": "DeepseekV3ForCausalLMNextN"},
    drafters={"LlamaForCausalLMEagle3": "LlamaForCausalLMEagle3"},
    rewrites=(Rewrite((), ("DeepseekV3ForCausalLM",), "DeepseekV3ForCausalLMNextN", "", "sglang/srt/configs/model_config.py:344"),),
    methods=("eagle", "eagle3", "nextn", "standalone", "ngram"),
    config_types=("kimi_k25",),
    speculative_keys=("algorithm", "draft_model_path", "num_steps", "eagle_topk", "num_draft_tokens", "adaptive"),
)


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return write_target(tmp_path / "target")


@pytest.fixture
def drafter(tmp_path: Path) -> Path:
    return write_drafter(tmp_path / "drafter")


@pytest.mark.parametrize(
    ("method", "facts", "verdict"),
    [
        (None, VLLM, "pass"),
        ("Eagle3", VLLM, "pass"),
        ("deepseek_mtp", VLLM, "pass"),  # a word of old
        ("dspark", VLLM, "fail"),
        ("nextn", VLLM, "fail"),
        ("NEXTN", SGLANG, "pass"),
        (None, replace(VLLM, methods=()), "unknown"),
    ],
)
def test_method_known(target: Path, drafter: Path, method: str | None, facts: EngineFacts, verdict: str) -> None:
    assert finding_of("method_known", target, drafter, facts, method=method).verdict == verdict


@pytest.mark.parametrize(("method", "fix"), [("eagle-3", "the method of this drafter, eagle3"), ("dspark", "vllm 0.")])
def test_a_method_that_is_not_known_is_told_what_helps(target: Path, drafter: Path, method: str, fix: str) -> None:
    facts = replace(VLLM, version="0.16.0")
    assert finding_of("method_known", target, drafter, facts, method=method).fix.startswith(fix)


def test_an_architecture_that_only_another_method_makes_unknown(target: Path, drafter: Path) -> None:
    """A drafter of EAGLE-3 run by EAGLE: no other version helps, but the method does."""
    found = finding_of("drafter_architecture", target, drafter, method="eagle")
    assert found.verdict == "fail" and found.fix == "the method eagle3"
    assert "EagleLlamaForCausalLMEagle3" in found.title and "for the method eagle" in found.title


def test_a_method_that_cannot_be_told(tmp_path: Path, target: Path) -> None:
    folder = write_drafter(tmp_path / "drafter", TARGET)
    assert finding_of("method_known", target, folder).verdict == finding_of("method_fits", target, folder).verdict == "unknown"


@pytest.mark.parametrize(
    ("name", "config", "verdict"),
    [
        ("kimi-eagle-3", '{"num_speculative_tokens": 3}', "fail"),  # `eagle-` in the path is read as EAGLE-1
        ("kimi-eagle-3", '{"num_speculative_tokens": 3, "method": "eagle3"}', "pass"),
        ("kimi-eagle3", '{"num_speculative_tokens": 3}', "pass"),
        ("kimi", '{"num_speculative_tokens": 3}', "fail"),  # a model that drafts by itself
        ("kimi", '{"num_speculative_tokens": 3, "model": "my/eagle3"}', "pass"),
        ("kimi-eagle-3", "{}", "pass"),  # launches of ours name the method
    ],
)
def test_a_method_that_vllm_guesses_by_the_path(tmp_path: Path, target: Path, name: str, config: str, verdict: str) -> None:
    folder = write_drafter(tmp_path / name)
    found = finding_of("method_known", target, folder, arguments=["--speculative-config", config])
    assert found.verdict == verdict
    assert verdict == "pass" or '"method": "eagle3"' in found.fix


@pytest.mark.parametrize(
    ("architecture", "method", "facts", "verdict", "says"),
    [
        ("LlamaForCausalLMEagle3", "eagle3", VLLM, "pass", ""),
        ("LlamaForCausalLMEagle3", "eagle", VLLM, "fail", "nearly every draft is rejected"),
        ("LlamaForCausalLMEagle3", "ngram", VLLM, "fail", "not used"),
        ("LlamaForCausalLMEagle3", "EAGLE", SGLANG, "fail", "exactly 1.00"),
        ("LlamaForCausalLMEagle3", "NEXTN", SGLANG, "fail", "exactly 1.00"),
        ("LlamaForCausalLMEagle3", "EAGLE3", SGLANG, "pass", ""),
        ("DFlashDraftModel", "dflash", VLLM, "pass", ""),
        ("DFlashDraftModel", "eagle3", VLLM, "fail", "another algorithm"),
        ("Qwen3DSparkModel", "dflash", VLLM, "fail", "another algorithm"),
        ("DeepSeekMTPModel", "mtp", VLLM, "pass", ""),
        ("DeepSeekMTPModel", "deepseek_mtp", VLLM, "pass", ""),
        ("DeepSeekMTPModel", "eagle3", VLLM, "fail", "another algorithm"),
        ("DeepseekV3ForCausalLMNextN", "NEXTN", SGLANG, "pass", ""),
        ("EagleLlamaForCausalLM", "eagle", VLLM, "pass", ""),
        ("EagleLlamaForCausalLM", "eagle3", VLLM, "fail", "another algorithm"),
        ("PeagleLlamaForCausalLM", "eagle3", VLLM, "fail", "one by one"),  # not without parallel_drafting
    ],
)
def test_method_fits(tmp_path: Path, target: Path, architecture: str, method: str, facts: EngineFacts, verdict: str, says: str) -> None:
    folder = write_drafter(tmp_path / "drafter", DRAFTER | {"architectures": [architecture]})
    found = finding_of("method_fits", target, folder, facts, method=method)
    assert found.verdict == verdict and says in found.effect


@pytest.mark.parametrize(("key", "verdict"), [("ptd_token_id", "fail"), ("pard_token", "fail"), ("pad_token_id", "pass")])
def test_a_peagle_drafter_of_an_eagle3_architecture(tmp_path: Path, target: Path, key: str, verdict: str) -> None:
    """Its config names the token that stands for those that are not known yet."""
    folder = write_drafter(tmp_path / "drafter", DRAFTER | {key: 0})
    assert finding_of("method_fits", target, folder).verdict == verdict
    parallel = ["--speculative-config", '{"method": "eagle3", "num_speculative_tokens": 3, "parallel_drafting": true}']
    for check, expected in (("method_fits", "pass"), ("serve_flags", "pass" if verdict == "fail" else "fail")):
        assert finding_of(check, target, folder, VLLM, parallel).verdict == expected


def test_a_peagle_drafter_drafts_in_parallel(tmp_path: Path, target: Path) -> None:
    folder = write_drafter(tmp_path / "drafter", DRAFTER | {"architectures": ["PeagleLlamaForCausalLM"]})
    config = '{"method": "eagle3", "parallel_drafting": true}'
    assert finding_of("method_fits", target, folder, arguments=["--speculative-config", config]).verdict == "pass"
    older = replace(VLLM, speculative_keys=("method", "model"))
    found = finding_of("method_fits", target, folder, older, ["--speculative-config", config])
    assert found.verdict == "fail" and "cannot draft in parallel" in found.title


@pytest.mark.parametrize(
    ("changes", "method", "facts", "verdict", "says"),
    [
        ({}, "eagle3", VLLM, "pass", "by Eagle3LlamaForCausalLM"),
        ({"architectures": ["LlamaForCausalLM"]}, "eagle3", VLLM, "pass", 'eagle3 makes "Eagle3LlamaForCausalLM" of it'),
        ({"architectures": ["LlamaForCausalLM"]}, "eagle", VLLM, "pass", "by EagleLlamaForCausalLM"),
        ({}, "eagle", VLLM, "fail", 'looks for "EagleLlamaForCausalLMEagle3"'),
        ({"architectures": ["Eagle3DeepseekV2ForCausalLM"], "model_type": "deepseek_v2"}, "eagle3", VLLM, "pass", "Eagle3Deepseek"),
        ({"architectures": ["Eagle3DeepseekV2ForCausalLM"], "model_type": "kimi_k2"}, "eagle3", VLLM, "pass", "Eagle3Deepseek"),
        ({"architectures": ["Eagle3DeepseekV2ForCausalLM"], "model_type": "kimi_k2"}, "eagle3", OLD, "fail", "nor any transformers knows"),
        ({"architectures": ["Eagle3DeepseekV2ForCausalLM"], "model_type": "deepseek_v3"}, "eagle3", VLLM, "fail", "Eagle3DeepSeekMTPModel"),
        ({"architectures": ["DeepseekV3ForCausalLM"], "model_type": "deepseek_v3"}, "mtp", VLLM, "pass", "DeepSeekMTPModel"),
        # its name is looked up before the prefix as well
        ({"architectures": ["DeepseekV2ForCausalLM"]}, "eagle3", VLLM, "fail", "no drafter of this architecture"),
        ({"architectures": ["FooEagle3"]}, "eagle3", VLLM, "fail", "no drafter of this architecture"),
        ({"architectures": ["LlamaForCausalLM"]}, "draft_model", VLLM, "pass", "LlamaForCausalLM"),
        ({"architectures": ["FooForCausalLM"]}, "draft_model", VLLM, "fail", "no drafter of this architecture"),
        ({"model_type": "newest"}, "eagle3", VLLM, "unknown", 'reads a config of type "newest" is not known'),
        ({"model_type": None}, "eagle3", VLLM, "unknown", "reads a config of type null is not known"),
        ({"model_type": "newest", "auto_map": {}}, "eagle3", VLLM, "unknown", "may need the code"),
        ({"model_type": "gpt_oss"}, "eagle3", VLLM, "unknown", "is not known"),  # not in every transformers
        ({"model_type": "gpt_oss"}, "eagle3", replace(VLLM, requires={"transformers": ">=4.56.0,<5"}), "pass", "by Eagle3Llama"),
        ({"model_type": "gpt_oss"}, "eagle3", replace(VLLM, requires={"transformers": "whatever"}), "unknown", "is not known"),
        ({"speculators_model_type": "eagle3"}, "eagle3", VLLM, "pass", "by Eagle3LlamaForCausalLM"),
        ({"speculators_model_type": "peagle"}, "eagle3", VLLM, "pass", "by Eagle3LlamaForCausalLM"),
        ({"speculators_model_type": "dflash2"}, "dflash", VLLM, "fail", "DFlash2DraftModel"),
        ({"speculators_model_type": "eagle3"}, "eagle3", OLD, "fail", "does not read"),
        ({"speculators_model_type": "eagle3"}, "eagle3", SGLANG, "fail", "does not read"),
        ({"speculators_model_type": "eagle3"}, "eagle3", replace(VLLM, config_types=()), "unknown", "cannot be told"),
        ({}, "eagle3", SGLANG, "pass", "by LlamaForCausalLMEagle3"),
        ({"architectures": ["Eagle3LlamaForCausalLM"]}, "eagle3", SGLANG, "fail", "no drafter of this architecture"),
        ({"architectures": ["DeepseekV3ForCausalLM"]}, "nextn", SGLANG, "pass", "DeepseekV3ForCausalLMNextN"),
        ({"architectures": ["Eagle3DeepseekV2ForCausalLM"], "model_type": "kimi_k2"}, "eagle3", SGLANG, "fail", "; "),
        ({}, "eagle3", replace(VLLM, registered={}, drafters={}, drafters_evidence="registry.py"), "unknown", "could not be read"),
    ],
)
def test_drafter_architecture_after_the_rewrites(
    tmp_path: Path, target: Path, changes: dict[str, Any], method: str, facts: EngineFacts, verdict: str, says: str
) -> None:
    folder = write_drafter(tmp_path / "drafter", DRAFTER | changes)
    found = finding_of("drafter_architecture", target, folder, facts, method=method)
    assert found.verdict == verdict
    assert says in found.title


def test_a_drafter_that_becomes_an_mtp_model_is_told_what_to_write(tmp_path: Path, target: Path) -> None:
    config = DRAFTER | {"architectures": ["Eagle3DeepseekV2ForCausalLM"], "model_type": "deepseek_v3"}
    found = finding_of("drafter_architecture", target, write_drafter(tmp_path / "drafter", config), VLLM)
    assert "deepseek_v2" in found.fix and "speculative.py:200" in found.evidence and "speculative.py:206" in found.evidence


_CODE = {"AutoConfig": "configuration_mine.MineConfig", "AutoModelForCausalLM": "modeling_mine.Mine"}


@pytest.mark.parametrize(
    ("changes", "arguments", "verdict"),
    [
        ({}, [], "pass"),
        ({"auto_map": _CODE}, [], "pass"),  # a llama, which transformers knows
        ({"auto_map": _CODE, "model_type": "kimi_k25"}, [], "pass"),  # the engine has a class for it
        ({"auto_map": _CODE, "model_type": "kimi_vl"}, [], "fail"),
        ({"auto_map": _CODE, "model_type": "kimi_vl"}, ["--trust-remote-code"], "pass"),
        ({"auto_map": _CODE, "model_type": "newest"}, [], "unknown"),  # transformers may know it or not
        ({"auto_map": {"AutoTokenizer": ["a.B", None]}, "model_type": "newest"}, [], "pass"),
        ({"auto_map": "all of it", "model_type": "newest"}, [], "pass"),
    ],
)
def test_remote_code_of_a_target(tmp_path: Path, drafter: Path, changes: dict[str, Any], arguments: list[str], verdict: str) -> None:
    folder = write_target(tmp_path / "target", TARGET | changes)
    found = finding_of("remote_code", folder, drafter, VLLM, arguments)
    assert found.verdict == verdict
    assert verdict == "pass" or "--trust-remote-code" in found.fix


def test_remote_code_of_a_drafter(tmp_path: Path, target: Path) -> None:
    folder = write_drafter(tmp_path / "drafter", DRAFTER | {"auto_map": _CODE, "model_type": "kimi_k2"})
    assert finding_of("remote_code", target, folder, SGLANG).verdict == "fail"
    assert finding_of("remote_code", target, folder, VLLM).verdict == "pass"


@pytest.mark.parametrize(
    ("name", "content", "verdict"),
    [
        ("tokenizer_config.json", {"tokenizer_class": "Mine", "auto_map": {"AutoTokenizer": ["tokenization_mine.Mine", None]}}, "warn"),
        ("tokenizer_config.json", {"tokenizer_class": "LlamaTokenizer", "auto_map": {"AutoTokenizer": ["mine.Mine", None]}}, "pass"),
        ("tokenizer_config.json", {"tokenizer_class": "LlamaTokenizer"}, "pass"),
        ("preprocessor_config.json", {"auto_map": {"AutoImageProcessor": "processing_mine.Mine"}}, "warn"),
        ("preprocessor_config.json", {"image_mean": [0.5]}, "pass"),
    ],
)
def test_remote_code_beside_the_config(target: Path, drafter: Path, name: str, content: object, verdict: str) -> None:
    (target / name).write_text(json.dumps(content))
    assert finding_of("remote_code", target, drafter, VLLM).verdict == verdict
    assert finding_of("remote_code", target, drafter, VLLM, ["--trust-remote-code"]).verdict == "pass"


def test_a_damaged_tokenizer_config_is_not_read_for_code(target: Path, drafter: Path) -> None:
    (target / "tokenizer_config.json").write_text("[")
    assert finding_of("remote_code", target, drafter, VLLM).verdict == "unknown"
