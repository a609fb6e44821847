"""Whether the engine's class for the target can hand out aux states: a gate of its own, behind the list of types."""

from outrider.core.results import Finding
from outrider.preflight.check import Check, Subject, finding
from outrider.preflight.reading import shown

_ID = "target_interface"


def _run(subject: Subject) -> Finding:
    facts = subject.facts
    architectures = names_of(subject.target_config.get("architectures"))
    found = f"architectures = {shown(architectures)}   ({subject.target_file})"
    if facts.interface_classes is None:
        return _without_interface(subject, [*architectures, *names_of([subject.text_config.get("model_type")])], found)
    if not facts.interface_classes:
        return finding(_ID, "unknown", f"which targets {subject.engine} takes aux states from could not be read", facts.interface_evidence)
    served = next((facts.targets[name] for name in architectures if name in facts.targets), None)
    if served is None:
        return finding(
            _ID,
            "unknown",
            f"the source of {subject.engine} does not tell which class serves this target",
            facts.interface_evidence,
            found=found,
            effect="the engine may serve it by a general class, which may or may not hand out aux states",
        )
    if served in facts.interface_classes:
        return finding(_ID, "pass", f"{subject.engine} takes aux states from {served}", facts.interface_evidence, found=found)
    return finding(
        _ID,
        "fail",
        f"{subject.engine} cannot take aux states from {served}",
        facts.interface_evidence,
        found=found,
        expected="a class that has the interface",
        effect="the start ends after all weights of the target are loaded",
        fix="a version whose class has it; a list of target types that is lifted does not help here",
    )


def _without_interface(subject: Subject, names: list[str], found: str) -> Finding:
    facts = subject.facts
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


def names_of(value: object) -> list[str]:
    """The strings of a list, or none."""
    return [name for name in value if isinstance(name, str)] if isinstance(value, list) else []


CHECK = Check(id=_ID, order=20, run=_run)
