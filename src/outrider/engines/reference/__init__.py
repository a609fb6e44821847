"""Our own small engine: a transformers target with lossless chain speculation, in process or over HTTP.

It is the yardstick of right integration, and what a machine without any engine uses.
"""

import sys

from prometheus_client.parser import text_string_to_metric_families

from outrider import __version__
from outrider.core.results import Acceptance
from outrider.engines.engine import Engine, ServeSpec

_PER_POSITION = "reference_num_accepted_tokens_per_position_total"


def _command(spec: ServeSpec) -> list[str]:
    command = [
        sys.executable,
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
    return command


def _counters(metrics: str) -> dict[str, float]:
    found: dict[str, float] = {}
    for family in text_string_to_metric_families(metrics):
        for sample in family.samples:
            if sample.name.startswith("reference_") and sample.name.endswith("_total"):
                position = sample.labels.get("position")
                found[sample.name if position is None else f"{sample.name}[{position}]"] = sample.value
    return found


def _acceptance(counters: dict[str, float]) -> Acceptance | None:
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


ENGINE = Engine(
    id="reference", version=lambda: __version__, command=_command, counters=_counters, acceptance=_acceptance, ready_timeout_s=180.0
)
