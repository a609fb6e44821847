"""Which tensors a drafter should hold for one version of an engine, by its config, and under which names they are read."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from packaging.specifiers import SpecifierSet

import outrider.formats.deepseek_eagle3_layout as deepseek
import outrider.formats.llama_eagle3_layout as llama
from outrider.core.errors import InputError
from outrider.engines.facts import Loading
from outrider.formats.llama_eagle3_layout import Shapes
from outrider.preflight.captured import KEY, num_fc_states, valued
from outrider.preflight.check import Subject, whole
from outrider.preflight.plain_config import plain_config
from outrider.preflight.reading import shown
from outrider.preflight.versions import version_of

EMBEDDING: Final = "embed_tokens.weight"
HEAD: Final = "lm_head.weight"
_LARGEST: Final = 2**31
_MOST_LAYERS: Final = 64
# keys that bring tensors which are not known here
_UNKNOWN_TENSORS: Final = ("quantization_config", "compression_config")
# engines build both norms in every layer, and use one of them from the second on: engine → the one that it does not use
_UNUSED_LATER: Final[Mapping[str, str]] = {"vllm": "hidden_norm.weight", "sglang": "input_layernorm.weight"}
# how a class with MLA attention is loaded, where that is not as the Llama class is: engine, versions, differences
_MLA_LOADING: Final[tuple[tuple[str, str, Mapping[str, Any]], ...]] = (
    ("vllm", "<0.25", {"unexpected": "silent"}),  # deepseek_eagle3.py load_weights: `if name not in params_dict: continue`
    (
        "sglang",
        "",  # kimi_k25_eagle3.py: Eagle3MLAModel, load_weights
        {"layer_names": ("midlayer", "layers.0"), "reads_model_prefix": False, "num_layers": "one", "needs_draft_vocab_size": False},
    ),
)
# keys of a config that bring a norm before `fc`, one for each state, and biases
_INPUT_NORM: Final = ("norm_before_fc", "eagle_config.norm_before_fc")
_STATE_NORMS: Final = ("fc_norm", "use_aux_norm")
_BIAS_KEYS: Final = ("attention_bias", "mlp_bias", "bias")
_LEGACY_NORMS: Final = ("aux_norm_low.weight", "aux_norm_mid.weight", "aux_norm_high.weight")


@dataclass(frozen=True)
class Layout:
    """A drafter's tensors, by our names: `midlayer` is the first layer, `layers.1` the second.

    Attributes:
        needed: the embedding, d2t and t2d are not among them.
        optional: others that have a place.
        loading: how they are read; None if that is not known.
    """

    needed: Shapes
    optional: Shapes
    hidden_size: int
    vocab_size: int
    draft_vocab_size: int
    num_layers: int
    has_mla: bool
    loading: Loading | None

    @property
    def shapes(self) -> Shapes:
        """Of every tensor that has a place."""
        return self.needed | self.optional

    def our_name(self, stored: str) -> str | None:
        """By which of our names the engine reads a tensor; None if it does not know the name."""
        name = stored
        if name.startswith("model."):
            if self.loading is not None and not self.loading.reads_model_prefix:
                return None
            name = name.removeprefix("model.")
        for prefix in ("midlayer", "layers.0") if self.loading is None else self.loading.layer_names:
            if name.startswith(f"{prefix}."):
                return f"midlayer.{name.removeprefix(f'{prefix}.')}"
        if name.startswith(("midlayer.", "layers.0.")):
            return None
        if name in _LEGACY_NORMS and self.loading is not None and self.loading.reads_model_prefix:
            return f"fc_norm.{_LEGACY_NORMS.index(name)}.weight"
        return name


@dataclass(frozen=True)
class _Sizes:
    """What both kinds of drafters have.

    Attributes:
        layer: width of the attention's input → the tensors of one layer.
    """

    hidden_size: int
    target_hidden_size: int
    intermediate_size: int
    vocab_size: int
    draft_vocab_size: int
    layer: Callable[[int], Shapes]


def layout_of(subject: Subject) -> Layout | str:
    """The layout that the drafter's config states, or why it cannot be told."""
    raw = dict(plain_config(subject))
    has_mla = deepseek.recognises(raw)
    if reason := _unknown(raw, has_mla):
        return reason
    try:
        sizes = _mla_sizes(raw, subject) if has_mla else _llama_sizes(raw, subject)
    except InputError as error:
        return f"{error.what}: {' '.join(error.evidence.split())[:300]}"
    numbers = (sizes.hidden_size, sizes.target_hidden_size, sizes.intermediate_size, sizes.vocab_size, sizes.draft_vocab_size)
    num_layers = whole(raw, "num_hidden_layers") or 1
    if max(numbers) >= _LARGEST or num_layers > _MOST_LAYERS:
        return "the drafter's config has a size beyond reason"
    num_states = num_fc_states(subject, has_mla=has_mla)
    extras = _extras(subject, sizes, num_states, has_mla)
    if isinstance(extras, str):
        return extras
    needed, optional = _layers(subject, sizes, num_layers, has_mla)
    needed |= {
        "fc.weight": (sizes.hidden_size, num_states * sizes.target_hidden_size),
        "norm.weight": (sizes.hidden_size,),
        HEAD: (sizes.draft_vocab_size, sizes.hidden_size),
    }
    optional |= {EMBEDDING: (sizes.vocab_size, sizes.hidden_size)}
    loading = loading_of(subject, has_mla=has_mla)
    return Layout(needed | extras, optional, sizes.hidden_size, sizes.vocab_size, sizes.draft_vocab_size, num_layers, has_mla, loading)


def loading_of(subject: Subject, *, has_mla: bool) -> Loading | None:
    """How this version reads a drafter of this kind; None if that could not be read."""
    loading = subject.facts.loading
    if loading is None or not has_mla:
        return loading
    for engine, versions, differences in _MLA_LOADING:
        if engine == subject.facts.engine and version_of(subject.facts) in SpecifierSet(versions, prereleases=True):
            loading = replace(loading, **differences)
    return loading


def _unknown(raw: Mapping[str, Any], has_mla: bool) -> str:
    """Why a drafter's tensors are not known here; empty if they are."""
    if "speculators_model_type" in raw:
        return "drafters of this kind in the layout of `speculators` are not read here"
    if not has_mla and not llama.recognises(dict(raw)):
        known = ", ".join((*llama.ARCHITECTURES, *deepseek.ARCHITECTURES))
        return f"tensors of {shown(raw.get('architectures'))} are not known here, only those of {known}"
    if others := [key for key in _UNKNOWN_TENSORS if raw.get(key)]:
        return f"tensors that come with {', '.join(others)} are not known here"
    if raw.get("model_type") == "llama4_text":
        return "drafters of type llama4_text are not known here"
    if raw.get("num_hidden_layers") is not None and whole(raw, "num_hidden_layers") is None:
        return f"num_hidden_layers is {shown(raw['num_hidden_layers'])}"
    if isinstance(raw.get("eagle_config"), dict) and raw["eagle_config"].get("use_aux_hidden_state") is False:
        return "drafters that use no aux layers are not known here"
    return ""


def _llama_sizes(raw: dict[str, Any], subject: Subject) -> _Sizes:
    nested = raw["eagle_config"].get(KEY) if isinstance(raw.get("eagle_config"), dict) else None
    if not raw.get(KEY) and not nested:  # the layers themselves are a check of their own
        raw[KEY] = [0]
    config = llama.config_from(raw, Path(subject.drafter_file))
    if max(abs(value) for value in config.model_dump().values() if isinstance(value, int)) >= _LARGEST:
        raise InputError("the drafter's config has a size beyond reason", evidence=subject.drafter_file)
    return _Sizes(
        config.hidden_size,
        config.target_hidden_size,
        config.intermediate_size,
        config.vocab_size,
        config.draft_vocab_size,
        lambda width: llama.layer_shapes(config, width),
    )


def _mla_sizes(raw: dict[str, Any], subject: Subject) -> _Sizes:
    sizes = deepseek.sizes_from(raw, Path(subject.drafter_file))
    if max(sizes.model_dump().values()) >= _LARGEST:
        raise InputError("the drafter's config has a size beyond reason", evidence=subject.drafter_file)
    return _Sizes(
        sizes.hidden_size,
        sizes.target_hidden_size,
        sizes.intermediate_size,
        sizes.vocab_size,
        sizes.draft_vocab_size,
        lambda width: deepseek.layer_shapes(sizes, width),
    )


def _layers(subject: Subject, sizes: _Sizes, num_layers: int, has_mla: bool) -> tuple[Shapes, Shapes]:
    """The tensors that the layers need, and those that they have and do not use."""
    needed: Shapes = {}
    optional: Shapes = {}
    for i in range(num_layers):
        shapes = sizes.layer(sizes.hidden_size if i else 2 * sizes.hidden_size)
        shapes |= {} if has_mla else _biases(subject, shapes)
        unused = _UNUSED_LATER.get(subject.facts.engine) if i else None
        for name, shape in shapes.items():
            (optional if name == unused else needed)[f"layers.{i}.{name}" if i else f"midlayer.{name}"] = shape
    return needed, optional


def _biases(subject: Subject, shapes: Shapes) -> Shapes:
    """Biases of a Llama layer, in the engines that build them: one a row of the weight."""
    config, engine = plain_config(subject), subject.facts.engine
    biased: list[str] = []
    if config.get("attention_bias") and engine == "vllm" and "attention_bias" in subject.facts.drafter_keys:
        biased += ["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"]
    if (config.get("attention_bias") or config.get("bias")) and engine in ("vllm", "sglang"):
        biased += ["self_attn.o_proj"]  # of the Llama layer that the drafter's inherits from, in every version
    if config.get("mlp_bias") and engine == "vllm":
        biased += ["mlp.gate_proj", "mlp.up_proj", "mlp.down_proj"]
    return {f"{name}.bias": shapes[f"{name}.weight"][:1] for name in biased}


def _extras(subject: Subject, sizes: _Sizes, num_states: int, has_mla: bool) -> Shapes | str:
    """Norms and a bias around `fc` that the config asks for and this version builds; or why that cannot be told."""
    config, facts = plain_config(subject), subject.facts
    asked = [key for key in (*_INPUT_NORM, *_STATE_NORMS, *_BIAS_KEYS) if valued(config, key)]
    if asked and not facts.drafter_keys:
        return f"whether {subject.engine} reads {', '.join(asked)} is not known"
    read = {key for key in asked if key in facts.drafter_keys}
    extras: Shapes = {}
    if read.intersection(_INPUT_NORM) and not has_mla:
        extras["input_norm.weight"] = (num_states * sizes.target_hidden_size,)
    if read.intersection(_STATE_NORMS):
        extras |= {f"fc_norm.{i}.weight": (sizes.target_hidden_size,) for i in range(num_states)}
    if config.get("bias") and facts.engine == "sglang":
        extras["fc.bias"] = (sizes.hidden_size,)
    return extras
