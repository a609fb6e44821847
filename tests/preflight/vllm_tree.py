"""Small trees in the shape of vLLM's source, and what is read from them."""

from pathlib import Path

from outrider.engines.environment import Environment
from outrider.engines.facts import EngineFacts
from outrider.engines.vllm.source_facts import facts_of

OLD_CONFIG = """
class SpeculativeConfig:
    def use_eagle(self):
        return self.method in ("eagle", "eagle3")

    def _verify_args(self):
        if self.num_speculative_tokens <= 0:
            raise ValueError("too few")
        allowed_for_eagle3 = [
            "llama",
            "qwen",
        ]
        if (
            self.method in ("eagle3", "dflash")
            and self.target_model_config
            and not any(part in self.target_model_config.hf_text_config.model_type for part in allowed_for_eagle3)
        ):
            raise ValueError("not allowed")
        return self
"""
OLDEST_CONFIG = """
class SpeculativeConfig:
    def _verify_args(self):
        if self.method == "eagle3" and "llama" not in self.target_model_config.hf_text_config.model_type:
            raise ValueError("not allowed")
"""
NEW_CONFIG = """
class SpeculativeConfig:
    def use_eagle(self):
        return self.method == "eagle3"

    def _verify_args(self):
        names = ["unrelated"]
        if self.method == "draft_model" and self.target_model_config.model_type in names:
            raise ValueError("vocabulary")
        return self
"""
REGISTRY = """
_TEXT_GENERATION_MODELS = {
    "LlamaForCausalLM": ("llama", "LlamaForCausalLM"),
    # a comment
    "LlamaChildForCausalLM": ("child", "ChildForCausalLM"),
    "OlderForCausalLM": ("older", "OlderForCausalLM"),
    "PerPlatformForCausalLM": ("vllm.models.chosen", "PerPlatformForCausalLM"),
    "SameForCausalLM": ("vllm.models.chosen", "SameForCausalLM"),
    "GoneForCausalLM": ("gone", "GoneForCausalLM"),
}
_EMBEDDING_MODELS = {"Embeds": ("llama", "LlamaForCausalLM")}
_MULTIMODAL_MODELS: dict[str, tuple[str, str]] = {"Looking": ("looking", "Looking")}
_SPECULATIVE_DECODING_MODELS = {
    "EagleLlamaForCausalLM": ("llama_eagle", "EagleLlamaForCausalLM"),
    "Eagle3LlamaForCausalLM": ("llama_eagle3", "Eagle3LlamaForCausalLM"),
    "LlamaForCausalLMEagle3": ("llama_eagle3", "Eagle3LlamaForCausalLM"),
    "MedusaModel": ("medusa", "Medusa"),
}
"""
FILES = {
    "model_executor/models/registry.py": REGISTRY,
    "model_executor/models/interfaces.py": "class SupportsPP:\n    pass\n\n\nclass SupportsEagle3(Base, Protocol):\n    pass\n",
    "model_executor/models/llama.py": """
import torch.nn as nn
from .interfaces import (
    SupportsPP,
    SupportsEagle3,
)
class LlamaModel(nn.Module):
    def forward(self):
        if idx in self.aux_hidden_state_layers:
            pass
class LlamaForCausalLM(
    nn.Module,
    SupportsPP, SupportsEagle3
):
    pass
""",
    "model_executor/models/child.py": """
from vllm.model_executor.models.llama import (  # the parent (a comment with brackets)
    LlamaForCausalLM as Parent,
)
if TYPE_CHECKING:
    class _Base(object):
        pass
else:
    _Base = Parent
class ChildForCausalLM(Mixin[int], _Base, metaclass=Meta):
    pass
class Mixin:
    pass
""",
    "model_executor/models/older.py": "from .interfaces import SupportsPP\nclass OlderForCausalLM(nn.Module, SupportsPP): ...\n",
    "model_executor/models/looking/__init__.py": "from .model import Looking\n__all__ = ['Looking']\n",
    "model_executor/models/looking/model.py": "from ..interfaces import SupportsEagle3\nclass Looking(SupportsEagle3): ...\n",
    "model_executor/models/llama_eagle3.py": """
class Eagle3LlamaForCausalLM:
    def __init__(self):
        if self.config.draft_vocab_size != target_vocab_size:
            self.draft_id_to_target_id = nn.Parameter(torch.zeros(1))
        else:
            self.draft_id_to_target_id = None
""",
    "models/chosen/__init__.py": """
if platform.is_rocm():
    from .amd import PerPlatformForCausalLM, SameForCausalLM
else:
    from .nvidia import PerPlatformForCausalLM, SameForCausalLM
""",
    "models/chosen/amd.py": "class PerPlatformForCausalLM: ...\nclass SameForCausalLM: ...\n",
    "models/chosen/nvidia.py": (
        "from vllm.model_executor.models.interfaces import SupportsEagle3\n"
        "class PerPlatformForCausalLM(SupportsEagle3): ...\nclass SameForCausalLM: ...\n"
    ),
    "transformers_utils/configs/eagle.py": 'kwargs["architectures"] = [f"Eagle3{arch}" for arch in names]\n',
    "config/vllm.py": "class VllmConfig:\n    def use_v2_model_runner(self): ...\n",
    "config/speculative.py": NEW_CONFIG,
    "v1/worker/cpu_worker.py": "if self.use_v2_model_runner: ...\n",
}


def read(folder: Path, changes: dict[str, str | None] | None = None, distribution: str = "vllm") -> EngineFacts:
    """The facts of a tree of FILES with some changed, or taken away."""
    for name, text in (FILES | (changes or {})).items():
        if text is not None:
            path = folder / "vllm" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
    (folder / "triton" / "backends" / "nvidia").mkdir(parents=True, exist_ok=True)
    return facts_of(Environment("x", "vllm", distribution, "1.2.3", Path("python"), folder, ours=False))
