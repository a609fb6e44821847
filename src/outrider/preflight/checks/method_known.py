"""Whether this version of the engine has the method by which the drafter would be run."""

from typing import Final

from outrider.core.results import Finding
from outrider.preflight.check import Check, Subject, finding
from outrider.preflight.method import own_method
from outrider.preflight.reading import shown
from outrider.preflight.versions import versions_where

_ID = "method_known"
# vllm/config/speculative.py: what a part of the drafter's path makes of a launch that names no method, the first that is
# found; without any, a drafter of these algorithms is taken for a model that drafts by itself, or refused
_GUESSES: Final = (("eagle-", "eagle"), ("eagle3", "eagle3"), ("dflash", "dflash"), ("dspark", "dspark"))
_GUESSED: Final = ("eagle", "eagle3", "dflash", "dspark")


def _run(subject: Subject) -> Finding:
    method, methods = subject.method, subject.facts.methods
    place = subject.facts.methods_evidence or subject.facts.source
    if method is None:
        return finding(_ID, "unknown", "the drafter's config does not tell by which method it would be run", subject.drafter_file)
    if not methods:
        return finding(_ID, "unknown", f"the methods of {subject.engine} could not be read", place)
    found = f"{method}, by {subject.method_source}"
    if method not in methods:
        own = own_method(subject.facts.engine, subject.algorithm)
        having = versions_where(subject.facts, lambda facts: method in facts.methods)
        other = f"the method of this drafter, {own}" if own in methods else "a drafter of an algorithm that the engine has"
        return finding(
            _ID,
            "fail",
            f"{subject.engine} has no method {shown(method)}",
            place,
            found=found,
            expected=f"one of {', '.join(methods)}",
            effect="the server ends seconds after its start",
            fix=having or other,
        )
    return _misread(subject, method) or finding(_ID, "pass", f"{subject.engine} has the method {method}", place, found=found)


def _misread(subject: Subject, method: str) -> Finding | None:
    """A launch with a speculative config that names no method, of which vLLM makes another one by the drafter's path."""
    given = subject.arguments.speculative
    if subject.facts.engine != "vllm" or not given or "method" in given:
        return None
    path = str(given.get("model") or subject.drafter_path or "")
    part, guess = next((known for known in _GUESSES if known[0] in path.lower()), ("", "draft_model"))
    if guess == method or method not in _GUESSED:
        return None
    return finding(
        _ID,
        "fail",
        f"no method is given, and vLLM would make {guess} of the drafter's path",
        f"the serve arguments; {shown(path)}",
        found=f'a speculative config without "method"; the path contains {f"{part!r}" if part else "no hint"}',
        expected=f'"method": "{method}"',
        effect="the drafter is run by another algorithm than its own, or the server ends seconds after its start",
        fix=f'put "method": "{method}" into the speculative config, as launches by outrider do',
    )


CHECK = Check(id=_ID, order=10, run=_run)
