"""vLLM's model runners, and which launch takes which, read from small trees."""

from pathlib import Path

import pytest

from outrider.engines.facts import ImageToken, LayerKey
from preflight.vllm_tree import REGISTRY, read

V1 = """
class GPUModelRunner:
    def __init__(self):
        self.use_aux_hidden_state_outputs = False
        if self.speculative_config and get_pp_group().is_last_rank:
            if self.speculative_config.method == "eagle3":
                self.use_aux_hidden_state_outputs = True

    def load_model(self):
        if self.use_aux_hidden_state_outputs:
            if not supports_eagle3(self.get_model()):
                raise RuntimeError("no interface " "here")
            self.model.set_aux_hidden_state_layers(self._get_eagle3_aux_layers_from_config())

    def _get_eagle3_aux_layers_from_config(self):
        hf_config = self.speculative_config.draft_model_config.hf_config
        layer_ids = getattr(hf_config, "eagle_aux_hidden_state_layer_ids", None)
        if not layer_ids:
            dflash_config = getattr(hf_config, "dflash_config", None)
            eagle_config = getattr(hf_config, "eagle_config", None)
            if dflash_config:
                layer_ids = [i + 1 for i in (dflash_config.get("target_layer_ids") or [])]
            if eagle_config:
                layer_ids = eagle_config.get("eagle_aux_hidden_state_layer_ids")
        return tuple(layer_ids)
"""
OLD_V1 = """
class GPUModelRunner:
    def load_model(self):
        if self.speculative_config.method == "eagle3":
            self.model.set_aux_hidden_state_layers(
                self.model.get_eagle3_aux_hidden_state_layers())
"""
V2 = """
def set_eagle3_aux_hidden_state_layers(model):
    if not supports_eagle3(model):
        raise RuntimeError("no interface")


def get_eagle3_aux_layers_from_config(spec_config):
    hf_config = spec_config.draft_model_config.hf_config
    if not hasattr(hf_config, "eagle_aux_hidden_state_layer_ids"):
        return None
    layer_ids = hf_config.eagle_aux_hidden_state_layer_ids
    if not layer_ids:
        dspark_layer_ids = getattr(hf_config, "dspark_target_layer_ids", None)
        if dspark_layer_ids:
            layer_ids = [i + 1 for i in dspark_layer_ids]
    if not layer_ids:
        target_layer_ids = getattr(hf_config, "target_layer_ids", None)
        if target_layer_ids:
            layer_ids = [i + 1 for i in target_layer_ids]
    if not layer_ids:
        for config_name in ("dflash_config", "eagle_config"):
            drafter_config = getattr(hf_config, config_name, None)
            if drafter_config:
                layer_ids = drafter_config.get("layer_ids")
    return tuple(layer_ids)
"""
PROPOSER = """
class Proposer:
    def propose(self):
        assert isinstance(builder, TreeBuilder)
        if self.method == "eagle3":
            assert isinstance(self.model, (Eagle3LlamaForCausalLM, DFlashQwen3ForCausalLM))

    def load_model(self, target_model):
        if supports_multimodal(target_model):
            assert hasattr(target_model, "config")
            if self.get_model_name(target_model) in ["AForConditionalGeneration", "BForConditionalGeneration"]:
                self.model.config.image_token_index = target_model.config.image_token_id
            elif self.get_model_name(target_model) == "PixtralForConditionalGeneration":
                self.model.config.image_token_index = (
                    target_model.config.vision_config.image_token_id
                )
            else:
                self.model.config.image_token_index = target_model.config.image_token_index
            target_language_model = target_model.get_language_model()
"""
FILES: dict[str, str | None] = {
    "v1/worker/gpu_model_runner.py": V1,
    "v1/spec_decode/eagle.py": PROPOSER,
    "v1/worker/gpu/spec_decode/eagle/eagle3_utils.py": V2,
    "v1/worker/gpu/model_runner.py": 'if use_pp:\n    raise ValueError("EAGLE3 with pipeline parallel is not supported.")\n',
}


def test_the_first_runner(tmp_path: Path) -> None:
    runner = read(tmp_path, FILES).runners["V1"]
    assert runner.layer_keys == (
        LayerKey("eagle_aux_hidden_state_layer_ids", 0),
        LayerKey("eagle_config.eagle_aux_hidden_state_layer_ids", 0),
    )
    assert runner.layer_keys_evidence == "vllm/v1/worker/gpu_model_runner.py:15"
    assert runner.image_token == ImageToken(
        "image_token_index",
        {
            "AForConditionalGeneration": "image_token_id",
            "BForConditionalGeneration": "image_token_id",
            "PixtralForConditionalGeneration": "vision_config.image_token_id",
        },
        "vllm/v1/spec_decode/eagle.py:12",
    )
    assert runner.drafter_classes == ("Eagle3LlamaForCausalLM", "DFlashQwen3ForCausalLM")
    assert runner.drafter_classes_evidence == "vllm/v1/spec_decode/eagle.py:6"
    assert runner.interface_error == "RuntimeError: no interface here (vllm/v1/worker/gpu_model_runner.py:12)"
    assert runner.pipeline == "none"


def test_the_second_runner(tmp_path: Path) -> None:
    runner = read(tmp_path, FILES).runners["V2"]
    assert runner.layer_keys == (
        LayerKey("eagle_aux_hidden_state_layer_ids", 0),
        LayerKey("target_layer_ids", 1),
        LayerKey("eagle_config.layer_ids", 0),
    )
    assert (runner.image_token, runner.drafter_classes) == (None, None)
    assert runner.interface_error == "RuntimeError: no interface (vllm/v1/worker/gpu/spec_decode/eagle/eagle3_utils.py:4)"
    assert runner.pipeline == "none"


def test_a_version_without_the_second_runner(tmp_path: Path) -> None:
    assert list(read(tmp_path, FILES | {"v1/worker/gpu/spec_decode/eagle/eagle3_utils.py": None}).runners) == ["V1"]


def test_a_runner_that_asks_the_model_only(tmp_path: Path) -> None:
    plain = PROPOSER.replace("if self.get_model_name(target_model) in", "if False and").replace("elif self.get", "elif False and self.get")
    runner = read(tmp_path, FILES | {"v1/worker/gpu_model_runner.py": OLD_V1, "v1/spec_decode/eagle.py": plain}).runners["V1"]
    assert runner.layer_keys == ()
    assert runner.layer_keys_evidence.startswith("vllm/v1/worker/gpu_model_runner.py:5 the target's own layers")
    assert runner.interface_error == "AttributeError: no attribute 'set_aux_hidden_state_layers' (vllm/v1/worker/gpu_model_runner.py:5)"
    assert runner.pipeline == "unknown"


def test_a_proposer_without_a_choice_reads_one_attribute(tmp_path: Path) -> None:
    simple = """
class Proposer:
    def load_model(self, target_model):
        if supports_multimodal(target_model):
            self.model.config.image_token_index = (
                target_model.config.image_token_index)
"""
    runner = read(tmp_path, FILES | {"v1/spec_decode/eagle.py": simple}).runners["V1"]
    assert runner.image_token == ImageToken("image_token_index", {}, "vllm/v1/spec_decode/eagle.py:5")
    assert (runner.drafter_classes, runner.drafter_classes_evidence) == (None, "")


@pytest.mark.parametrize("text", ["", "eagle3 = (", "# eagle3\n"])
def test_broken_runners_claim_nothing(tmp_path: Path, text: str) -> None:
    for runner in read(tmp_path, dict.fromkeys(FILES, text)).runners.values():
        assert (runner.layer_keys, runner.image_token, runner.drafter_classes) == ((), None, None)
        assert (runner.interface_error, runner.pipeline) == ("", "unknown")
        assert "no " in runner.layer_keys_evidence


CHOICE = """
DEFAULT_ARCHITECTURES = frozenset({"Qwen3ForCausalLM", "LlamaForCausalLM"})
OTHERS = frozenset({"Unrelated"})


def default_architectures() -> frozenset[str]:
    if current_platform.is_rocm():
        return DEFAULT_ARCHITECTURES - {"LlamaForCausalLM"}
    return DEFAULT_ARCHITECTURES


class VllmConfig:
    def use_v2_model_runner(self) -> bool:
        if not self._is_default_v2_model_runner_model():
            return False
        return HAS_TRITON

    def _is_default_v2_model_runner_model(self) -> bool:
        if self.model_config is None:
            return False
        if not any(arch in DEFAULT_ARCHITECTURES for arch in architectures):
            return False
        return not model_config.is_moe and not model_config.is_quantized

    def _get_v2_model_runner_unsupported_features(self) -> list[str]:
        if speculative_config.method in ("ngram", "suffix"):
            unsupported.append("ngram")
        elif speculative_config.method not in ("eagle", "eagle3", "mtp"):
            unsupported.append("method")
        if speculative_config.parallel_drafting and speculative_config.method not in ("dflash",):
            unsupported.append("parallel")
        return unsupported
"""
WORDS = """
MTPModelTypes = Literal["deepseek_mtp", "mtp"]
SpeculativeMethod = Literal["ngram", "suffix", "medusa", "eagle", "eagle3", MTPModelTypes]
class SpeculativeConfig: ...
"""


def test_the_choice_by_a_list(tmp_path: Path) -> None:
    choice = read(tmp_path, {"config/vllm.py": CHOICE, "config/speculative.py": WORDS}).runner_choice
    assert choice is not None
    assert (choice.listed, choice.listed_needs, choice.others) == (
        ("Qwen3ForCausalLM", "LlamaForCausalLM"),
        ("dense", "unquantised"),
        "none",
    )
    assert choice.not_methods == ("ngram", "suffix", "medusa")
    assert choice.needs_triton and choice.evidence == "vllm/config/vllm.py:13"


def test_the_choice_by_a_function_and_for_every_dense_target(tmp_path: Path) -> None:
    text = CHOICE.replace("arch in DEFAULT_ARCHITECTURES for", "arch in default_architectures() for").replace(
        "return not model_config.is_moe and not model_config.is_quantized", "return is_listed or not model_config.is_moe"
    )
    choice = read(tmp_path, {"config/vllm.py": text}).runner_choice
    assert choice is not None
    assert (choice.listed, choice.listed_needs, choice.others) == (("Qwen3ForCausalLM", "LlamaForCausalLM"), (), "dense")


def test_the_choice_of_all(tmp_path: Path) -> None:
    text = CHOICE.replace("if not self._is_default_v2_model_runner_model():", "if self.unsupported:")
    choice = read(tmp_path, {"config/vllm.py": text}).runner_choice
    assert choice is not None and (choice.listed, choice.others) == ((), "all")


@pytest.mark.parametrize("text", [None, "", "def use_v2_model_runner(:", "class VllmConfig: ..."])
def test_no_choice_where_only_a_variable_chooses(tmp_path: Path, text: str | None) -> None:
    assert read(tmp_path, {"config/vllm.py": text}).runner_choice is None


STAGES: dict[str, str | None] = {
    "v1/worker/gpu_model_runner.py": V1,
    "v1/worker/gpu/spec_decode/eagle/eagle3_utils.py": V2
    + "\n\ndef check(model, use_pp):\n    if use_pp:\n        verify_supports_aux_hidden_states_over_pp(model)\n",
    "model_executor/models/registry.py": REGISTRY.replace(
        '"Looking": ("looking", "Looking")', '"Looking": ("looking", "Looking"), "Mute": ("looking", "Mute")'
    ),
    "model_executor/models/interfaces.py": (
        "class EagleModelMixin:\n    supports_aux_hidden_states_over_pp: ClassVar[bool] = False\n\n\nclass SupportsEagle3: ...\n"
    ),
    "model_executor/models/llama.py": """
from .interfaces import EagleModelMixin, SupportsEagle3
class LlamaModel(EagleModelMixin):
    supports_aux_hidden_states_over_pp = True
    def forward(self): ...
class LlamaForCausalLM(SupportsEagle3):
    def __init__(self):
        self.model = self._init_model(vllm_config)
    def _init_model(self):
        return LlamaModel(vllm_config)
""",
    "model_executor/models/child.py": """
from .llama import LlamaForCausalLM, LlamaModel
class ChildModel(LlamaModel):
    supports_aux_hidden_states_over_pp = False
class ChildForCausalLM(LlamaForCausalLM):
    def __init__(self):
        self.model = ChildModel()
""",
    "model_executor/models/older.py": "from .llama import LlamaForCausalLM\nclass OlderForCausalLM(LlamaForCausalLM): ...\n",
    "model_executor/models/looking/model.py": """
from ..interfaces import SupportsEagle3
class Looking(SupportsEagle3):
    def __init__(self):
        self.language_model = init_vllm_registered_model(config, architectures=["LlamaForCausalLM"])
class Mute(Looking):
    def __init__(self):
        self.language_model = init_vllm_registered_model(config)
""",
    "model_executor/models/looking/__init__.py": "from .model import Looking, Mute\n",
}


def test_classes_that_hand_states_over_stages(tmp_path: Path) -> None:
    facts = read(tmp_path, STAGES)
    assert facts.runners["V2"].pipeline == "listed"
    # a child that takes it back, and a wrapper that leaves its language model to the target's config, are not among them
    assert facts.pipeline_classes == frozenset({"LlamaForCausalLM", "OlderForCausalLM", "Looking"})


def test_no_class_hands_states_over_before_there_was_a_flag(tmp_path: Path) -> None:
    assert read(tmp_path, STAGES | {"model_executor/models/interfaces.py": "class SupportsEagle3: ...\n"}).pipeline_classes == frozenset()
