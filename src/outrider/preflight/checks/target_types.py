"""The engine's own list of target types, where its version has one."""

from typing import Final

from outrider.core.results import Finding
from outrider.engines.facts import EngineFacts
from outrider.preflight.check import Check, Subject, finding
from outrider.preflight.checks import drafter_class, image_token, target_interface
from outrider.preflight.reading import shown
from outrider.preflight.versions import versions_where

_ID = "target_types"
# gates for the same target that stand behind this one, each a fact of its own
_BEHIND: Final = (image_token.CHECK, target_interface.CHECK, drafter_class.CHECK)


def _run(subject: Subject) -> Finding:
    """A name of the list must be part of the language model's model_type, be it nested in a wrapper or not."""
    listed, model_type = subject.facts.target_types, subject.text_config.get("model_type")
    if listed is None:
        return finding(_ID, "pass", f"{subject.engine} has no list of target types", subject.facts.source)
    if not listed.names:
        return finding(_ID, "unknown", f"the list of target types of {subject.engine} could not be read", listed.evidence)
    if subject.method is not None and subject.method not in listed.methods:
        return finding(_ID, "pass", f"the list of target types of {subject.engine} is not for {subject.method}", listed.evidence)
    found = f"{_place(subject)}model_type = {shown(model_type)}   ({subject.target_file})"
    if not isinstance(model_type, str):
        return finding(_ID, "unknown", "the target's config does not name the type of its language model", found)
    if part := next((name for name in listed.names if name in model_type), None):
        return finding(
            _ID, "pass", f"{subject.engine} takes targets of type {shown(model_type)}, by {part!r}", listed.evidence, found=found
        )
    method = subject.method or listed.methods[0]
    return finding(
        _ID,
        "fail",
        f"{subject.engine} does not accept {method} for targets of type {shown(model_type)}",
        listed.evidence,
        found=found,
        expected=f"one of {', '.join(listed.names)} in it",
        effect="the server ends seconds after its start",
        fix=f"{_versions(subject, model_type, method)}{_lifting(subject, model_type)}",
    )


def _place(subject: Subject) -> str:
    return "" if subject.text_config is subject.target_config else "the language model's "


def _versions(subject: Subject, model_type: str, method: str) -> str:
    def accepts(facts: EngineFacts) -> bool:
        listed = facts.target_types
        return listed is None or method not in listed.methods or any(name in model_type for name in listed.names)

    found = versions_where(subject.facts, accepts)
    return f"{found}, as far as this gate goes; " if found else ""


def _lifting(subject: Subject, model_type: str) -> str:
    """What taking the list away would come to: the gates behind it are asked, not guessed."""
    verdicts = {check.id: check.run(subject).verdict for check in _BEHIND}
    lifting = f"`outrider engine gate lift --model-type {shown(model_type)[1:-1]}` takes it away"
    if failing := [check_id for check_id, verdict in verdicts.items() if verdict == "fail"]:
        return f"{lifting}, but {' and '.join(failing)} would still fail"
    if untold := [check_id for check_id, verdict in verdicts.items() if verdict == "unknown"]:
        return f"{lifting}; whether {' and '.join(untold)} would pass then is not known"
    return f"{lifting}, and the gates behind it pass"


CHECK = Check(id=_ID, order=20, run=_run)
