"""The engine's own list of target types, where its version has one."""

from outrider.core.results import Finding
from outrider.preflight.check import Check, Subject, finding
from outrider.preflight.reading import shown

_ID = "target_types"


def _run(subject: Subject) -> Finding:
    """A name of the list must be part of the language model's model_type, be it nested in a wrapper or not."""
    listed, model_type = subject.facts.target_types, subject.text_config.get("model_type")
    if listed is None:
        return finding(_ID, "pass", f"{subject.engine} has no list of target types", subject.facts.source)
    if not listed.names:
        return finding(_ID, "unknown", f"the list of target types of {subject.engine} could not be read", listed.evidence)
    found = f"{_place(subject)}model_type = {shown(model_type)}   ({subject.target_file})"
    if not isinstance(model_type, str):
        return finding(_ID, "unknown", "the target's config does not name the type of its language model", found)
    if part := next((name for name in listed.names if name in model_type), None):
        return finding(
            _ID, "pass", f"{subject.engine} takes targets of type {shown(model_type)}, by {part!r}", listed.evidence, found=found
        )
    return finding(
        _ID,
        "fail",
        f"{subject.engine} does not accept eagle3 for targets of type {shown(model_type)}",
        listed.evidence,
        found=found,
        expected=f"one of {', '.join(listed.names)} in it",
        effect="the server ends seconds after its start",
        fix=subject.behaviour.types_fix,
    )


def _place(subject: Subject) -> str:
    return "" if subject.text_config is subject.target_config else "the language model's "


CHECK = Check(id=_ID, order=10, run=_run)
