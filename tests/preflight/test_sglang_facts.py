"""What is read from SGLang's source: small trees in the shape of the real one, and the facts that are kept of its versions."""

import re
from collections.abc import Mapping
from pathlib import Path

import pytest

from outrider.engines.environment import Environment
from outrider.engines.facts import EngineFacts, Rewrite
from outrider.engines.known import facts_of_version, known_versions
from outrider.engines.sglang.source_facts import facts_of
from outrider.preflight.stage import preflight

CAPTURE = "set_eagle3_layers_to_capture"
PLUS_ONE = "[val + 1 for val in layer_ids]"


def capture(otherwise: str) -> str:
    """The method that arranges what is captured, as SGLang's classes have it."""
    return f"""
    def {CAPTURE}(
        self, layer_ids: Optional[List[int]] = None
    ) -> None:
        num_layers = self.config.num_hidden_layers
        if layer_ids is None:
            self.model.layers_to_capture = [2, num_layers // 2, num_layers - 3]
        {otherwise}

    @classmethod
    def from_config(cls, config):
        return cls(config)
"""


EMBEDDING = "    def get_embed_and_head(self):\n        return None\n"
LLAMA_EAGLE3 = """
class LlamaModel(nn.Module):
    def __init__(self, config):
        self.size = config.hidden_size
        self.fc = nn.Linear(3, 1, bias=getattr(config, "bias", False))
        if hasattr(config, "target_hidden_size"):
            pass
        self.midlayer = LlamaDecoderLayer(config)
class LlamaForCausalLMEagle3(LlamaForCausalLM):
    def __init__(self, config):
        if self.config.num_hidden_layers != 1:
            raise ValueError("EAGLE3 currently only supports 1 layer")
        if config.draft_vocab_size is None:
            self.load_lm_head_from_target = True
    def load_weights(self, weights):
        for name, loaded_weight in weights:
            param_name = name if name in params_dict else f"model.{name}"
EntryClass = [LlamaForCausalLMEagle3]
"""
ARGUMENTS = """
ATTENTION_BACKEND_CHOICES = [
    # Common
    "triton",
    "fa3",
]
class ServerArgs:
    def add(parser):
        parser.add_argument(
            "--speculative-algorithm",
            type=str,
            choices=["EAGLE", "EAGLE3", "NEXTN"],
        )
        parser.add_argument("--speculative-draft-model-path", "--speculative-draft-model", type=str)
    def check(self):
        if self.pp_size > 1:
            assert (
                self.disable_overlap_schedule
                and self.speculative_algorithm is None
            ), "Pipeline parallelism is not compatible with overlap schedule, speculative decoding"
"""
FILES = {
    "models/llama.py": f"""
class LlamaModel(nn.Module):
    def forward(self):
        if i in self.layers_to_capture:
            pass
class LlamaForCausalLM(nn.Module):
{capture(f"else: self.model.layers_to_capture = {PLUS_ONE}")}
{EMBEDDING}
class Phi3ForCausalLM(LlamaForCausalLM):
    pass
EntryClass = [LlamaForCausalLM, Phi3ForCausalLM]  # , GoneForCausalLM
""",
    "models/llama_eagle3.py": LLAMA_EAGLE3.replace(
        "class LlamaModel", "from sglang.srt.models.llama import LlamaForCausalLM\nclass LlamaModel"
    ),
    "models/older.py": "class OlderForCausalLM(nn.Module):\n" + EMBEDDING + "EntryClass = OlderForCausalLM\n",
    "models/half.py": "class HalfForCausalLM(nn.Module):\n"
    + capture(f"else: self.model.layers_to_capture = {PLUS_ONE}")
    + "EntryClass = [HalfForCausalLM]\n",
    "models/same.py": (
        "from sglang.srt.models.llama import (\n    LlamaForCausalLM as SameForCausalLM,  # the parent\n)\n"
        "class SameForCausalLM(SameForCausalLM):\n    pass\nEntryClass = [SameForCausalLM]\n"
    ),
    "models/wrapper.py": f"""
from .first import FirstForCausalLM
class WrapperForConditionalGeneration(nn.Module):
    def __init__(self, config):
        self.language_model = None
        self.language_model = FirstForCausalLM(
            config.text_config
        )
    def {CAPTURE}(self, layer_ids=None):
        if hasattr(self.language_model, "{CAPTURE}"):
            self.language_model.{CAPTURE}(layer_ids)
{EMBEDDING}
EntryClass = [WrapperForConditionalGeneration]
""",
    "models/first.py": "class FirstForCausalLM(nn.Module):\n"
    + EMBEDDING
    + capture(
        f"elif layer_ids and layer_ids[0] == 1: self.model.layers_to_capture = {PLUS_ONE}\n"
        "        else: self.model.layers_to_capture = list(layer_ids)"
    )
    + "EntryClass = [FirstForCausalLM]\n",
    "models/deepseek_nextn.py": "class DeepseekV3ForCausalLMNextN(nn.Module):\n    pass\nEntryClass = [DeepseekV3ForCausalLMNextN]\n",
    "model_loader/utils.py": 'raise ValueError(\n    f"Cannot find model module. {arch}"\n)\n',
    "model_executor/model_runner.py": f"""
eagle_config = getattr(draft_model_config.hf_config, "eagle_config", None)
ids = eagle_config[
    "eagle_aux_hidden_state_layer_ids"
]
self.model.{CAPTURE}(ids)
""",
    "speculative/eagle_worker.py": "self.draft_model_runner.model.set_embed(embed)\n",
    "configs/model_config.py": """
MIMO_ARCHS = ("MiMoV2ForCausalLM", "MiMoV2FlashForCausalLM")
multimodal_model_archs = ["WrapperForConditionalGeneration"]
class ModelConfig:
    def _config_draft_model(self):
        if is_draft_model and self.hf_config.architectures[0] in [
            "DeepseekV3ForCausalLM",
        ]:
            self.hf_config.architectures[0] = "DeepseekV3ForCausalLMNextN"
        if is_draft_model and self.hf_config.architectures[0] in MIMO_ARCHS:
            self.hf_config.architectures[0] = "MiMoV2MTP"
        if is_draft_model and self.hf_config.architectures[0] == "Step3p7":
            self.hf_config.architectures = ["Step3p5MTP"]
        if self.hf_config.architectures[0] == "Other":
            self.hf_config.architectures[0] = "NotOfDrafters"
""",
    "configs/kimi.py": 'class KimiConfig(PretrainedConfig):\n    model_type = "kimi_k25"\nclass KimiChildConfig(KimiConfig):\n    pass\n',
    "utils/hf_transformers_utils.py": (
        '_CONFIG_REGISTRY = {\n    c.model_type: c for c in [KimiChildConfig]\n}\n_CONFIG_REGISTRY["kimi_k2"] = Alias\n'
    ),
    "metrics/collector.py": 'Gauge(name="sglang:spec_accept_length")\nGauge(name="sglang:num_running_reqs")\n',
    "server_args.py": ARGUMENTS,
}


def read(folder: Path, changes: Mapping[str, str | None] | None = None) -> EngineFacts:
    """The facts of a tree of FILES with some changed, or taken away."""
    for name, text in ({**FILES, **(changes or {})}).items():
        if text is not None:
            path = folder / "sglang" / "srt" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
    metadata = folder / "sglang-1.2.3.dist-info" / "METADATA"
    metadata.parent.mkdir(parents=True)
    metadata.write_text(
        "Requires-Dist: torch_memory_saver==0.0.8\n"
        'Requires-Dist: torch==2.8.0; extra == "srt"\nRequires-Dist: torch==2.9.0; extra == "cu130"\n'
    )
    return facts_of(Environment("x", "sglang", "sglang", "1.2.3", Path("python"), folder, ours=False))


def test_targets_and_drafters_are_told_apart_by_name(tmp_path: Path) -> None:
    facts = read(tmp_path)
    assert facts.registered == {name: name for name in ("DeepseekV3ForCausalLMNextN", "LlamaForCausalLMEagle3")}
    assert facts.drafters == {"LlamaForCausalLMEagle3": "LlamaForCausalLMEagle3"}
    assert set(facts.targets) == {
        "LlamaForCausalLM",
        "Phi3ForCausalLM",
        "OlderForCausalLM",
        "HalfForCausalLM",
        "SameForCausalLM",
        "WrapperForConditionalGeneration",
        "FirstForCausalLM",
    }
    assert facts.drafters_evidence.startswith("sglang/srt/models/llama_eagle3.py:10, ")
    assert "Cannot find model module` (sglang/srt/model_loader/utils.py:2)" in facts.drafters_evidence
    assert facts.target_types is None and facts.runner is None and facts.runner_choice is None


def test_the_interface_is_two_methods_inherited_ones_included(tmp_path: Path) -> None:
    facts = read(tmp_path)
    assert facts.interface_classes == frozenset(set(facts.targets) - {"OlderForCausalLM", "HalfForCausalLM"})
    assert facts.interface_evidence == (
        f"sglang/srt/models/llama.py:8 {CAPTURE}: 5 of 7 target classes have it and get_embed_and_head; without the latter: HalfForCausalLM"
    )


def test_layer_ids_follow_the_rule_of_the_class_they_are_passed_on_to(tmp_path: Path) -> None:
    facts = read(tmp_path)
    assert facts.layer_shifts == {
        "LlamaForCausalLM": "plus_one",
        "Phi3ForCausalLM": "plus_one",
        "SameForCausalLM": "plus_one",
        "WrapperForConditionalGeneration": "plus_one_if_first_is_1",
        "FirstForCausalLM": "plus_one_if_first_is_1",
    }
    assert facts.default_layers == ("2", "L // 2", "L - 3")
    assert facts.drops_duplicate_layers


@pytest.mark.parametrize(
    ("otherwise", "rule"),
    [
        ("else: self.model.layers_to_capture = list(layer_ids)", "literal"),
        (
            f"elif layer_ids and max(layer_ids) == num_layers: self.model.layers_to_capture = list(layer_ids)\n"
            f"        else: self.model.layers_to_capture = {PLUS_ONE}",
            "plus_one_unless_largest_is_L",
        ),
        ("else: self.model.layers_to_capture = [val + 2 for val in layer_ids]", "unknown"),
        (f"elif new: self.model.layers_to_capture = {PLUS_ONE}\n        else: self.model.layers_to_capture = list(layer_ids)", "unknown"),
        (f"else: self.language_model.{CAPTURE}(layer_ids)", "unknown"),
    ],
)
def test_a_rule_that_is_not_understood_is_unknown(tmp_path: Path, otherwise: str, rule: str) -> None:
    text = "class FirstForCausalLM(nn.Module):\n" + EMBEDDING + capture(otherwise) + "EntryClass = [FirstForCausalLM]\n"
    shifts = read(tmp_path, {"models/first.py": text}).layer_shifts
    assert shifts["FirstForCausalLM"] == shifts["WrapperForConditionalGeneration"] == rule


def test_what_is_made_of_a_drafters_config(tmp_path: Path) -> None:
    place = "sglang/srt/configs/model_config.py"
    assert read(tmp_path).rewrites == (
        Rewrite((), ("DeepseekV3ForCausalLM",), "DeepseekV3ForCausalLMNextN", "", f"{place}:6"),
        Rewrite((), ("MiMoV2ForCausalLM", "MiMoV2FlashForCausalLM"), "MiMoV2MTP", "", f"{place}:10"),
        Rewrite((), ("Step3p7",), "Step3p5MTP", "", f"{place}:12"),
    )


def test_loading_before_and_after_the_layer_was_renamed(tmp_path: Path) -> None:
    before = read(tmp_path / "before").loading
    assert before is not None
    assert (before.layer_names, before.reads_model_prefix, before.missing, before.unexpected) == (("midlayer",), True, "silent", "silent")
    assert (before.shares_head, before.embedding, before.num_layers, before.needs_draft_vocab_size) == ("null", "target", "one", True)
    assert before.evidence == "sglang/srt/models/llama_eagle3.py:16; sglang/srt/speculative/eagle_worker.py:1"
    renamed = FILES["models/llama_eagle3.py"].replace("        for name,", '        names = {"midlayer": "layers.0"}\n        for name,')
    renamed = renamed.replace('            raise ValueError("EAGLE3 currently only supports 1 layer")', "            pass")
    after = read(tmp_path / "after", {"models/llama_eagle3.py": renamed}).loading
    assert after is not None
    assert (after.layer_names, after.num_layers) == (("midlayer", "layers.0"), "many")


def test_a_version_that_would_refuse_tensors(tmp_path: Path) -> None:
    strict = FILES["models/llama_eagle3.py"].replace("EntryClass", "        raise KeyError(name)\nEntryClass")
    loading = read(tmp_path, {"models/llama_eagle3.py": strict}).loading
    assert loading is not None
    assert (loading.missing, loading.unexpected) == ("refused", "refused")


def test_keys_that_a_drafters_config_is_asked_for(tmp_path: Path) -> None:
    assert read(tmp_path).drafter_keys == (
        "bias",
        "draft_vocab_size",
        "eagle_config.eagle_aux_hidden_state_layer_ids",
        "hidden_size",
        "num_hidden_layers",
        "target_hidden_size",
    )


def test_the_runner(tmp_path: Path) -> None:
    runner = read(tmp_path).runners[""]
    assert [(key.path, key.shift) for key in runner.layer_keys] == [("eagle_config.eagle_aux_hidden_state_layer_ids", 1)]
    assert runner.layer_keys_evidence == "sglang/srt/model_executor/model_runner.py:3"
    assert (
        runner.interface_error == f"AttributeError: ... object has no attribute '{CAPTURE}' (sglang/srt/model_executor/model_runner.py:6)"
    )
    assert runner.pipeline == "none"


def test_pipelines_where_only_another_algorithm_is_taken(tmp_path: Path) -> None:
    hook = (
        'def check(cfg):\n    assert (\n        cfg.speculative_algorithm.upper() == "EAGLE"\n        and not cfg.multi\n    ), (\n'
        '        "Pipeline parallelism currently only supports EAGLE "\n    )\n'
    )
    changes = {"server_args.py": ARGUMENTS.replace("Pipeline parallelism is", "Something else is"), "arg_groups/validation_hook.py": hook}
    facts = read(tmp_path, changes)
    assert facts.runners[""].pipeline == "none"
    assert facts.source.endswith("sglang/srt/arg_groups/validation_hook.py:3")


def test_pipelines_that_nothing_is_said_of_are_unknown(tmp_path: Path) -> None:
    changes = {"server_args.py": ARGUMENTS.replace("Pipeline parallelism is", "Something else is")}
    assert read(tmp_path, changes).runners[""].pipeline == "unknown"


def test_arguments_that_are_listed(tmp_path: Path) -> None:
    facts = read(tmp_path)
    assert facts.methods == ("eagle", "eagle3", "nextn")
    assert facts.methods_evidence == "sglang/srt/server_args.py:10"
    assert facts.speculative_keys == ("algorithm", "draft_model", "draft_model_path")
    assert facts.attention_backends == ("triton", "fa3")


def test_arguments_that_are_fields(tmp_path: Path) -> None:
    fields = """
class SpecFields:
    speculative_algorithm: A[
        Optional[str],
        "Speculative algorithm.",
    ] = None
    speculative_inner: A[
        bool,
        Arg(no_cli=True),
    ] = False
    speculative_draft_model_path: A[Optional[str], Arg(aliases=["--speculative-draft-model"])] = None
    other: A[int, "Other."] = 0
"""
    enumeration = (
        "class SpeculativeAlgorithm(Enum):\n    EAGLE3 = auto()\n    DFLASH = auto()\n    NONE = auto()\n    def is_none(self): ...\n"
    )
    changes = {
        "server_args.py": "",
        "arg_groups/fields/spec.py": fields,
        "speculative/spec_info.py": enumeration,
        "speculative/spec_registry.py": '_RESERVED_ALIASES = frozenset({"NEXTN"})\n',
    }
    facts = read(tmp_path, changes)
    assert facts.methods == ("eagle3", "dflash", "nextn")
    assert facts.methods_evidence == "sglang/srt/speculative/spec_info.py:1"
    assert facts.speculative_keys == ("algorithm", "draft_model", "draft_model_path")


def test_configs_metrics_and_requirements(tmp_path: Path) -> None:
    facts = read(tmp_path)
    assert facts.config_types == ("kimi_k2", "kimi_k25")
    assert facts.multimodal_classes == frozenset({"WrapperForConditionalGeneration"})
    assert facts.metrics == ("sglang:spec_accept_length",)
    assert facts.requires == {"torch": "==2.8.0"}
    assert facts.source == "sglang 1.2.3: sglang/srt/models, sglang/srt/server_args.py:19"


@pytest.mark.parametrize("broken", [None, "", "def f(:\n", "\x00", "class A(\nclass B:\n    def load_weights"])
def test_an_environment_that_cannot_be_read_gives_facts_that_claim_nothing(tmp_path: Path, shared: Path, broken: str | None) -> None:
    facts = read(tmp_path, dict.fromkeys(FILES, broken))
    assert (facts.drafters, facts.targets, facts.interface_classes, facts.loading) == ({}, {}, frozenset(), None)
    assert (facts.methods, facts.speculative_keys, facts.rewrites, facts.default_layers) == ((), (), (), ())
    assert facts.runners[""].layer_keys == () and facts.runners[""].pipeline == "unknown"
    assert facts.interface_evidence.startswith("no class with") and facts.methods_evidence.startswith("no algorithms")
    result = preflight(shared / "configs" / "kimi-k2.5", shared / "configs" / "drafter-llama", facts)
    told = {finding.id: finding.verdict for finding in result.findings}
    assert told["target_interface"] == "unknown"


# --- the facts that are kept ------------------------------------------------------------------------------------------

VERSIONS = known_versions("sglang")


def first_with(interface_class: str) -> str:
    """The first version whose class hands out states."""
    return next(v for v in VERSIONS if interface_class in (facts_of_version("sglang", v).interface_classes or ()))


@pytest.mark.parametrize("version", VERSIONS)
def test_every_version_is_read_whole(version: str) -> None:
    facts = facts_of_version("sglang", version)
    runner, loading = facts.runners[""], facts.loading
    assert loading is not None and facts.interface_classes is not None
    evidence = (facts.interface_evidence, facts.drafters_evidence, facts.methods_evidence, runner.layer_keys_evidence, loading.evidence)
    assert all(re.match(r"sglang/srt/[\w/]+\.py:\d+", text) for text in evidence), evidence
    assert all(re.fullmatch(r"sglang/srt/configs/model_config\.py:\d+", rewrite.evidence) for rewrite in facts.rewrites)
    assert {rewrite.becomes for rewrite in facts.rewrites} <= set(facts.registered)
    assert {"eagle", "eagle3", "nextn"} <= set(facts.methods) and {"num_steps", "eagle_topk", "num_draft_tokens"} <= set(
        facts.speculative_keys
    )
    assert set(facts.layer_shifts) == facts.interface_classes <= set(facts.targets)
    assert facts.default_layers == ("2", "L // 2", "L - 3") and runner.pipeline == "none"
    assert set(facts.requires) == {"torch", "transformers"} and {"triton", "fa3", "flashinfer"} <= set(facts.attention_backends)
    assert not set(facts.targets) & set(facts.registered)
    # names that vLLM and speculators write
    assert not {"Eagle3LlamaForCausalLM", "LlamaForCausalLM"} & set(facts.drafters)
    assert {name for name, rule in facts.layer_shifts.items() if rule == "unknown"} <= {"MindSporeForCausalLM"}


@pytest.mark.parametrize(
    ("interface_class", "version"),
    [
        ("Qwen3MoeForCausalLM", "0.5.2"),
        ("ApertusForCausalLM", "0.5.3"),
        ("DeepseekV3ForCausalLM", "0.5.4.post2"),
        ("Glm4MoeForCausalLM", "0.5.5"),
        ("MiniMaxM2ForCausalLM", "0.5.5.post3"),
        ("KimiK25ForConditionalGeneration", "0.5.10"),
        ("Gemma3ForConditionalGeneration", "0.5.12"),
        ("Qwen3_5ForCausalLM", "0.5.22"),
    ],
)
def test_the_first_version_whose_class_hands_out_states(interface_class: str, version: str) -> None:
    assert first_with(interface_class) == version


def test_what_changed_between_versions() -> None:
    old, new = facts_of_version("sglang", "0.5.11"), facts_of_version("sglang", "0.5.12")
    assert old.loading is not None and new.loading is not None
    assert (old.loading.layer_names, old.loading.num_layers) == (("midlayer",), "one")
    assert (new.loading.layer_names, new.loading.num_layers) == (("midlayer", "layers.0"), "many")
    assert set(new.drafters) - set(old.drafters) == {"Eagle3DeepseekV2ForCausalLM"}
    kimi = "KimiK25ForConditionalGeneration"
    assert (new.layer_shifts[kimi], facts_of_version("sglang", "0.5.13").layer_shifts[kimi]) == ("plus_one", "plus_one_if_first_is_1")
    assert facts_of_version("sglang", "0.5.17").layer_shifts["GptOssForCausalLM"] == "plus_one_unless_largest_is_L"
    assert "kimi_k2" in new.config_types and "kimi_k2" not in old.config_types
    assert "AttributeError" in facts_of_version("sglang", "0.5.22").runners[""].interface_error
    assert "does not implement" in facts_of_version("sglang", "0.5.23").runners[""].interface_error
