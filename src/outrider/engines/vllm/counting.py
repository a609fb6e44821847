"""vLLM's counters and per-request counts, turned into the one definition.

vLLM counts a step's accepted drafts before it cuts the answer at its end (v1/core/sched/scheduler.py, update_from_output:
the statistics are made from all generated tokens, the stop is looked for afterwards). So its totals hold drafts past the
stop, which the one definition leaves out.
"""

from collections.abc import Mapping

from outrider.core.results import Acceptance
from outrider.engines.counters import counted, totals
from outrider.engines.engine import Answer

_PREFIX = "vllm:spec_decode_"
_STEPS, _DRAFTED, _ACCEPTED = (f"{_PREFIX}num_{what}_total" for what in ("drafts", "draft_tokens", "accepted_tokens"))
_ACCEPTED_AT = f"{_PREFIX}num_accepted_tokens_per_pos_total"


def counters(metrics: str) -> dict[str, float]:
    """The speculation counters in the text of /metrics, summed over engines; none before the first draft."""
    return totals(metrics, _PREFIX)


def acceptance(counters: Mapping[str, float]) -> Acceptance | None:
    """Counts as vLLM makes them, drafts past the stop included."""
    return counted(counters, _STEPS, _DRAFTED, _ACCEPTED, _ACCEPTED_AT)


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
    found = acceptance(answer.counters)
    if found is None:  # they stood still: an answer of one token
        return Acceptance()
    emitted = 1 + found.num_verify_steps + found.num_accepted_tokens
    past_the_stop = max(0, emitted - len(answer.token_ids) - 1)
    at = list(found.accepted_at)
    for _ in range(min(past_the_stop, found.num_accepted_tokens)):
        # which positions the last step reached is not told: the farthest that were accepted at all are the likeliest
        at[max(k for k, n in enumerate(at) if n)] -= 1
    return Acceptance(
        num_verify_steps=found.num_verify_steps,
        num_draft_tokens=found.num_draft_tokens - past_the_stop,
        num_accepted_tokens=sum(at),
        accepted_at=tuple(at),
    )
