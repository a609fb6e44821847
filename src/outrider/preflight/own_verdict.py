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
    said_by_arguments = subject.method_source == "the serve arguments"
    verdict = ask_verdict(
        environment,
        subject.target_path,
        subject.drafter_path or subject.drafter_config,
        None if said_by_arguments else subject.method,
        None if _K.intersection(subject.arguments.speculative) else _DEFAULT_K,
        arguments,
    )
    return finding_of(verdict, environment)


def finding_of(verdict: EngineVerdict, environment: Environment) -> Finding:
    """An engine's verdict, as a finding that quotes it."""
    name = f"{environment.engine} {verdict.version or environment.version}"
    place = f"the image {environment.image}" if environment.image else str(environment.python)
    runner = f", runner {verdict.runner}" if verdict.runner else ""
    if verdict.verdict == "accepted":
        title = f"{name} itself builds its configuration of target and drafter"
        return finding(_ID, "pass", title, f"asked through {place}", found=f"target class {verdict.architecture}{runner}")
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


def _quoted(error: str) -> str:
    """The engine's words, without the advertisement that pydantic adds; it may list all its architectures in one line."""
    lines = [line.strip() for line in error.splitlines() if "errors.pydantic.dev" not in line]
    text = " / ".join(line for line in lines if line)
    return text if len(text) <= _LONGEST_QUOTE else f"{text[:_LONGEST_QUOTE]} … ({len(text)} characters)"
