"""How vLLM reads a drafter, and what it lists beside: read from small trees."""

from pathlib import Path

import pytest

from preflight.vllm_tree import read

OLD_DRAFTER = """
class LlamaModel(nn.Module):
    def __init__(self, vllm_config):
        self.layers = nn.ModuleList([LlamaDecoderLayer(self.config)])
        if hasattr(self.config, "target_hidden_size"):
            self.fc = Linear(self.config.target_hidden_size * 3)

    def load_weights(self, weights):
        for name, loaded_weight in weights:
            if 'midlayer.' in name:
                name = name.replace('midlayer.', 'layers.0.')
        return loaded


class Eagle3LlamaForCausalLM(LlamaForCausalLM):
    def __init__(self, vllm_config):
        self.lm_head = ParallelLMHead(self.config.draft_vocab_size)

    def load_weights(self, weights):
        for name, loaded_weight in weights:
            if "lm_head" not in name:
                name = "model." + name
        loader.load_weights(model_weights.items())
"""
NEW_DRAFTER = (
    OLD_DRAFTER.replace("[LlamaDecoderLayer(self.config)]", "[LlamaDecoderLayer(i) for i in range(self.config.num_hidden_layers)]")
    .replace(
        "        self.lm_head =",
        '        if getattr(self.config, "draft_vocab_size", None) is None:\n            pass\n        self.lm_head =',
    )
    .replace(
        "        if hasattr(self",
        '        eagle_config = getattr(self.config, "eagle_config", None) or {}\n'
        '        if "use_aux_hidden_state" in eagle_config:\n            pass\n'
        '        self.norm_before_fc = eagle_config.get("norm_before_fc", getattr(self.config, "norm_before_fc", False))\n'
        "        if hasattr(self",
    )
)
NEVER_SHARES = """
class EagleProposer:
    def load_model(self, target_model):
        self.model.model.embed_tokens = target.embed_tokens
        if self.vllm_config.speculative_config.method != "eagle3" and hasattr(target, "lm_head"):
            self.model.lm_head = target.lm_head
"""
SHARES_BY_SHAPE = """
class EagleProposer:
    def load_model(self, target_model):
        self.model.model.embed_tokens = target.embed_tokens
        if self.vllm_config.speculative_config.method != "eagle3":
            self.model.lm_head = target.lm_head
        else:
            if self.model.lm_head.weight.shape == target.lm_head.weight.shape:
                self.model.lm_head = target.lm_head
"""
SHARES_BY_FLAG = """
class Proposer:
    def _maybe_share_lm_head(self, target):
        if hasattr(self.model, "has_own_lm_head"):
            pass
    def _maybe_share_embeddings(self, target):
        self.model.model.embed_tokens = target.embed_tokens
"""
DRAFTER, PROPOSER = "model_executor/models/llama_eagle3.py", "v1/spec_decode/eagle.py"


@pytest.mark.parametrize(
    ("drafter", "proposer", "found"),
    [
        (OLD_DRAFTER, NEVER_SHARES, ("never", "target", "one", True)),
        (OLD_DRAFTER, SHARES_BY_SHAPE, ("absent", "target", "one", True)),
        (NEW_DRAFTER, SHARES_BY_FLAG, ("absent", "own", "many", False)),
    ],
)
def test_how_weights_are_read(tmp_path: Path, drafter: str, proposer: str, found: tuple[str, str, str, bool]) -> None:
    loading = read(tmp_path, {DRAFTER: drafter, PROPOSER: proposer}).loading
    assert loading is not None
    assert (loading.shares_head, loading.embedding, loading.num_layers, loading.needs_draft_vocab_size) == found
    assert (loading.layer_names, loading.reads_model_prefix) == (("midlayer", "layers.0"), False)
    assert (loading.missing, loading.unexpected) == ("silent", "refused")
    assert f"vllm/{DRAFTER}:" in loading.evidence and f"vllm/{PROPOSER}:" in loading.evidence


def test_what_else_a_drafter_class_may_do(tmp_path: Path) -> None:
    strict = (
        OLD_DRAFTER.replace("        loader.load", "        return loader.load")
        .replace("'midlayer.'", "'inner.'")
        .replace('            if "lm_head"', '            if not name.startswith("model.") and "lm_head"')
    )
    mla = "def load_weights(self):\n    for name in names:\n        if name not in params_dict:\n            continue\n"
    loading = read(
        tmp_path / "strict", {DRAFTER: strict, PROPOSER: SHARES_BY_FLAG, "model_executor/models/deepseek_eagle3.py": mla}
    ).loading
    assert loading is not None
    assert (loading.missing, loading.layer_names, loading.reads_model_prefix) == ("refused", ("layers.0",), True)
    assert loading.unexpected == "refused" and "deepseek_eagle3.py:3 drops unknown names" in loading.evidence
    loading = read(tmp_path / "lax", {DRAFTER: f"{OLD_DRAFTER}\n\n{mla}", PROPOSER: SHARES_BY_FLAG}).loading
    assert loading is not None and loading.unexpected == "silent"


def test_a_proposer_that_cannot_be_read(tmp_path: Path) -> None:
    assert read(tmp_path, {DRAFTER: NEW_DRAFTER, PROPOSER: "class Proposer: ..."}).loading is None


@pytest.mark.parametrize("text", [None, "", "class Eagle3LlamaForCausalLM(:", "class LlamaModel: ...\nclass Eagle3LlamaForCausalLM: ..."])
def test_a_drafter_class_that_cannot_be_read(tmp_path: Path, text: str | None) -> None:
    facts = read(tmp_path, {DRAFTER: text})
    assert facts.loading is None and facts.drafter_keys == ()


def test_the_keys_that_drafter_classes_read(tmp_path: Path) -> None:
    old = read(tmp_path / "old", {DRAFTER: OLD_DRAFTER}).drafter_keys
    assert old == ("draft_vocab_size", "target_hidden_size")
    new = read(
        tmp_path / "new", {DRAFTER: NEW_DRAFTER, "model_executor/models/qwen3_eagle3.py": "x = self.config.sliding_window"}
    ).drafter_keys
    nested = ("eagle_config", "eagle_config.norm_before_fc", "eagle_config.use_aux_hidden_state")
    assert new == ("draft_vocab_size", *nested, "norm_before_fc", "num_hidden_layers", "sliding_window", "target_hidden_size")


def test_default_layers(tmp_path: Path) -> None:
    function = "def get_eagle3_aux_hidden_state_layers(self):\n    return (2, num_layers // 2, num_layers - 3)\n"
    assert read(tmp_path / "told", {"model_executor/models/llama.py": function}).default_layers == ("2", "L // 2", "L - 3")
    assert read(tmp_path / "untold").default_layers == ()


def test_classes_that_define_the_method_where_there_is_no_interface(tmp_path: Path) -> None:
    changes: dict[str, str | None] = {
        "model_executor/models/interfaces.py": "class SupportsMultiModal(Protocol): ...\n",
        "model_executor/models/llama.py": "class LlamaForCausalLM(Module):\n    def set_aux_hidden_state_layers(self, layers): ...\n",
        "model_executor/models/looking/model.py": "from ..interfaces import SupportsMultiModal\nclass Looking(SupportsMultiModal): ...\n",
    }
    facts = read(tmp_path, changes)
    assert facts.interface_classes == frozenset({"LlamaForCausalLM", "ChildForCausalLM"})
    assert facts.interface_evidence.startswith("vllm/model_executor/models/llama.py:2 LlamaForCausalLM.set_aux_hidden_state_layers: 2 of")
    assert facts.multimodal_classes == frozenset({"Looking"})


def test_every_drafter_of_the_registry(tmp_path: Path) -> None:
    assert read(tmp_path).registered == {
        "EagleLlamaForCausalLM": "EagleLlamaForCausalLM",
        "Eagle3LlamaForCausalLM": "Eagle3LlamaForCausalLM",
        "LlamaForCausalLMEagle3": "Eagle3LlamaForCausalLM",
        "MedusaModel": "Medusa",
    }


def test_metrics_and_back_ends(tmp_path: Path) -> None:
    metrics = (
        '"""vllm:spec_decode_x is told."""\nnames = ("vllm:spec_decode_num_drafts", "vllm:other", "rate(vllm:spec_decode_num_drafts)")\n'
    )
    backends = "class AttentionBackendEnum(Enum):\n    FLASH_ATTN = 1\n    TRITON_MLA = ('x')\n    def get(self): ...\n"
    old_backends = "class Other: ...\nclass _Backend(enum.Enum):\n    XFORMERS = enum.auto()\n"
    new = read(tmp_path / "new", {"v1/spec_decode/metrics.py": metrics, "v1/attention/backends/registry.py": backends})
    assert new.metrics == ("vllm:spec_decode_num_drafts",)
    assert new.attention_backends == ("FLASH_ATTN", "TRITON_MLA")
    old = read(tmp_path / "old", {"platforms/interface.py": old_backends})
    assert (old.metrics, old.attention_backends) == ((), ("XFORMERS",))


def test_what_the_metadata_requires(tmp_path: Path) -> None:
    metadata = tmp_path / "vllm-1.2.3.dist-info" / "METADATA"
    metadata.parent.mkdir()
    metadata.write_text(
        "Name: vllm\nRequires-Dist: transformers<5,>=4.56.0\nRequires-Dist: torch==2.10.0; platform_system == 'Darwin'\n"
        'Requires-Dist: torch==2.10.0+cpu; platform_machine == "x86_64"\nRequires-Dist: ???\nRequires-Dist: torchaudio==1\n'
    )
    assert read(tmp_path).requires == {"transformers": "<5,>=4.56.0", "torch": "==2.10.0+cpu"}
