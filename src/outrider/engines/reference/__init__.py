"""Our own small engine: a transformers target with lossless chain speculation, in process or over HTTP.

It is the yardstick of right integration, and what a machine without any engine uses.
"""

from collections.abc import Mapping

from prometheus_client.parser import text_string_to_metric_families

from outrider import __version__
from outrider.core.results import Acceptance
from outrider.engines.engine import Answer, Engine, Launch, ServeSpec
from outrider.engines.environment import Environment, own_environment
from outrider.engines.reference.facts import facts_of

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
    found: dict[str, float] = {}
    for family in text_string_to_metric_families(metrics):
        for sample in family.samples:
            if sample.name.startswith("reference_") and sample.name.endswith("_total"):
                position = sample.labels.get("position")
                found[sample.name if position is None else f"{sample.name}[{position}]"] = sample.value
    return found


def _acceptance(counters: Mapping[str, float]) -> Acceptance | None:
    steps = int(counters.get("reference_num_verify_steps_total", 0))
    if not steps:
        return None
    positions = sorted(
        (int(name[len(_PER_POSITION) + 1 : -1]), value) for name, value in counters.items() if name.startswith(_PER_POSITION)
    )
    return Acceptance(
        num_verify_steps=steps,
        num_draft_tokens=int(counters["reference_num_draft_tokens_total"]),
        num_accepted_tokens=int(counters["reference_num_accepted_tokens_total"]),
        accepted_at=tuple(int(value) for _, value in positions),
    )


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
    fatal=(),
    failures=(),
    side_by_side=True,
    ready_timeout_s=180.0,
)
