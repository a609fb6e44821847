"""Whether the engine would feed the drafter from the target layers that it was made for."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Final

from outrider.core.names import TRAINING_RECORD_FILE
from outrider.core.results import Finding, Verdict
from outrider.preflight.check import Check, Subject, finding, whole
from outrider.preflight.reading import read_object, shown

_ID = "aux_layers"
_KEY: Final = "eagle_aux_hidden_state_layer_ids"
_DEFAULT_NUM_LAYERS: Final = 3
_LARGEST: Final = 2**31
_DIES: Final = "the start ends, or the engine dies at the first request"


@dataclass(frozen=True)
class _Fault:
    verdict: Verdict
    title: str
    expected: str
    effect: str
    fix: str = "write the layers that the drafter was trained on into its config"


@dataclass(frozen=True)
class _Layers:
    """What the drafter's folder says of its layers.

    Attributes:
        given: as layers run: the top level is literal.
        nested: as they stand in eagle_config, to which SGLang adds its shift; None if there are none.
        trained: of the record that we write beside a drafter; None if there is none.
        num_target_layers: L, None if the target's config does not say.
    """

    given: tuple[int, ...]
    nested: tuple[int, ...] | None
    trained: tuple[int, ...] | None
    num_target_layers: int | None


def _run(subject: Subject) -> Finding:
    config = subject.drafter_config
    nested = config["eagle_config"].get(_KEY) if isinstance(config.get("eagle_config"), dict) else None
    for stands, place in ((config.get(_KEY), _KEY), (nested, f"eagle_config.{_KEY}")):
        if stands is not None and _whole_numbers(stands) is None:
            return _finding(subject, _Fault("fail", f"{place} is no list of layers: {shown(stands)}", "whole numbers", "the start ends"))
    layers = _Layers(
        given=_whole_numbers(config.get(_KEY)) or (),
        nested=_whole_numbers(nested) or None,
        trained=_trained_on(subject),
        num_target_layers=whole(subject.text_config, "num_hidden_layers"),
    )
    faults = [fault for look in _LOOKS if (fault := look(subject, layers))]
    for verdict in ("fail", "warn", "unknown"):
        if worst := [fault for fault in faults if fault.verdict == verdict]:
            return _finding(subject, replace(worst[0], title="; ".join(fault.title for fault in worst)))
    return finding(_ID, "pass", f"the drafter is fed from layers {list(_meant(layers) or layers.trained or ())}", _place(subject))


def _meant(layers: _Layers) -> tuple[int, ...]:
    """Layers run, where only SGLang's ids are given."""
    return layers.given or tuple(layer + 1 for layer in layers.nested or ())


def _default(num_layers: int) -> tuple[int, ...]:
    """What engines capture for a drafter that names no layers, at any depth."""
    return (2, num_layers // 2, num_layers - 3)


def _absent(subject: Subject, layers: _Layers) -> _Fault | None:
    """No literal ids: some engines refuse that, the others capture their default, or take SGLang's ids as literal ones."""
    behaviour, expected = subject.behaviour, f"{_KEY} at the top level"
    if layers.given or (layers.nested and behaviour.reads_nested_layers):
        return None
    if behaviour.needs_aux_layers:
        return _Fault("fail", "the config names no aux layers", expected, "the folder is refused")
    if layers.nested:
        title = f"only eagle_config names aux layers: {list(layers.nested)}, to which SGLang adds one"
        effect = "by version and runner, these are captured as they stand, or 2, L / 2, L - 3 instead"
        return _Fault("warn", title, f"{expected}: {list(_meant(layers))}", effect)
    default = _default(layers.num_target_layers) if layers.num_target_layers else None
    if layers.trained is None or default is None:
        effect = f"layers {list(default) if default else '2, L / 2, L - 3'} are captured, whatever the drafter was trained on"
        return _Fault("warn", "the config names no aux layers", expected, effect)
    if layers.trained == default:
        return None
    effect = f"layers {list(default)} are captured: nearly every draft is rejected"
    return _Fault("fail", "the config names no aux layers", f"{expected}: {list(layers.trained)}", effect)


def _outside(_: Subject, layers: _Layers) -> _Fault | None:
    if layers.num_target_layers is None:
        return _Fault("unknown", "the target's config does not say how many layers it has", "num_hidden_layers", "")
    outside = [layer for layer in _meant(layers) if not 0 <= layer <= layers.num_target_layers]
    if not outside:
        return None
    title = f"aux layers {outside} are outside the target, which has {layers.num_target_layers} layers"
    return _Fault("fail", title, f"0 to {layers.num_target_layers}", "the engine dies at the first request")


def _repeated(subject: Subject, layers: _Layers) -> _Fault | None:
    meant = _meant(layers)
    if len(set(meant)) == len(meant):
        return None
    drops = subject.facts.drops_duplicate_layers
    effect = "equal layers are captured once: fewer states than fc takes, and the engine dies at the first request"
    title = f"aux layers {list(meant)} are not all different"
    return _Fault("fail" if drops else "warn", title, "different layers", effect if drops else "the same state is fed twice")


def _width(subject: Subject, layers: _Layers) -> _Fault | None:
    """`fc` takes one target state a layer."""
    target_width, config = whole(subject.text_config, "hidden_size"), subject.drafter_config
    stated = whole(config, "target_hidden_size") or whole(config, "hidden_size")
    if target_width is None or stated is None:
        return _Fault("unknown", "the configs do not say how wide the target's states are", "hidden_size", "")
    if stated != target_width:
        title = f"the drafter is for target states of width {stated}, the target's have {target_width}"
        return _Fault("fail", title, str(target_width), _DIES, "a drafter for this target")
    count = len(_meant(layers)) or _DEFAULT_NUM_LAYERS
    fc = (subject.drafter_tensors or {}).get("fc.weight")
    if fc is None or fc.shape[1:] == (count * target_width,):
        return None
    title = f"fc takes {list(fc.shape[1:])} numbers, {count} layers of the target give {count * target_width}"
    return _Fault("fail", title, f"{count} x {target_width}", _DIES)


def _counted(subject: Subject, layers: _Layers) -> _Fault | None:
    if not subject.behaviour.counts_nested_layers or not layers.given:
        return None
    counted = whole(subject.drafter_config, "num_aux_hidden_states") or len(layers.nested or ()) or _DEFAULT_NUM_LAYERS
    if counted == len(layers.given):
        return None
    title = f"the config names {len(layers.given)} aux layers, and {subject.engine} makes fc for {counted}"
    fix = f"eagle_config.{_KEY} with as many ids, or num_aux_hidden_states"
    return _Fault("fail", title, str(len(layers.given)), _DIES, fix)


def _contradicted(_: Subject, layers: _Layers) -> _Fault | None:
    """Ids in eagle_config are SGLang's: one less each, or the same for the targets that it takes literally."""
    if not layers.given or layers.nested is None:
        return None
    if layers.nested in (layers.given, tuple(layer - 1 for layer in layers.given)):
        return None
    title = f"eagle_config names layers {list(layers.nested)}, the top level {list(layers.given)}"
    return _Fault("warn", title, str([layer - 1 for layer in layers.given]), "engines would feed it from different layers")


def _untrained(_: Subject, layers: _Layers) -> _Fault | None:
    meant = _meant(layers)
    if layers.trained is None or not meant or meant == layers.trained:
        return None
    title = f"the config names aux layers {list(meant)}, the drafter was trained on {list(layers.trained)}"
    return _Fault("fail", title, str(list(layers.trained)), "states that the drafter was not made for: nearly every draft is rejected")


_LOOKS: Final[tuple[Callable[[Subject, _Layers], _Fault | None], ...]] = (
    _absent,
    _outside,
    _repeated,
    _untrained,
    _width,
    _counted,
    _contradicted,
)


def _trained_on(subject: Subject) -> tuple[int, ...] | None:
    """The layers in the record that export leaves beside a drafter.

    Raises:
        InputError: a record that cannot be read.
    """
    path = subject.drafter_path / TRAINING_RECORD_FILE if subject.drafter_path else None
    if path is None or not path.exists():
        return None
    return _whole_numbers(read_object(path, "the drafter's training record").get("aux_layers")) or None


def _whole_numbers(value: Any) -> tuple[int, ...] | None:
    """A list of numbers that could be layers."""
    if isinstance(value, list) and all(isinstance(n, int) and not isinstance(n, bool) and abs(n) < _LARGEST for n in value):
        return tuple(value)
    return None


def _finding(subject: Subject, fault: _Fault) -> Finding:
    place, fix = _place(subject), "" if fault.verdict == "unknown" else fault.fix
    return finding(_ID, fault.verdict, fault.title, place, expected=fault.expected, effect=fault.effect, fix=fix)


def _place(subject: Subject) -> str:
    recorded = subject.drafter_path and (subject.drafter_path / TRAINING_RECORD_FILE).exists()
    return f"{subject.drafter_file}; {subject.target_file}" + (f"; {TRAINING_RECORD_FILE}" if recorded else "")


CHECK = Check(id=_ID, order=70, run=_run)
