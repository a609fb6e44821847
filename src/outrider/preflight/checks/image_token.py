"""Whether the target's config has the attribute that a model runner reads from targets that take images."""

from collections.abc import Mapping
from typing import Any, Final

from outrider.core.results import Finding
from outrider.engines.facts import EngineFacts, ImageToken
from outrider.preflight.check import Check, Subject, finding
from outrider.preflight.reading import shown
from outrider.preflight.versions import versions_where

_ID = "image_token"
# other names of the same thing, which the engine's class for the config may or may not answer to
_SYNONYMS: Final = ("image_token_id", "image_token_index")


def _run(subject: Subject) -> Finding:
    facts, runner = subject.facts, subject.runner_facts
    if not facts.runners:
        return finding(_ID, "unknown", f"what the model runners of {subject.engine} read could not be read", facts.source)
    if runner is None:
        return finding(_ID, "unknown", f"which model runner {subject.engine} would take cannot be told", facts.source)
    gate = runner.image_token
    if gate is None:
        return finding(_ID, "pass", f"{_runner(subject)} reads nothing of that kind", facts.source)
    if not subject.target_classes:
        return finding(_ID, "unknown", f"the source of {subject.engine} does not tell which class serves this target", gate.evidence)
    if not facts.multimodal_classes:
        return finding(_ID, "unknown", f"which targets of {subject.engine} take images could not be read", gate.evidence)
    served = subject.target_classes[0]
    if served not in facts.multimodal_classes:
        return finding(_ID, "pass", f"{served} takes no images: {_runner(subject)} reads nothing of that kind", gate.evidence)
    return _of_images(subject, gate, served)


def _of_images(subject: Subject, gate: ImageToken, served: str) -> Finding:
    attribute = _read(gate, served)
    if _holds(subject.target_config, attribute):
        title = f"the target's config has {attribute}, which {_runner(subject)} reads"
        return finding(_ID, "pass", title, f"{gate.evidence}; {subject.target_file}")
    title = f"{_runner(subject)} reads {attribute} from the target's config, which has none"
    place = f"{gate.evidence}; {subject.target_file}"
    if attribute in _SYNONYMS and (synonym := next((key for key in _SYNONYMS if key in subject.target_config), None)):
        found = f"{synonym} = {shown(subject.target_config[synonym])}"
        effect = "if the class of the config does not answer to the other name: the start ends after all weights are loaded"
        return finding(_ID, "unknown", title, place, found=found, effect=effect)

    def passes(facts: EngineFacts) -> bool:
        first = facts.runners.get("V1") or facts.runners.get("")
        return first is not None and (first.image_token is None or _holds(subject.target_config, _read(first.image_token, served)))

    return finding(
        _ID,
        "fail",
        title,
        place,
        found=f"no {attribute} for {served}",
        expected=attribute,
        effect="the start ends after all weights of target and drafter are loaded, with an AttributeError",
        fix=versions_where(subject.facts, passes) or f"write {attribute} into the target's config: the id of its image token",
    )


def _runner(subject: Subject) -> str:
    return f"the {subject.runner} model runner of {subject.engine}" if subject.runner else subject.engine


def _read(gate: ImageToken, served: str) -> str:
    return gate.by_class.get(served, gate.attribute)


def _holds(config: Mapping[str, Any], attribute: str) -> bool:
    value: Any = config
    for key in attribute.split("."):
        if not isinstance(value, dict) or key not in value:
            return False
        value = value[key]
    return True


CHECK = Check(id=_ID, order=80, run=_run)
