"""The conditions by which a known fault says whom it concerns: what holds for one target, drafter and launch."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Final, Literal

from pydantic import ConfigDict

from outrider.core.results import Frozen
from outrider.preflight.captured import Captured, captured_layers, valued
from outrider.preflight.check import Subject, whole
from outrider.preflight.layout import Layout, layout_of
from outrider.preflight.plain_config import plain_config


class Condition(Frozen):
    """What must hold, all of it; a field that is not given says nothing. What cannot be told does not hold.

    Attributes:
        methods: of speculation.
        target_classes: the engine's class for the target is one of them.
        drafter_architectures: the drafter's config names one of them.
        tensor_parallel_above: the launch uses more GPUs than this for one layer.
        pipeline_above: the launch has more stages than this.
        custom_layer_ids: the engine reads the drafter's layers from its config, and they are not the default ones.
        layer_ids: the embeddings, or the state behind the last layer, are among the captured.
        num_aux_layers: the engine captures as many.
        num_layers_above: the drafter has more layers than this.
        mla_target: the target has MLA attention.
        quantised_target: the target's config speaks of quantisation.
        drafter_sets: keys of the drafter's config that are all set.
        drafter_nulls: keys that are all there and null.
        drafter_lacks: keys that are all absent or null.
        unread_keys: one of these keys is set and not read by this version; dotted where nested.
        own_tensors: the drafter holds all of these, by our names.
        whole_draft_vocabulary: the draft vocabulary is the whole one.
        plain_rope: the drafter's RoPE is not scaled.
        rope_theta_other_than: the drafter's RoPE base is another.
        shorter_drafter: the drafter's positions end before what is served.
        with_arguments: all of these are given.
        without_arguments: none of these is given.
        arguments_below_1: one of these is given and below 1.
        without_backends: the launch chooses none of these attention backends.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    methods: tuple[str, ...] | None = None
    target_classes: tuple[str, ...] | None = None
    drafter_architectures: tuple[str, ...] | None = None
    tensor_parallel_above: int | None = None
    pipeline_above: int | None = None
    custom_layer_ids: Literal[True] | None = None
    layer_ids: Literal["first", "last", "first or last"] | None = None
    num_aux_layers: int | None = None
    num_layers_above: int | None = None
    mla_target: Literal[True] | None = None
    quantised_target: Literal[True] | None = None
    drafter_sets: tuple[str, ...] | None = None
    drafter_nulls: tuple[str, ...] | None = None
    drafter_lacks: tuple[str, ...] | None = None
    unread_keys: tuple[str, ...] | None = None
    own_tensors: tuple[str, ...] | None = None
    whole_draft_vocabulary: Literal[True] | None = None
    plain_rope: Literal[True] | None = None
    rope_theta_other_than: float | None = None
    shorter_drafter: Literal[True] | None = None
    with_arguments: tuple[str, ...] | None = None
    without_arguments: tuple[str, ...] | None = None
    arguments_below_1: tuple[str, ...] | None = None
    without_backends: tuple[str, ...] | None = None


def holds(condition: Condition, subject: Subject) -> bool:
    """Whether all that a condition asks for holds."""
    return all(_TESTS[name](subject, wanted) for name in Condition.model_fields if (wanted := getattr(condition, name)) is not None)


def _is_custom(subject: Subject, _: Any) -> bool:
    captured, default = captured_layers(subject), captured_layers(replace(subject, drafter_config={}))
    return isinstance(captured, Captured) and bool(captured.key) and captured.layers != _layers(default)


def _layers(captured: Captured | str) -> tuple[int, ...] | None:
    return captured.layers if isinstance(captured, Captured) else None


def _captures_end(subject: Subject, wanted: str) -> bool:
    layers = _layers(captured_layers(subject)) or ()
    last = whole(subject.text_config, "num_hidden_layers")
    return ("first" in wanted and 0 in layers) or ("last" in wanted and last is not None and last in layers)


def _named(subject: Subject, wanted: tuple[str, ...]) -> bool:
    named = subject.drafter_config.get("architectures")
    return isinstance(named, list) and any(name in wanted for name in named if isinstance(name, str))


def _unread(subject: Subject, wanted: tuple[str, ...]) -> bool:
    """Not by the drafter's class, or not handed to it."""
    read, handed = subject.facts.drafter_keys, plain_config(subject)
    return bool(read) and any(valued(subject.drafter_config, key) and not (key in read and valued(handed, key)) for key in wanted)


def _holds_own(subject: Subject, wanted: tuple[str, ...]) -> bool:
    layout = layout_of(subject)
    if isinstance(layout, str) or subject.drafter_tensors is None:
        return False
    present = {layout.our_name(name) for name in subject.drafter_tensors}
    return present.issuperset(wanted)


def _is_whole(subject: Subject, _: Any) -> bool:
    layout = layout_of(subject)
    return isinstance(layout, Layout) and layout.draft_vocab_size == layout.vocab_size


def _rope(subject: Subject) -> dict[str, Any]:
    config = subject.drafter_config
    found: dict[str, Any] = next((config[key] for key in ("rope_parameters", "rope_scaling") if isinstance(config.get(key), dict)), {})
    return {"rope_theta": config.get("rope_theta"), **found}


def _is_plain_rope(subject: Subject, _: Any) -> bool:
    rope = _rope(subject)
    return (rope.get("rope_type") or rope.get("type") or "default") == "default"


def _has_other_theta(subject: Subject, wanted: float) -> bool:
    theta = _rope(subject).get("rope_theta")
    return isinstance(theta, int | float) and not isinstance(theta, bool) and theta != wanted


def _is_shorter(subject: Subject, _: Any) -> bool:
    drafter, target = whole(subject.drafter_config, "max_position_embeddings"), whole(subject.text_config, "max_position_embeddings")
    given = subject.arguments.values.get("max-model-len", "")
    served = int(given) if given.isascii() and given.isdigit() and len(given) < 10 else target
    return drafter is not None and served is not None and drafter < served


def _is_below_1(subject: Subject, wanted: tuple[str, ...]) -> bool:
    for name in wanted:
        try:
            if float(subject.arguments.values.get(name, "1")) < 1:
                return True
        except ValueError:
            continue
    return False


def _chooses_none(subject: Subject, wanted: tuple[str, ...]) -> bool:
    given = (subject.arguments.values.get("attention-backend", ""), subject.arguments.speculative.get("attention_backend"))
    return not any(isinstance(name, str) and name.upper() in wanted for name in given)


_TESTS: Final[Mapping[str, Callable[[Subject, Any], bool]]] = {
    "methods": lambda subject, wanted: subject.method in wanted,
    "target_classes": lambda subject, wanted: any(name in wanted for name in subject.target_classes[:1]),
    "drafter_architectures": _named,
    "tensor_parallel_above": lambda subject, wanted: subject.arguments.number("tensor-parallel-size", 1) > wanted,
    "pipeline_above": lambda subject, wanted: subject.arguments.number("pipeline-parallel-size", 1) > wanted,
    "custom_layer_ids": _is_custom,
    "layer_ids": _captures_end,
    "num_aux_layers": lambda subject, wanted: len(_layers(captured_layers(subject)) or ()) == wanted,
    "num_layers_above": lambda subject, wanted: (whole(subject.drafter_config, "num_hidden_layers") or 1) > wanted,
    "mla_target": lambda subject, _: whole(subject.text_config, "kv_lora_rank") is not None,
    "quantised_target": lambda subject, _: any(c.get("quantization_config") for c in (subject.target_config, subject.text_config)),
    "drafter_sets": lambda subject, wanted: all(subject.drafter_config.get(key) for key in wanted),
    "drafter_nulls": lambda subject, wanted: all(subject.drafter_config.get(key, 0) is None for key in wanted),
    "drafter_lacks": lambda subject, wanted: all(subject.drafter_config.get(key) is None for key in wanted),
    "unread_keys": _unread,
    "own_tensors": _holds_own,
    "whole_draft_vocabulary": _is_whole,
    "plain_rope": _is_plain_rope,
    "rope_theta_other_than": _has_other_theta,
    "shorter_drafter": _is_shorter,
    "with_arguments": lambda subject, wanted: all(name in subject.arguments.values for name in wanted),
    "without_arguments": lambda subject, wanted: not any(name in subject.arguments.values for name in wanted),
    "arguments_below_1": _is_below_1,
    "without_backends": _chooses_none,
}
