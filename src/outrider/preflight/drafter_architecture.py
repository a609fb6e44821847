"""Whether this version of the engine has a class for the drafter, after its own rewrites of the drafter's config."""

from outrider.core.results import Finding
from outrider.preflight.check import Check, Subject, finding
from outrider.preflight.reading import shown

_ID = "drafter_architecture"


def _run(subject: Subject) -> Finding:
    config, facts = subject.drafter_config, subject.facts
    named, model_type = config.get("architectures"), config.get("model_type")
    found = f"architectures = {shown(named)}, model_type = {shown(model_type)}   ({subject.drafter_file})"
    if "speculators_model_type" in config:
        return finding(_ID, "unknown", "drafters in the layout of `speculators` are not read here", found)
    if not facts.drafters:
        return finding(_ID, "unknown", f"the drafters of {subject.engine} could not be read", facts.drafters_evidence, found=found)
    if model_type in subject.behaviour.rewritten_types:
        return finding(
            _ID,
            "fail",
            f"{subject.engine} makes an MTP model of a drafter of type {shown(model_type)}",
            f"{facts.drafters_evidence}: no EAGLE-3 drafter of that name",
            found=found,
            expected="model_type llama, or deepseek_v2 for a drafter with MLA attention",
            effect="the architecture is looked up under an MTP name and not found: the server ends seconds after its start",
            fix="write another model_type into the drafter's config",
        )
    known = [name for name in named if isinstance(name, str) and name in facts.drafters] if isinstance(named, list) else []
    if known:
        return finding(
            _ID, "pass", f"{subject.engine} serves {known[0]} by {facts.drafters[known[0]]}", facts.drafters_evidence, found=found
        )
    return finding(
        _ID,
        "fail",
        f"{subject.engine} has no drafter of this architecture",
        facts.drafters_evidence,
        found=found,
        expected=f"one of {', '.join(sorted(facts.drafters))}",
        effect="the server ends seconds after its start",
        fix="a version that has it; or its name in the config, if the layout is one of these",
    )


CHECK = Check(id=_ID, order=30, run=_run)
