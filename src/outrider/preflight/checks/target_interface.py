"""Whether the engine's class for the target can hand out aux states: a gate of its own, behind the list of types."""

from typing import Final

from outrider.core.results import Finding
from outrider.engines.facts import EngineFacts
from outrider.preflight.check import Check, Subject, finding, names_of
from outrider.preflight.reading import shown
from outrider.preflight.versions import elsewhere

_ID = "target_interface"
# methods whose drafters are fed through the interface
_FED: Final = ("eagle3", "dflash", "dspark", "extract_hidden_states")
# the class that serves whatever has none of its own, through the transformers library
_GENERAL: Final = "Transformers"
_GENERAL_TEXT: Final = "TransformersForCausalLM"


def _run(subject: Subject) -> Finding:
    facts = subject.facts
    found = f"architectures = {shown(subject.target_architectures)}   ({subject.target_file})"
    if facts.interface_classes is None:
        return _without_interface(subject, found)
    if subject.method is not None and subject.method not in _FED:
        return finding(_ID, "pass", f"{subject.method} takes no aux states", subject.method_source, found=found)
    if facts.engine == "sglang" and subject.method in ("dflash", "dspark"):
        title = f"the states that {subject.method} takes come through another interface, which is not checked here"
        return finding(_ID, "unknown", title, facts.interface_evidence, found=found)
    if not facts.interface_classes:
        return finding(_ID, "unknown", f"which targets {subject.engine} takes aux states from could not be read", facts.interface_evidence)
    if subject.arguments.values.get("model-impl") == "transformers":
        return _of_general_class(subject, found)
    if not subject.target_classes:
        return _of_general_class(subject, found)
    served = subject.target_classes[0]
    if served in facts.interface_classes:
        return finding(_ID, "pass", f"{subject.engine} takes aux states from {served}", facts.interface_evidence, found=found)
    eagle = subject.drafter_config.get("eagle_config")
    if isinstance(eagle, dict) and eagle.get("use_aux_hidden_state") is False:
        title = f"{subject.engine} cannot take aux states from {served}; the drafter says that it wants none, which not every version reads"
        return finding(_ID, "unknown", title, facts.interface_evidence, found=found)
    return _fail(subject, f"{subject.engine} cannot take aux states from {served}", found)


def _of_general_class(subject: Subject, found: str) -> Finding:
    """What the engine has no class of its own for, or is told to serve by the general one."""
    facts = subject.facts
    general = {served for served in facts.targets.values() if served.startswith(_GENERAL)}
    having = general & (facts.interface_classes or frozenset())
    named = subject.target_architectures
    if not having and named and not any(name in facts.interface_evidence for name in named):
        also = f", and its general class {_GENERAL_TEXT} hands out no aux states" if _GENERAL_TEXT in general else ""
        return _fail(subject, f"{subject.engine} has no class for this target{also}", found)
    return finding(
        _ID,
        "unknown",
        f"the source of {subject.engine} does not tell which class serves this target",
        facts.interface_evidence,
        found=found,
        effect="the engine may serve it by a general class, which may or may not hand out aux states",
    )


def _fail(subject: Subject, title: str, found: str) -> Finding:
    names = subject.target_architectures

    def has_it(facts: EngineFacts) -> bool:
        served = next((facts.targets[name] for name in names if name in facts.targets), None)
        return served in (facts.interface_classes or ())

    versions = (
        elsewhere(subject.facts, has_it) or _general_elsewhere(subject) or "no known version has it: a drafter that needs no aux states"
    )
    is_text = not subject.facts.multimodal_classes.intersection(subject.target_classes)
    if is_text and _GENERAL_TEXT in (subject.facts.interface_classes or ()) and subject.facts.engine == "vllm":
        versions += f"; or --model-impl transformers, which serves it by {_GENERAL_TEXT}, if transformers has such a model"
    gate = "; lifting the list of target types does not help here" if subject.facts.target_types else ""
    runner = subject.runner_facts
    return finding(
        _ID,
        "fail",
        title,
        "; ".join(part for part in (subject.facts.interface_evidence, runner.interface_error if runner else "") if part),
        found=found,
        expected="a class that has the interface",
        effect="the start ends after all weights are loaded",
        fix=f"{versions}{gate}",
    )


def _general_elsewhere(subject: Subject) -> str:
    """For a target that no version has a class of its own for: those whose general class hands out aux states."""

    def has_it(facts: EngineFacts) -> bool:
        is_named = any(name in facts.targets for name in subject.target_architectures)
        return not is_named and _GENERAL_TEXT in (facts.interface_classes or ())

    versions = elsewhere(subject.facts, has_it)
    return f"{versions}, by {_GENERAL_TEXT}, if transformers has such a model" if versions else ""


def _without_interface(subject: Subject, found: str) -> Finding:
    facts = subject.facts
    names = [*subject.target_architectures, *names_of([subject.text_config.get("model_type")])]
    if known := next((name for name in names if name in facts.targets), None):
        return finding(_ID, "pass", f"{subject.engine} takes aux states from {known}", facts.interface_evidence, found=found)
    return finding(
        _ID,
        "unknown",
        f"{subject.engine} does not name this target",
        facts.interface_evidence,
        found=f"none of {shown(names)}",
        expected=f"one of {', '.join(sorted(facts.targets))}",
    )


CHECK = Check(id=_ID, order=90, run=_run)
