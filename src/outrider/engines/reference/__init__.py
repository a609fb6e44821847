"""Our own small engine: a transformers target with lossless chain speculation, in process or over HTTP.

It is the yardstick of right integration, and what a machine without any engine uses.
"""

from collections.abc import Mapping

from outrider import __version__
from outrider.core.results import Acceptance
from outrider.engines.counters import counted, totals
from outrider.engines.engine import Answer, Engine, Launch, ServeSpec
from outrider.engines.environment import Environment, own_environment
from outrider.engines.reference.facts import facts_of
from outrider.engines.reference.log_rules import LOG

_STEPS, _DRAFTED, _ACCEPTED = (f"reference_num_{what}_total" for what in ("verify_steps", "draft_tokens", "accepted_tokens"))
_PER_POSITION = "reference_num_accepted_tokens_per_position_total"


def _environment() -> Environment:
    return own_environment("reference", __version__)


def _launch(environment: Environment, spec: ServeSpec) -> Launch:
    command = [
        str(environment.python),
        "-m",
        "outrider.engines.reference.server",
        "--target",
        str(spec.target),
        "--port",
        str(spec.port),
        "--dtype",
        spec.dtype,
        "--max-batch",
        str(spec.max_batch),
    ]
    if spec.drafter:
        command += ["--drafter", str(spec.drafter), "--num-speculative-tokens", str(spec.num_speculative_tokens)]
    if spec.threads:
        command += ["--threads", str(spec.threads)]
    return Launch([*command, *spec.extra_args], {})


def _counters(metrics: str) -> dict[str, float]:
    return totals(metrics, "reference_")


def _acceptance(counters: Mapping[str, float]) -> Acceptance | None:
    return counted(counters, _STEPS, _DRAFTED, _ACCEPTED, _PER_POSITION)


def _answer_acceptance(answer: Answer) -> Acceptance | None:
    """It counts by the one definition itself."""
    return _acceptance(answer.counters) or Acceptance() if answer.counters else None


ENGINE = Engine(
    id="reference",
    distributions=(),
    built_in=_environment,
    launch=_launch,
    facts=facts_of,
    counters=_counters,
    acceptance=_acceptance,
    answer_acceptance=_answer_acceptance,
    log=LOG,
    side_by_side=True,
    ready_timeout_s=180.0,
)
