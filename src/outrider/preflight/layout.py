"""Which tensors a drafter should hold, by its config."""

from dataclasses import dataclass
from pathlib import Path

from outrider.core.errors import InputError
from outrider.formats.checkpoint import DrafterConfig
from outrider.formats.llama_eagle3_layout import ARCHITECTURES, config_from, expected_shapes, recognises
from outrider.preflight.check import Subject, whole
from outrider.preflight.reading import shown

# keys that bring tensors of their own, or other ones
_OTHER_TENSORS = ("attention_bias", "mlp_bias", "bias", "norm_before_fc", "fc_norm", "quantization_config", "compression_config")
_DEFAULT_NUM_LAYERS = 3
_LARGEST = 2**31


@dataclass(frozen=True)
class Layout:
    """A Llama-style drafter's shape.

    Attributes:
        shapes: of every tensor it must hold, by our names; the embedding, d2t and t2d are not among them.
    """

    config: DrafterConfig
    shapes: dict[str, tuple[int, ...]]


def layout_of(subject: Subject) -> Layout | str:
    """The layout that the drafter's config states, or why it cannot be told."""
    raw = dict(subject.drafter_config)
    if not recognises(raw):
        return f"tensors of {shown(raw.get('architectures'))} are not known here, only those of {', '.join(ARCHITECTURES)}"
    if raw.get("num_hidden_layers", 1) != 1:
        return f"drafters of {shown(raw['num_hidden_layers'])} layers are not known here"
    nested = raw["eagle_config"] if isinstance(raw.get("eagle_config"), dict) else {}
    if others := [key for key in _OTHER_TENSORS if raw.get(key) or nested.get(key)]:
        return f"tensors that come with {', '.join(others)} are not known here"
    if not raw.get("eagle_aux_hidden_state_layer_ids") and not nested.get("eagle_aux_hidden_state_layer_ids"):
        raw["eagle_aux_hidden_state_layer_ids"] = list(range(whole(raw, "num_aux_hidden_states") or _DEFAULT_NUM_LAYERS))
    try:
        config = config_from(raw, Path(subject.drafter_file))
    except InputError as error:
        return f"{error.what}: {' '.join(error.evidence.split())[:300]}"
    if max(abs(value) for value in config.model_dump().values() if isinstance(value, int)) >= _LARGEST:
        return "the drafter's config has a size beyond reason"
    return Layout(config, expected_shapes(config))
