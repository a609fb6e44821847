"""What an installed engine itself says of the pair. It is no check: it needs the installation, and takes the seconds of an import."""

from collections.abc import Sequence
from typing import Final

from outrider.core.results import Finding
from outrider.engines.asking import EngineVerdict, ask_verdict
from outrider.engines.environment import Environment
from outrider.preflight.check import Subject, finding

_ID = "engine_verdict"
_DEFAULT_K: Final = 3
_LONGEST_QUOTE: Final = 700
# by which arguments name K: vLLM's, SGLang's
_K: Final = frozenset({"num_speculative_tokens", "num_steps", "num_draft_tokens"})
# stage → what the engine is at then
_STAGES: Final = {
    "arguments": "as it reads its arguments",
    "target": "as it reads the target's config",
    "speculation": "as it reads the drafter's config",
    "configuration": "as it puts its configuration together",
    "interface": "once all weights are loaded",
}


def own_verdict(subject: Subject, environment: Environment, arguments: Sequence[str]) -> Finding:
    """Let the engine of an environment judge a subject, in a process of its own.

    Args:
        arguments: the engine's own, as the subject was read with them.

    Raises:
        InputError: the engine cannot be run, or a config cannot be read.
    """
    given = subject.arguments.speculative
    # where the arguments speak of speculation they are all that the launch has: vLLM guesses a method that they do not name
    left_to_arguments = subject.method_source == "the serve arguments" or (given and environment.engine == "vllm")
    verdict = ask_verdict(
        environment,
        subject.target_path,
        subject.drafter_path or subject.drafter_config,
        None if left_to_arguments and subject.method_source != "--method" else subject.method,
        None if _K.intersection(given) else _DEFAULT_K,
        arguments,
    )
    return finding_of(verdict, environment, subject.method)


def finding_of(verdict: EngineVerdict, environment: Environment, method: str | None) -> Finding:
    """An engine's verdict, as a finding that quotes it.

    Args:
        method: that was meant, None if that could not be told.
    """
    name = f"{environment.engine} {verdict.version or environment.version}"
    place = f"the image {environment.image}" if environment.image else str(environment.python)
    runner = f", runner {verdict.runner}" if verdict.runner else ""
    if verdict.verdict == "accepted":
        found = f"target class {verdict.architecture}, method {verdict.method}{runner}"
        if method and not _is_same_method(method, verdict.method):
            title = f"{name} itself takes the drafter, but by the method {verdict.method}"
            effect = "the drafter is run by another algorithm than its own"
            return finding(_ID, "warn", title, f"asked through {place}", found=found, expected=method, effect=effect, fix="name the method")
        return finding(_ID, "pass", f"{name} itself takes target and drafter", f"asked through {place}", found=found)
    if verdict.verdict == "could_not_tell":
        title = f"{name} could not be asked itself" + (", for want of a device" if verdict.stage == "device" else "")
        return finding(_ID, "unknown", title, f"asked through {place}", found=_quoted(verdict.error))
    moment = _STAGES.get(verdict.stage, f"at {verdict.stage}")
    return finding(
        _ID,
        "fail",
        f"{name} itself refuses this pair {moment}",
        f"asked through {place}",
        found=_quoted(verdict.error),
        effect=f"the start ends with this error {moment}",
        fix="what the error asks for; where another finding names the same obstacle, it names the versions without it",
    )


def _is_same_method(meant: str, taken: str) -> bool:
    """vLLM makes `mtp` of its older words, deepseek_mtp and the like; SGLang `eagle` of nextn."""
    return meant == taken or meant.endswith("mtp") or meant == "nextn"


def _quoted(error: str) -> str:
    """The engine's words, without the advertisement that pydantic adds; it may list all its architectures in one line."""
    lines = [line.strip() for line in error.splitlines() if "errors.pydantic.dev" not in line]
    text = " / ".join(line for line in lines if line)
    return text if len(text) <= _LONGEST_QUOTE else f"{text[:_LONGEST_QUOTE]} … ({len(text)} characters)"
