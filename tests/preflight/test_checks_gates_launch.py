"""The gates that a launch meets: flags, parallel sizes, and what the model runner that it takes insists on."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from outrider.core.errors import InputError
from outrider.engines.facts import EngineFacts, ImageToken, RunnerChoice
from outrider.preflight.check import runner_of
from outrider.preflight.stage import subject_of
from preflight.folders import DRAFTER, TARGET, VLLM, finding_of, write_drafter, write_target
from preflight.test_checks_gates import SGLANG


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return write_target(tmp_path / "target")


@pytest.fixture
def drafter(tmp_path: Path) -> Path:
    return write_drafter(tmp_path / "drafter")


def config(text: str) -> list[str]:
    """vLLM's speculative config with these items beside method and number of tokens."""
    return ["--speculative-config", f'{{"method": "eagle3", "num_speculative_tokens": 3{", " * bool(text)}{text}}}']


def at(version: str, facts: EngineFacts = VLLM) -> EngineFacts:
    """Facts under the name of another version."""
    return replace(facts, version=version)


MORE = replace(
    VLLM,
    speculative_keys=(
        *VLLM.speculative_keys,
        "tensor_parallel_size",
        "disable_padded_drafter_batch",
        "rejection_sample_method",
        "synthetic_acceptance_length",
    ),
)
UNPADDED = [*config('"disable_padded_drafter_batch": true'), "--async-scheduling"]


@pytest.mark.parametrize(
    ("arguments", "facts", "verdict", "says"),
    [
        ([], VLLM, "pass", ""),
        (config(""), VLLM, "pass", ""),
        (config(""), replace(VLLM, speculative_keys=()), "unknown", "could not be read"),
        (config('"moe_backend": "auto"'), VLLM, "fail", 'does not know "moe_backend"'),
        (["--speculative-config", '{"method": "eagle3"}'], VLLM, "fail", "how many tokens"),
        (["--speculative-config", '{"method": "ngram"}'], VLLM, "pass", ""),  # has a number of its own
        (["--spec-method", "eagle3", "--spec-tokens", "0"], VLLM, "fail", "not above 0"),
        (["--spec-method", "eagle3", "--spec-tokens", "many"], VLLM, "fail", "not above 0"),
        (["--spec-method", "eagle3", "--spec-tokens", "3"], VLLM, "pass", ""),
        (["--spec-method", "EAGLE3", "--spec-tokens", "3"], VLLM, "fail", "small letters"),
        (["--spec-method", "eagle3", "--spec-tokens", "3"], at("0.21.0"), "fail", "no short arguments"),
        (["--speculative-algorithm", "EAGLE3"], VLLM, "fail", "vllm has no argument --speculative-algorithm"),
        (config('"tensor_parallel_size": 2'), MORE, "fail", "no key of a speculative config"),
        (config('"tensor_parallel_size": 2'), at("0.14.0", MORE), "pass", ""),
        ([*config('"draft_tensor_parallel_size": 2'), "-tp", "4"], VLLM, "fail", "neither 1 nor"),
        ([*config('"draft_tensor_parallel_size": 1'), "-tp", "4"], VLLM, "warn", "one device"),
        ([*config('"draft_tensor_parallel_size": 4'), "-tp", "4"], VLLM, "pass", ""),
        (config('"draft_tensor_parallel_size": 1'), VLLM, "pass", ""),
        ([*config(""), "--async-scheduling"], at("0.10.2"), "fail", "exclude each other"),
        ([*config(""), "--async-scheduling"], at("0.11.1"), "pass", ""),
        (UNPADDED, MORE, "fail", "padded"),
        (UNPADDED, at("0.33.0", MORE), "fail", "V1 model runner needs padded"),
        (UNPADDED, replace(MORE, version="0.33.0", runner="V2"), "pass", ""),
        (config('"disable_padded_drafter_batch": true'), MORE, "pass", ""),
        (config('"rejection_sample_method": "synthetic"'), MORE, "warn", "made up"),
        (config('"synthetic_acceptance_length": 3.0'), MORE, "warn", "made up"),
        (config('"synthetic_acceptance_length": null'), MORE, "pass", ""),
        (config('"tensor_parallel_size": 2, "a": 1'), MORE, "fail", '"a" in the speculative config; tensor_parallel_size is no key'),
    ],
)
def test_serve_flags_of_vllm(target: Path, drafter: Path, arguments: list[str], facts: EngineFacts, verdict: str, says: str) -> None:
    found = finding_of("serve_flags", target, drafter, facts, arguments)
    assert found.verdict == verdict and says in found.title
    assert verdict in ("pass", "unknown") or found.found


@pytest.mark.parametrize(
    ("rank", "override", "verdict"), [(4, "model_type", "warn"), (4, "rope_theta", "pass"), (None, "model_type", "pass")]
)
def test_an_override_of_the_type_switches_latent_attention_off(
    tmp_path: Path, drafter: Path, rank: int | None, override: str, verdict: str
) -> None:
    folder = write_target(tmp_path / "target", TARGET | {"kv_lora_rank": rank})
    arguments = ["--hf-overrides", f'{{"{override}": "llama"}}']
    assert finding_of("serve_flags", folder, drafter, VLLM, arguments).verdict == verdict


def numbers(steps: int | None, width: int | None, tokens: int | None) -> list[str]:
    """SGLang's three numbers, as far as they are given."""
    named = {"num-steps": steps, "eagle-topk": width, "num-draft-tokens": tokens}
    given = [(f"--speculative-{name}", str(value)) for name, value in named.items() if value is not None]
    return ["--speculative-algorithm", "EAGLE3", *(word for pair in given for word in pair)]


PAGED = [*numbers(3, 4, 8), "--page-size", "16", "--attention-backend"]


@pytest.mark.parametrize(
    ("arguments", "version", "verdict", "says"),
    [
        (numbers(None, None, None), "0.5.11", "pass", ""),
        (numbers(3, 1, 4), "0.5.11", "pass", ""),
        (numbers(3, 4, 8), "0.5.11", "pass", ""),
        (numbers(3, 1, None), "0.5.11", "pass", ""),  # the third follows from the others
        (numbers(3, 4, None), "0.5.11", "fail", "only some are given"),
        (numbers(None, 1, 4), "0.5.11", "fail", "only some are given"),
        (numbers(3, None, 4), "0.5.11", "fail", "only some are given"),
        (numbers(3, 1, 8), "0.5.11", "warn", "steps plus one"),
        ([*numbers(None, 1, 4), "--speculative-adaptive"], "0.5.11", "pass", ""),
        ([*numbers(None, None, None), "--speculative-window", "8"], "0.5.11", "fail", "does not know --speculative-window"),
        (["--speculative-algo", "EAGLE3"], "0.5.11", "pass", ""),  # as far as it takes to tell one from the others
        (["--speculative-num", "3"], "0.5.11", "fail", "does not know --speculative-num"),
        (["--speculative-algo", "EAGLE3", "--speculative-num-s", "3"], "0.5.11", "fail", "only some are given"),
        (["--speculative-algorithm", "eagle3"], "0.5.11", "fail", "capitals"),
        (config(""), "0.5.11", "fail", "sglang has no argument --speculative-config"),
        (["--speculative-algorithm", "eagle3"], "0.5.12", "pass", ""),
        ([*numbers(3, 4, 8), "--attention-backend", "trtllm_mha"], "0.5.11", "fail", "trtllm_mha"),
        ([*numbers(3, 1, 4), "--attention-backend", "trtllm_mha"], "0.5.11", "pass", ""),
        ([*PAGED, "triton"], "0.5.12", "fail", "pages of one token"),
        ([*PAGED, "triton"], "0.5.13", "pass", ""),
        ([*PAGED, "fa3"], "0.5.5", "fail", "pages of one token"),
        ([*PAGED, "fa3"], "0.5.6", "pass", ""),
        ([*PAGED, "flashinfer"], "0.5.2", "pass", ""),
        ([*numbers(3, 1, 4), "--page-size", "16", "--attention-backend", "triton"], "0.5.2", "pass", ""),
    ],
)
def test_serve_flags_of_sglang(target: Path, drafter: Path, arguments: list[str], version: str, verdict: str, says: str) -> None:
    found = finding_of("serve_flags", target, drafter, at(version, SGLANG), arguments)
    assert found.verdict == verdict and says in found.title


@pytest.mark.parametrize(
    ("argument", "facts", "verdict"),
    [
        ("--tp", VLLM, "fail"),
        ("--tp_size", VLLM, "fail"),
        ("--pp-size", VLLM, "fail"),
        ("-tp", VLLM, "pass"),
        ("--tensor-parallel-size", VLLM, "pass"),
        ("--tensor-parallel", VLLM, "pass"),
        ("-tp", SGLANG, "fail"),
        ("--tp", SGLANG, "pass"),
        ("--tensor-parallel-size", SGLANG, "pass"),
    ],
)
def test_arguments_as_the_other_engine_spells_them(target: Path, drafter: Path, argument: str, facts: EngineFacts, verdict: str) -> None:
    """The size is understood either way, and the engine ends over the name."""
    for arguments in ([argument, "2"], [f"{argument}=2"]):
        found = finding_of("serve_flags", target, drafter, facts, arguments)
        assert found.verdict == verdict and (verdict == "pass" or "has no argument -" in found.title)
        sizes = finding_of("parallel_limits", target, drafter, facts, arguments).evidence
        assert f"--{'pipeline' if 'pp' in argument else 'tensor'}-parallel-size 2" in sizes


def test_an_argument_that_is_cut_too_short_is_told_its_whole_name(target: Path, drafter: Path) -> None:
    found = finding_of("serve_flags", target, drafter, at("0.5.11", SGLANG), ["--speculative-num", "3"])
    assert found.fix == "the whole name: --speculative-num-steps or --speculative-num-draft-tokens"


@pytest.mark.parametrize(
    ("of_target", "of_drafter", "size", "says"),
    [
        ({}, {}, 1, ""),
        ({}, {}, 2, ""),
        ({}, {}, 3, "the target's 2 attention heads"),
        ({}, {"num_attention_heads": 3}, 2, "the drafter's 3 attention heads"),
        ({"num_attention_heads": 12, "num_key_value_heads": 3}, {}, 2, "the target's 3 key-value heads"),
        ({"num_attention_heads": 12, "num_key_value_heads": 3, "kv_lora_rank": 4}, {}, 2, ""),
        ({}, {"intermediate_size": 17}, 2, "the drafter's intermediate size of 17"),
        ({"intermediate_size": 17, "num_experts": 8}, {}, 2, ""),
        ({"num_attention_heads": 6, "num_key_value_heads": 6, "intermediate_size": 18}, {}, 6, "the target's vocabulary of 40"),
        ({"num_attention_heads": None}, {"num_attention_heads": "two"}, 2, ""),
    ],
)
def test_tensor_parallel_limits(tmp_path: Path, of_target: dict[str, Any], of_drafter: dict[str, Any], size: int, says: str) -> None:
    folder = write_target(tmp_path / "target", TARGET | of_target)
    drafter = write_drafter(tmp_path / "drafter", DRAFTER | of_drafter)
    found = finding_of("parallel_limits", folder, drafter, VLLM, ["--tp", str(size)])
    assert found.verdict == ("fail" if says else "pass") and says in found.title


def test_attention_that_is_shared_out_by_data(target: Path, drafter: Path) -> None:
    assert finding_of("parallel_limits", target, drafter, SGLANG, ["--tp", "4"]).verdict == "fail"
    assert finding_of("parallel_limits", target, drafter, SGLANG, ["--tp", "4", "--enable-dp-attention"]).verdict == "unknown"


def test_a_parallel_size_that_is_no_number_is_an_input_error(target: Path, drafter: Path) -> None:
    with pytest.raises(InputError, match="whole number above 0"):
        finding_of("parallel_limits", target, drafter, VLLM, ["--tp", "0"])


@pytest.mark.parametrize(
    ("pipeline", "classes", "stages", "verdict"),
    [
        ("none", (), 1, "pass"),
        ("none", (), 2, "fail"),
        ("listed", (), 2, "fail"),
        ("listed", ("LlamaForCausalLM",), 2, "pass"),
        ("all", (), 2, "pass"),
        ("unknown", (), 2, "unknown"),
    ],
)
def test_pipeline_parallel_limits(target: Path, drafter: Path, pipeline: Any, classes: tuple[str, ...], stages: int, verdict: str) -> None:
    runner = replace(VLLM.runners["V1"], pipeline=pipeline)
    facts = replace(VLLM, runners={"V1": runner}, pipeline_classes=frozenset(classes))
    assert finding_of("parallel_limits", target, drafter, facts, ["--pp-size", str(stages)]).verdict == verdict


def test_pipeline_of_a_runner_that_is_not_known(target: Path, drafter: Path) -> None:
    assert finding_of("parallel_limits", target, drafter, replace(VLLM, runners={}), ["--pp-size", "2"]).verdict == "unknown"


GATE = ImageToken(
    "image_token_index",
    {"SeeingForConditionalGeneration": "media_placeholder_token_id", "PixelForConditionalGeneration": "vision_config.image_token_id"},
    "vllm/v1/spec_decode/eagle.py:1360",
)
_CLASSES = ("LookingForConditionalGeneration", "SeeingForConditionalGeneration", "PixelForConditionalGeneration")
IMAGES = replace(
    VLLM,
    version="0.16.0",
    targets=dict(VLLM.targets) | {name: name for name in _CLASSES},
    multimodal_classes=frozenset(_CLASSES),
    runners={"V1": replace(VLLM.runners["V1"], image_token=GATE)},
)


@pytest.mark.parametrize(
    ("of_target", "facts", "verdict"),
    [
        ({}, IMAGES, "pass"),  # takes no images
        ({"architectures": ["LookingForConditionalGeneration"]}, IMAGES, "fail"),
        ({"architectures": ["LookingForConditionalGeneration"], "image_token_index": 7}, IMAGES, "pass"),
        ({"architectures": ["LookingForConditionalGeneration"], "image_token_id": 7}, IMAGES, "unknown"),  # often one and the same
        ({"architectures": ["SeeingForConditionalGeneration"], "media_placeholder_token_id": 7}, IMAGES, "pass"),
        ({"architectures": ["SeeingForConditionalGeneration"], "image_token_index": 7}, IMAGES, "fail"),
        ({"architectures": ["PixelForConditionalGeneration"], "vision_config": {"image_token_id": 7}}, IMAGES, "pass"),
        ({"architectures": ["PixelForConditionalGeneration"], "vision_config": 7}, IMAGES, "fail"),
        ({"architectures": ["LookingForConditionalGeneration"]}, VLLM, "pass"),  # no such gate
        ({"architectures": ["NewForConditionalGeneration"]}, IMAGES, "unknown"),
        ({"architectures": ["LookingForConditionalGeneration"]}, replace(IMAGES, multimodal_classes=frozenset()), "unknown"),
        ({"architectures": ["LookingForConditionalGeneration"]}, replace(IMAGES, runners={}), "unknown"),
        ({"architectures": ["LookingForConditionalGeneration"]}, replace(IMAGES, runner="V2"), "unknown"),
    ],
)
def test_image_token(tmp_path: Path, drafter: Path, of_target: dict[str, Any], facts: EngineFacts, verdict: str) -> None:
    found = finding_of("image_token", write_target(tmp_path / "target", TARGET | of_target), drafter, facts)
    assert found.verdict == verdict
    assert verdict != "fail" or ("eagle.py:1360" in found.evidence and "after all weights" in found.effect)


def insisting(*classes: str) -> EngineFacts:
    """A V1 runner that asserts the drafter's class."""
    runner = replace(VLLM.runners["V1"], drafter_classes=classes, drafter_classes_evidence="vllm/v1/spec_decode/eagle.py:397")
    return replace(VLLM, runners={"V1": runner})


@pytest.mark.parametrize(
    ("changes", "facts", "method", "verdict"),
    [
        ({}, insisting("Eagle3LlamaForCausalLM"), "eagle3", "pass"),
        ({"architectures": ["LlamaForCausalLM"]}, insisting("Eagle3LlamaForCausalLM"), "eagle", "pass"),  # asserted for EAGLE-3 alone
        ({"architectures": ["Eagle3DeepseekV2ForCausalLM"]}, insisting("Eagle3LlamaForCausalLM"), "eagle3", "fail"),
        ({"architectures": ["Eagle3DeepseekV2ForCausalLM"]}, insisting("A", "Eagle3DeepseekV2ForCausalLM"), "eagle3", "pass"),
        ({"architectures": ["Eagle3DeepseekV2ForCausalLM"]}, VLLM, "eagle3", "pass"),
        ({"architectures": ["FooEagle3"]}, insisting("Eagle3LlamaForCausalLM"), "eagle3", "unknown"),
        ({}, replace(VLLM, runners={}), "eagle3", "unknown"),
    ],
)
def test_drafter_class(tmp_path: Path, target: Path, changes: dict[str, Any], facts: EngineFacts, method: str, verdict: str) -> None:
    folder = write_drafter(tmp_path / "drafter", DRAFTER | changes)
    found = finding_of("drafter_class", target, folder, facts, method=method)
    assert found.verdict == verdict
    assert verdict != "fail" or ("first request" in found.effect and "eagle.py:397" in found.evidence)


def choosing(version: str, *listed: str, needs: Any = (), others: Any = "none", not_methods: tuple[str, ...] = ()) -> EngineFacts:
    """A version that chooses between its two model runners."""
    choice = RunnerChoice(listed, needs, others, not_methods, True, "vllm/config/vllm.py:493")
    return replace(VLLM, version=version, runner=None, runner_choice=choice)


_MOE: Mapping[str, Any] = {"num_experts": 8}


@pytest.mark.parametrize(
    ("of_target", "arguments", "facts", "runner"),
    [
        ({}, [], VLLM, "V1"),
        ({}, [], choosing("0.22.0", "Qwen3ForCausalLM", needs=("dense", "unquantised")), "V1"),
        ({}, [], choosing("0.23.0", "LlamaForCausalLM", needs=("dense", "unquantised")), "V2"),
        (_MOE, [], choosing("0.23.0", "LlamaForCausalLM", needs=("dense", "unquantised")), "V1"),
        ({"num_experts": 0}, [], choosing("0.23.0", "LlamaForCausalLM", needs=("dense", "unquantised")), "V2"),
        ({"quantization_config": {}}, [], choosing("0.23.0", "LlamaForCausalLM", needs=("dense", "unquantised")), "V1"),
        (_MOE, [], choosing("0.24.0", "LlamaForCausalLM"), "V2"),
        ({}, [], choosing("0.25.0", "Other", others="dense"), "V2"),
        (_MOE, [], choosing("0.25.0", "Other", others="dense"), "V1"),
        ({"mamba_d_state": 16}, [], choosing("0.25.0", "Other", others="dense"), "V1"),
        (_MOE, [], choosing("0.29.0", others="all"), "V2"),
        ({}, [], choosing("0.29.0", others="all", not_methods=("eagle3",)), "V1"),
        ({}, ["-pp", "2"], choosing("0.29.0", others="all"), "V1"),
        ({}, ["-pp", "2"], choosing("0.30.0", others="all"), "V2"),
        ({}, config('"parallel_drafting": true'), choosing("0.33.0", others="all"), "V1"),
        ({}, config('"parallel_drafting": false'), choosing("0.33.0", others="all"), "V2"),
    ],
)
def test_the_model_runner_that_a_launch_takes(
    tmp_path: Path, drafter: Path, of_target: dict[str, Any], arguments: list[str], facts: EngineFacts, runner: str
) -> None:
    folder = write_target(tmp_path / "target", TARGET | dict(of_target))
    assert runner_of(subject_of(folder, drafter, facts, arguments)) == runner
