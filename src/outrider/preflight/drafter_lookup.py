"""Under which name an engine looks a drafter up, after its own rewrites of the config, and which class it finds."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from outrider.engines.facts import EngineFacts
from outrider.preflight.check import Subject, names_of
from outrider.preflight.reading import shown

# vllm/transformers_utils/configs/eagle.py: the prefix that a method puts before an architecture, and how names begin and
# end that get none
_PREFIXES: Final[Mapping[str, tuple[str, tuple[str, ...], tuple[str, ...]]]] = {
    "eagle": ("Eagle", ("Eagle",), ()),
    "eagle3": ("Eagle3", ("Eagle3",), ("Eagle3",)),
    "dflash": ("DFlash", ("DFlash", "LiLiCorr"), ("DFlash",)),
}
# vllm/transformers_utils/configs/speculators/algos.py: type of the drafter → type of its layer → architectures, the
# first that the version has; "" stands for any other layer
_SPECULATORS: Final[Mapping[str, Mapping[str, tuple[str, ...]]]] = {
    "eagle3": {"llama": ("Eagle3LlamaForCausalLM",), "qwen3": ("Eagle3Qwen3ForCausalLM", "Eagle3LlamaForCausalLM")},
    "peagle": {"llama": ("PeagleLlamaForCausalLM",), "qwen3": ("PeagleQwen3ForCausalLM", "PeagleLlamaForCausalLM")},
    "dflash": {"": ("DFlashDraftModel",)},
    "dflash2": {"": ("DFlash2DraftModel",)},
    "dspark": {"": ("Qwen3DSparkModel",)},
}
_SPECULATORS_TYPE: Final = "speculators"
# vLLM's method for a small language model that drafts by itself: any target's class serves it
_WHOLE_MODEL: Final = "draft_model"


@dataclass(frozen=True)
class Lookup:
    """What an engine makes of a drafter's config.

    Attributes:
        names: the architectures that it looks up, in order.
        served: the class of the first that it has; None if it has none of them.
        rewritten: how the names came about, where they are not those of the config; empty where they are.
        evidence: of the rewrites.
    """

    names: tuple[str, ...]
    served: str | None
    rewritten: str
    evidence: str


def look_up(subject: Subject) -> Lookup:
    """As the engine's version does it for the method that the drafter is run by."""
    facts, config = subject.facts, subject.drafter_config
    names = names_of(config.get("architectures"))
    if is_speculators(subject):
        made = _of_speculators(subject)
        return Lookup(made, _served(facts, made), f"the layout of speculators becomes {', '.join(made) or 'nothing'}", "")
    steps, evidence, model_type = [], [], config.get("model_type")
    for rewrite in facts.rewrites:
        if model_type in rewrite.types or (names and names[0] in rewrite.architectures):
            cause = f"model_type {model_type}" if model_type in rewrite.types else names[0]
            names, model_type = [rewrite.becomes] if rewrite.becomes else names, rewrite.becomes_type or model_type
            steps.append(f"{cause} becomes {rewrite.becomes or model_type}")
            evidence.append(rewrite.evidence)
    if not facts.registered:
        served = next((facts.drafters[name] for name in names if name in facts.drafters), None)
        return Lookup(tuple(names), served, "; ".join(steps), "; ".join(evidence))
    prefixed = [_prefixed(name, subject) for name in names]
    if prefixed != names and any(name in facts.registered or name in facts.targets for name in names):
        # looked up twice: before the prefix, when the config is read, and with it
        names = prefixed
        steps.append(f"{subject.method} makes {shown(names)[1:-1]} of it")
    served = _served(facts, names)
    if served is None and subject.method == _WHOLE_MODEL:
        served = next((facts.targets[name] for name in names if name in facts.targets), None)
    return Lookup(tuple(names), served, "; ".join(steps), "; ".join(evidence))


def is_speculators(subject: Subject) -> bool:
    """Whether the drafter is in the layout of the `speculators` library."""
    return "speculators_model_type" in subject.drafter_config


def reads_speculators(facts: EngineFacts) -> bool:
    """Whether this version reads that layout."""
    return _SPECULATORS_TYPE in facts.config_types


def _of_speculators(subject: Subject) -> tuple[str, ...]:
    layer = subject.drafter_config.get("transformer_layer_config")
    layer_type = layer.get("model_type", "llama") if isinstance(layer, dict) else "llama"
    made = _SPECULATORS.get(str(subject.drafter_config["speculators_model_type"]), {})
    names = made.get(str(layer_type), made.get("", ()))
    known = [name for name in names if name in subject.facts.registered]
    return tuple(known[:1] or names[:1])


def _prefixed(name: str, subject: Subject) -> str:
    rule = _PREFIXES.get(subject.method or "")
    if subject.facts.engine != "vllm" or rule is None:
        return name
    prefix, beginnings, endings = rule
    return name if name.startswith(beginnings) or (endings and name.endswith(endings)) else f"{prefix}{name}"


def _served(facts: EngineFacts, names: Iterable[str]) -> str | None:
    return next((facts.registered[name] for name in names if name in facts.registered), None)
