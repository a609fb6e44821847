"""Whether the engine's version takes the arguments of speculation as they are given."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Final

from outrider.core.results import Finding, Verdict
from outrider.engines.facts import EngineFacts
from outrider.preflight.check import Check, Subject, finding
from outrider.preflight.flag_rules import FLAG_RULES
from outrider.preflight.reading import shown
from outrider.preflight.versions import versions_where

_ID = "serve_flags"
_ENDS: Final = "the server ends seconds after its start"


@dataclass(frozen=True)
class _Fault:
    verdict: Verdict
    title: str
    found: str
    effect: str
    fix: str
    place: str


def _run(subject: Subject) -> Finding:
    place = f"the serve arguments; {subject.facts.methods_evidence or subject.facts.source}"
    faults = [*_unknown_keys(subject), *_broken_rules(subject)]
    if not faults:
        if subject.arguments.speculative and not subject.facts.speculative_keys:
            title = f"which arguments of speculation {subject.engine} has could not be read"
            return finding(_ID, "unknown", title, subject.facts.source)
        return finding(_ID, "pass", f"{subject.engine} takes the arguments of speculation", place)
    verdict: Verdict = "fail" if any(fault.verdict == "fail" for fault in faults) else "warn"
    worst = [fault for fault in faults if fault.verdict == verdict]
    return finding(
        _ID,
        verdict,
        "; ".join(fault.title for fault in worst),
        "; ".join(dict.fromkeys(fault.place for fault in worst)),
        found="; ".join(fault.found for fault in worst),
        effect="; ".join(dict.fromkeys(fault.effect for fault in worst)),
        fix="; ".join(dict.fromkeys(fault.fix for fault in worst)),
    )


def _unknown_keys(subject: Subject) -> Iterator[_Fault]:
    """Keys that the version does not have; an argument that is another engine's is told under its own name."""
    known, engine = subject.facts.speculative_keys, subject.facts.engine
    others = [f"--{shown(name)[1:-1]}" for name in subject.arguments.values if _is_of_another(engine, name)]
    for name in (*others, *subject.arguments.foreign.get(engine, ())):
        place = subject.facts.methods_evidence or subject.facts.source
        yield _Fault("fail", f"{engine} has no argument {name}", name, _ENDS, f"{engine}'s own arguments", place)
    for key in subject.arguments.speculative if known and not others else ():
        if key in known:
            continue
        flag = (
            f"--speculative-{shown(key)[1:-1].replace('_', '-')}"
            if subject.facts.engine == "sglang"
            else f"{shown(key)} in the speculative config"
        )
        yield _Fault(
            "fail",
            f"{subject.engine} does not know {flag}",
            flag,
            _ENDS,
            _instead_of(subject, key),
            subject.facts.methods_evidence or subject.facts.source,
        )


def _instead_of(subject: Subject, key: str) -> str:
    longer = [name for name in subject.facts.speculative_keys if name.startswith(key)]
    if longer and subject.facts.engine == "sglang":
        return f"the whole name: {' or '.join(f'--speculative-{name}'.replace('_', '-') for name in longer)}"
    having = versions_where(subject.facts, partial(_has_key, key))
    return f"{having}, or leave it out" if having else "leave it out"


def _is_of_another(engine: str, name: str) -> bool:
    """vLLM takes everything in one argument, or by three short ones; SGLang one argument each."""
    is_vllms = name == "speculative-config" or name.startswith(("speculative-config.", "spec-"))
    is_sglangs = name.startswith("speculative-") and not is_vllms
    return (engine == "vllm" and is_sglangs) or (engine == "sglang" and is_vllms)


def _has_key(key: str, facts: EngineFacts) -> bool:
    return key in facts.speculative_keys


def _broken_rules(subject: Subject) -> Iterator[_Fault]:
    for rule in FLAG_RULES:
        if rule.holds_for(subject) and (found := rule.found(subject)):
            yield _Fault(rule.verdict, rule.title, found, rule.effect, rule.fix, rule.place)


CHECK = Check(id=_ID, order=60, run=_run)
