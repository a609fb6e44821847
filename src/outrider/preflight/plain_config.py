"""The config that an engine builds its drafter from: the folder's own, or what it makes of one in the layout of `speculators`."""

from collections.abc import Mapping
from typing import Any, Final

from packaging.version import Version

from outrider.preflight.check import Subject
from outrider.preflight.versions import version_of

_LAYER: Final = "transformer_layer_config"
_ARCHITECTURE: Final = "Eagle3LlamaForCausalLM"
# what vLLM takes over besides the layer's own config, and from which version on: configs/speculators/algos.py update_eagle3
_TAKEN: Final = (
    ("draft_vocab_size", "0.10.1", None),
    ("target_hidden_size", "0.10.1", None),
    ("norm_before_residual", "0.10.1", True),
    ("eagle_aux_hidden_state_layer_ids", "0.11.1", None),
    ("norm_before_fc", "0.19.0", False),
    ("fc_norm", "0.25.0", False),
    ("norm_output", "0.25.0", False),
)


def plain_config(subject: Subject) -> Mapping[str, Any]:
    """The drafter's config as its class gets it; one in a layout that is not known here comes back as it is."""
    config = subject.drafter_config
    layer = config.get(_LAYER)
    if subject.facts.engine != "vllm" or config.get("speculators_model_type") != "eagle3" or not isinstance(layer, dict):
        return config
    if layer.get("model_type", "llama") != "llama":
        return config
    version = version_of(subject.facts)
    taken = {key: config.get(key, default) for key, since, default in _TAKEN if Version(since) <= version}
    return layer | {key: value for key, value in taken.items() if value is not None} | {"architectures": [_ARCHITECTURE]}
