"""Whether the engine would feed the drafter from the target layers that it was made for."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

from outrider.core.names import TRAINING_RECORD_FILE
from outrider.core.results import Finding, Verdict
from outrider.formats.deepseek_eagle3_layout import recognises as has_mla
from outrider.preflight.captured import KEY, NESTED_KEY, Captured, captured_layers, layer_ids, num_fc_states, valued
from outrider.preflight.check import Check, Subject, finding, whole
from outrider.preflight.plain_config import plain_config
from outrider.preflight.reading import read_object, shown

_ID = "aux_layers"
_ALGORITHMS: Final = ("eagle3", "peagle", None)
_DIES: Final = "the start ends, or the engine dies at the first request"
_REJECTED: Final = "states that the drafter was not made for: fewer drafts are accepted, or nearly none"


@dataclass(frozen=True)
class _Fault:
    verdict: Verdict
    title: str
    expected: str
    effect: str
    fix: str = "write the layers that the drafter was trained on into its config"


@dataclass(frozen=True)
class _Layers:
    """What the drafter's folder says of its layers, and what the engine makes of it.

    Attributes:
        given: as layers run: the top level is literal.
        nested: as they stand in eagle_config, to which SGLang adds its shift; empty if there are none.
        trained: of the record that we write beside a drafter; None if there is none.
        captured: by the engine, as layers run; None if it cannot be told.
        source: the key that the engine takes them from; empty for its default.
        num_target_layers: L, None if the target's config does not say.
    """

    given: tuple[int, ...]
    nested: tuple[int, ...]
    trained: tuple[int, ...] | None
    captured: tuple[int, ...] | None
    source: str
    num_target_layers: int | None

    @property
    def meant(self) -> tuple[int, ...]:
        """What the config means, as layers run: ids in eagle_config alone are those that SGLang adds one to."""
        return self.given or tuple(layer + 1 for layer in self.nested)


def _run(subject: Subject) -> Finding:
    config = subject.drafter_config
    if subject.algorithm not in _ALGORITHMS:
        return finding(_ID, "unknown", f"aux layers of {shown(subject.algorithm)} drafters are not looked at", subject.drafter_file)
    for place in (KEY, NESTED_KEY):
        stands = valued(config, place)
        if stands is not None and layer_ids(stands) is None:
            return _finding(subject, _Fault("fail", f"{place} is no list of layers: {shown(stands)}", "whole numbers", "the start ends"))
    captured = captured_layers(subject)
    known = captured if isinstance(captured, Captured) else None
    layers = _Layers(
        given=layer_ids(valued(config, KEY)) or (),
        nested=layer_ids(valued(config, NESTED_KEY)) or (),
        trained=_trained_on(subject),
        captured=known.layers if known else None,
        source=known.key if known else "",
        num_target_layers=whole(subject.text_config, "num_hidden_layers"),
    )
    faults = [fault for look in _LOOKS if (fault := look(subject, layers))]
    if isinstance(captured, str):
        faults.append(_Fault("unknown", captured, "", ""))
    for verdict in ("fail", "warn", "unknown"):
        if worst := [fault for fault in faults if fault.verdict == verdict]:
            return _finding(subject, replace(worst[0], title="; ".join(fault.title for fault in worst)))
    return finding(_ID, "pass", f"the drafter is fed from layers {list(layers.captured or ())}", _place(subject))


def _unnamed(subject: Subject, layers: _Layers) -> _Fault | None:
    """No ids that this engine reads."""
    if layers.captured is None or layers.source:
        return None
    expected = f"{_read_from(subject)}: {list(layers.trained or layers.meant)}" if layers.trained or layers.meant else _read_from(subject)
    if not layers.captured:
        return _Fault("fail", "the config names no aux layers", expected, "the folder is refused")
    wanted = layers.trained or layers.meant
    named = f"the config names aux layers only where {subject.engine} does not look" if layers.meant else "the config names no aux layers"
    if layers.captured == wanted:
        return None
    effect = f"layers {list(layers.captured)} are captured"
    if not wanted:
        return _Fault("warn", named, expected, f"{effect}, whatever the drafter was trained on")
    sure = layers.trained is not None or bool(layers.given)
    return _Fault("fail" if sure else "warn", named, expected, f"{effect}, not {list(wanted)}: nearly every draft is rejected")


def _read_from(subject: Subject) -> str:
    """The places where the engine looks."""
    runner = subject.runner_facts
    return " or ".join(key.path for key in runner.layer_keys) if runner and runner.layer_keys else "no key is read by this version"


def _shifted(subject: Subject, layers: _Layers) -> _Fault | None:
    """Ids that the engine reads, and takes for other layers than were meant."""
    if not layers.captured or not layers.source:
        return None
    if layers.trained is not None or layers.given:
        wanted = layers.trained or layers.given
        if layers.captured == wanted:
            return None
        title = f"{subject.engine} takes {layers.source} for layers {list(layers.captured)}, the drafter is for {list(wanted)}"
        return _Fault("fail", title, str(list(wanted)), _REJECTED)
    title = f"only eagle_config names aux layers: {list(layers.nested)}; {subject.engine} takes them for layers {list(layers.captured)}"
    if layers.captured != layers.meant and layers.nested[0] == 1:
        effect = f"to these, SGLang adds one: if the drafter was trained for it, {list(layers.meant)} are its layers"
        return _Fault("warn", title, f"{KEY}: {list(layers.meant)}", effect)
    if layers.nested[0] == 1:
        return None
    effect = f"right if the drafter was trained on these; engines differ here, and {list(layers.meant)} may be meant"
    return _Fault("warn", title, f"{KEY} at the top level, as layers run", effect)


def _outside(_: Subject, layers: _Layers) -> _Fault | None:
    if layers.num_target_layers is None:
        return _Fault("unknown", "the target's config does not say how many layers it has", "num_hidden_layers", "")
    outside = sorted({layer for layer in (*layers.meant, *(layers.captured or ())) if not 0 <= layer <= layers.num_target_layers})
    if not outside:
        return None
    title = f"aux layers {outside} are outside the target, which has {layers.num_target_layers} layers"
    return _Fault("fail", title, f"0 to {layers.num_target_layers}", "the engine dies at the first request")


def _repeated(subject: Subject, layers: _Layers) -> _Fault | None:
    looked_at = layers.captured or layers.meant
    if len(set(looked_at)) == len(looked_at):
        return None
    drops = subject.facts.drops_duplicate_layers
    effect = "equal layers are captured once: fewer states than fc takes, and the engine dies at the first request"
    title = f"aux layers {list(looked_at)} are not all different"
    return _Fault("fail" if drops else "warn", title, "different layers", effect if drops else "the same state is fed twice")


def _unordered(subject: Subject, layers: _Layers) -> _Fault | None:
    """Engines capture while they run the layers, whatever the order in the config."""
    looked_at = layers.captured or layers.meant
    if list(looked_at) == sorted(looked_at):
        return None
    title = f"aux layers {list(looked_at)} are not in the order of the layers"
    return _Fault("warn", title, str(sorted(looked_at)), f"{subject.engine} hands them to fc in the order of the layers")


def _width(subject: Subject, layers: _Layers) -> _Fault | None:
    """`fc` takes one target state a layer."""
    target_width, config = whole(subject.text_config, "hidden_size"), plain_config(subject)
    stated = whole(config, "target_hidden_size") or whole(config, "hidden_size")
    if target_width is None or stated is None:
        return _Fault("unknown", "the configs do not say how wide the target's states are", "hidden_size", "")
    if stated != target_width:
        title = f"the drafter is for target states of width {stated}, the target's have {target_width}"
        return _Fault("fail", title, str(target_width), _DIES, "a drafter for this target")
    count = len(layers.captured or layers.meant) or num_fc_states(subject, has_mla=has_mla(config))
    fc = (subject.drafter_tensors or {}).get("fc.weight")
    if fc is None or fc.shape[1:] == (count * target_width,):
        return None
    title = f"fc takes {list(fc.shape[1:])} numbers, {count} layers of the target give {count * target_width}"
    return _Fault("fail", title, f"{count} x {target_width}", _DIES)


def _counted(subject: Subject, layers: _Layers) -> _Fault | None:
    """Some versions make fc for three states, or for as many as another key says."""
    counted = num_fc_states(subject, has_mla=has_mla(subject.drafter_config))
    if not layers.captured or counted == len(layers.captured):
        return None
    title = f"{subject.engine} captures {len(layers.captured)} aux layers, and makes fc for {counted}"
    fix = f"eagle_config.{KEY} with as many ids, or num_aux_hidden_states; a version that reads them"
    return _Fault("fail", title, str(len(layers.captured)), _DIES, fix)


def _contradicted(_: Subject, layers: _Layers) -> _Fault | None:
    """Ids in eagle_config are SGLang's: one less each, or the same for the targets that it takes literally."""
    if not layers.given or not layers.nested:
        return None
    if layers.nested in (layers.given, tuple(layer - 1 for layer in layers.given)):
        return None
    title = f"eagle_config names layers {list(layers.nested)}, the top level {list(layers.given)}"
    return _Fault("warn", title, str([layer - 1 for layer in layers.given]), "engines would feed it from different layers")


def _untrained(_: Subject, layers: _Layers) -> _Fault | None:
    if layers.trained is None or not layers.meant or layers.meant == layers.trained:
        return None
    title = f"the config names aux layers {list(layers.meant)}, the drafter was trained on {list(layers.trained)}"
    return _Fault("fail", title, str(list(layers.trained)), _REJECTED)


_LOOKS: Final[tuple[Callable[[Subject, _Layers], _Fault | None], ...]] = (
    _unnamed,
    _outside,
    _repeated,
    _untrained,
    _shifted,
    _unordered,
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
    return layer_ids(read_object(path, "the drafter's training record").get("aux_layers")) or None


def _finding(subject: Subject, fault: _Fault) -> Finding:
    place, fix = _place(subject), "" if fault.verdict == "unknown" else fault.fix
    return finding(_ID, fault.verdict, fault.title, place, expected=fault.expected, effect=fault.effect, fix=fix)


def _place(subject: Subject) -> str:
    """The files, and the engine's lines that read them."""
    recorded = subject.drafter_path and (subject.drafter_path / TRAINING_RECORD_FILE).exists()
    runner = subject.runner_facts
    parts = [subject.drafter_file, subject.target_file, *[TRAINING_RECORD_FILE] * bool(recorded)]
    return "; ".join([*parts, *[runner.layer_keys_evidence] * bool(runner and runner.layer_keys_evidence)] if runner else parts)


CHECK = Check(id=_ID, order=140, run=_run)
