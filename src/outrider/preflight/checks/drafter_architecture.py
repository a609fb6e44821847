"""Whether this version of the engine has a class for the drafter, after its own rewrites of the drafter's config."""

from dataclasses import replace
from typing import Final

from outrider.core.results import Finding
from outrider.engines.facts import EngineFacts
from outrider.preflight.check import Check, Subject, finding, names_of
from outrider.preflight.config_types import read_without_remote_code
from outrider.preflight.drafter_lookup import Lookup, is_speculators, look_up, reads_speculators
from outrider.preflight.method import own_method
from outrider.preflight.reading import shown
from outrider.preflight.versions import elsewhere

_ID = "drafter_architecture"
_ENDS: Final = "the server ends seconds after its start"
# SGLang looks the drafter up when it loads it
_EFFECTS: Final = {"sglang": "the start ends once the drafter is to be loaded, behind the target"}


def _run(subject: Subject) -> Finding:
    config, facts = subject.drafter_config, subject.facts
    found = (
        f"architectures = {shown(config.get('architectures'))}, model_type = {shown(config.get('model_type'))}   ({subject.drafter_file})"
    )
    if not facts.registered and not facts.drafters:
        return finding(_ID, "unknown", f"the drafters of {subject.engine} could not be read", facts.drafters_evidence, found=found)
    if is_speculators(subject):
        declared = f"speculators_model_type = {shown(config['speculators_model_type'])}   ({subject.drafter_file})"
        return _of_speculators(subject, declared)
    lookup = look_up(subject)
    place = "; ".join(part for part in (lookup.evidence, facts.drafters_evidence) if part)
    if obstacles := _obstacles(subject, lookup):
        titles, fixes = zip(*obstacles, strict=True)
        return finding(
            _ID,
            "fail",
            "; ".join(titles),
            place,
            found=found,
            expected=f"one of {', '.join(sorted(facts.drafters or facts.registered))}",
            effect=_EFFECTS.get(facts.engine, _ENDS),
            fix="; ".join(dict.fromkeys(fixes)),
        )
    if (readable := _readable(subject)) is not None:
        return finding(_ID, "unknown", readable, place, found=found, effect=f"if it is not: {_EFFECTS.get(facts.engine, _ENDS)}")
    how = f", since {lookup.rewritten}" if lookup.rewritten else ""
    return finding(_ID, "pass", f"{subject.engine} serves the drafter by {lookup.served}{how}", place, found=found)


def _obstacles(subject: Subject, lookup: Lookup) -> list[tuple[str, str]]:
    """Everything that is in this drafter's way, with what helps."""
    config, facts, obstacles = subject.drafter_config, subject.facts, []
    model_type = config.get("model_type")
    if read_without_remote_code(facts, model_type) == "no" and "auto_map" not in config:
        obstacles.append(
            (
                f"neither {subject.engine} nor any transformers knows a config of type {shown(model_type)}",
                _versions(subject) or "another model_type in the drafter's config, of the same keys",
            )
        )
    if lookup.served is None and lookup.evidence and any(name in subject.facts.drafters for name in names_of(config.get("architectures"))):
        obstacles.append(
            (
                f"{subject.engine} has no drafter of that name, since {lookup.rewritten}",
                "write model_type llama, or deepseek_v2 for a drafter with MLA attention, into the drafter's config",
            )
        )
    elif lookup.served is None and (own := _served_by_its_own_method(subject)):
        obstacles.append(
            (
                f"{subject.engine} has no drafter of this architecture for the method {subject.method}: "
                f"it looks for {shown(lookup.names)[1:-1]}",
                f"the method {own}",
            )
        )
    elif lookup.served is None:
        looked_up = f": it looks for {shown(lookup.names)[1:-1]}" if lookup.rewritten else ""
        obstacles.append(
            (
                f"{subject.engine} has no drafter of this architecture{looked_up}",
                _versions(subject) or f"another name in the config, if the layout is that of one of these: {_known(subject)}",
            )
        )
    return obstacles


def _served_by_its_own_method(subject: Subject) -> str | None:
    """The method that the drafter was trained for, where another one was named and this one finds a class."""
    own = own_method(subject.facts.engine, subject.algorithm)
    return own if own != subject.method and look_up(replace(subject, method=own)).served is not None else None


def _readable(subject: Subject) -> str | None:
    """What cannot be told of whether the config is read at all; None where it is."""
    facts, config = subject.facts, subject.drafter_config
    if not facts.config_types or read_without_remote_code(facts, config.get("model_type")) == "yes":
        return None
    if "auto_map" in config:
        return f"{subject.engine} may need the code that comes with the drafter to read its config"
    return f"whether {subject.engine} with its transformers reads a config of type {shown(config.get('model_type'))} is not known"


def _known(subject: Subject) -> str:
    return ", ".join(sorted(subject.facts.drafters or subject.facts.registered))


def _versions(subject: Subject) -> str:
    """Where neither the type nor the architecture is in the way."""

    def serves(facts: EngineFacts) -> bool:
        there = replace(subject, facts=facts)
        if is_speculators(subject) and not reads_speculators(facts):
            return False
        is_read = is_speculators(subject) or read_without_remote_code(facts, subject.drafter_config.get("model_type")) != "no"
        return is_read and look_up(there).served is not None

    return elsewhere(subject.facts, serves)


def _of_speculators(subject: Subject, found: str) -> Finding:
    facts, lookup = subject.facts, look_up(subject)
    if not facts.config_types:
        title = f"whether {subject.engine} reads the layout of `speculators` cannot be told"
        return finding(_ID, "unknown", title, facts.source, found=found)
    if not reads_speculators(facts) or lookup.served is None:
        missing = f"drafters in the layout of `speculators`{'' if not lookup.names else f', served by {lookup.names[0]}'}"
        return finding(
            _ID,
            "fail",
            f"{subject.engine} does not read {missing}",
            facts.drafters_evidence,
            found=found,
            effect=_EFFECTS.get(facts.engine, _ENDS),
            fix=_versions(subject) or "the drafter in the engine's own layout",
        )
    title = f"{subject.engine} reads the layout of `speculators` and serves the drafter by {lookup.served}"
    return finding(_ID, "pass", title, facts.drafters_evidence, found=found)


CHECK = Check(id=_ID, order=30, run=_run)
