"""Whether the drafter's class is one of those that a model runner insists on at the first draft."""

from outrider.core.results import Finding
from outrider.engines.facts import EngineFacts
from outrider.preflight.check import Check, Subject, finding
from outrider.preflight.drafter_lookup import look_up
from outrider.preflight.versions import versions_where

_ID = "drafter_class"
# vllm/v1/spec_decode: `if self.method in ("eagle3", "dflash")`
_ASSERTED_FOR = ("eagle3", "dflash")


def _run(subject: Subject) -> Finding:
    facts, runner = subject.facts, subject.runner_facts
    if runner is None:
        what = "which model runner it would take cannot be told" if facts.runners else "its model runners could not be read"
        return finding(_ID, "unknown", f"which drafters {subject.engine} insists on is not known: {what}", facts.source)
    which = f"the {subject.runner} model runner of {subject.engine}" if subject.runner else subject.engine
    if runner.drafter_classes is None or subject.method not in (None, *_ASSERTED_FOR):
        return finding(_ID, "pass", f"{which} insists on no class of drafters", facts.source)
    served = look_up(subject).served
    if served is None:
        title = f"which class of {subject.engine} would serve the drafter cannot be told"
        return finding(_ID, "unknown", title, runner.drafter_classes_evidence)
    if served in runner.drafter_classes:
        return finding(_ID, "pass", f"{served} is a drafter that {which} takes", runner.drafter_classes_evidence)

    def takes(facts: EngineFacts) -> bool:
        return any(known.drafter_classes is None or served in known.drafter_classes for known in facts.runners.values())

    return finding(
        _ID,
        "fail",
        f"{which} does not take {served} for a drafter",
        runner.drafter_classes_evidence,
        found=served,
        expected=f"one of {', '.join(runner.drafter_classes)}, or a subclass",
        effect="the engine starts, and dies at the first request with an AssertionError",
        fix=versions_where(subject.facts, takes) or "a drafter of one of these classes",
    )


CHECK = Check(id=_ID, order=100, run=_run)
