"""vLLM's counters and per-request counts, turned into the one definition.

vLLM counts a step's accepted drafts before it cuts the answer at its end (v1/core/sched/scheduler.py, update_from_output:
the statistics are made from all generated tokens, the stop is looked for afterwards). So its totals hold drafts past the
stop, which the one definition leaves out.
"""

from collections.abc import Mapping

from prometheus_client.parser import text_string_to_metric_families

from outrider.core.results import Acceptance
from outrider.engines.engine import Answer

_PREFIX = "vllm:spec_decode_"
_STEPS, _DRAFTED, _ACCEPTED = (f"{_PREFIX}num_{what}_total" for what in ("drafts", "draft_tokens", "accepted_tokens"))
_ACCEPTED_AT = f"{_PREFIX}num_accepted_tokens_per_pos_total"


def counters(metrics: str) -> dict[str, float]:
    """The speculation counters in the text of /metrics, summed over engines; none before the first draft."""
    found: dict[str, float] = {}
    for family in text_string_to_metric_families(metrics):
        for sample in family.samples:
            if sample.name.startswith(_PREFIX) and sample.name.endswith("_total"):
                position = sample.labels.get("position")
                name = sample.name if position is None else f"{sample.name}[{position}]"
                found[name] = found.get(name, 0.0) + sample.value
    return found


def acceptance(counted: Mapping[str, float]) -> Acceptance | None:
    """Counts as vLLM makes them, drafts past the stop included."""
    if not counted.get(_STEPS):
        return None
    positions = sorted((int(n[len(_ACCEPTED_AT) + 1 : -1]), v) for n, v in counted.items() if n.startswith(_ACCEPTED_AT))
    return Acceptance(
        num_verify_steps=int(counted[_STEPS]),
        num_draft_tokens=int(counted[_DRAFTED]),
        num_accepted_tokens=int(counted[_ACCEPTED]),
        accepted_at=tuple(int(value) for _, value in positions),
    )


def answer_acceptance(answer: Answer) -> Acceptance | None:
    """One answer's counts without the drafts past its stop: from its steps where the server lists them, else from counters."""
    told = (answer.metrics or {}).get("speculative_decoding") or {}
    if told.get("num_spec_steps") == 0:  # an answer of one token: no lists then
        return Acceptance()
    accepted, drafted = told.get("per_step_accepted"), told.get("per_step_drafted")
    if isinstance(accepted, list) and isinstance(drafted, list):
        return _from_steps(answer, list(zip(accepted, drafted, strict=True)))
    return _from_counters(answer)


def _from_steps(answer: Answer, steps: list[tuple[int, int]]) -> Acceptance:
    total, done = Acceptance(), 1  # the prefill gives the first token
    for accepted, drafted in steps:
        emitted = answer.token_ids[done : done + accepted + 1]
        if drafted and emitted:
            room = answer.max_tokens - done
            total += Acceptance.of_step(accepted, emitted, num_drafted=drafted, room=room, stop_ids=answer.stop_ids)[0]
        done += len(emitted)
    return total


def _from_counters(answer: Answer) -> Acceptance | None:
    """What exceeds the answer's length was cut from its last step; its own token for the stop was not a draft."""
    if not answer.counters:
        return None
    counted = acceptance(answer.counters)
    if counted is None:  # they stood still: an answer of one token
        return Acceptance()
    emitted = 1 + counted.num_verify_steps + counted.num_accepted_tokens
    past_the_stop = max(0, emitted - len(answer.token_ids) - 1)
    at = list(counted.accepted_at)
    for _ in range(min(past_the_stop, counted.num_accepted_tokens)):
        # which positions the last step reached is not told: the farthest that were accepted at all are the likeliest
        at[max(k for k, n in enumerate(at) if n)] -= 1
    return Acceptance(
        num_verify_steps=counted.num_verify_steps,
        num_draft_tokens=counted.num_draft_tokens - past_the_stop,
        num_accepted_tokens=sum(at),
        accepted_at=tuple(at),
    )
