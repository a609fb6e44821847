"""What SGLang tells of acceptance, turned into the one definition. Read from its source; no live server was measured.

/metrics has gauges of the last log interval (`sglang:spec_accept_length`, and from 0.5.3.post2 `sglang:spec_accept_rate`,
whose meaning changed with 0.5.11), and from 0.5.13 a counter of verify steps. No version counts accepted tokens there, nor
positions: nothing can be told from it. An answer can carry its own counts, with a histogram of how many drafts each step
accepted (`spec_tokens_details`, from 0.5.19, where the request asks with `return_spec_tokens_details`).
"""

from collections.abc import Mapping
from typing import Any, Final

from outrider.core.results import Acceptance
from outrider.engines.counters import totals
from outrider.engines.engine import Answer

_PREFIX: Final = "sglang:spec_"
_STEPS: Final = "spec_verify_ct"
# at j: in how many steps j drafts were accepted
_HISTOGRAM: Final = "spec_correct_drafts_histogram"


def counters(metrics: str) -> dict[str, float]:
    """The speculation counters in the text of /metrics, summed over engines: verify steps from 0.5.13, none before."""
    return totals(metrics, _PREFIX)


def acceptance(counters: Mapping[str, float]) -> Acceptance | None:
    """None: verify steps alone do not tell what they accepted."""
    return None


def answer_acceptance(answer: Answer) -> Acceptance | None:
    """One answer's counts without the drafts past its stop, from its histogram; None where the server gave none."""
    steps = _accepted_by_step(answer.metrics or {})
    if steps is None:
        return None
    k = answer.num_speculative_tokens
    # the drafts of the last step are counted before the answer is cut at its stop: what exceeds its length was cut, and
    # one of these was the target's own token, not a draft
    emitted = 1 + len(steps) + sum(steps)
    past_the_stop = min(max(0, emitted - len(answer.token_ids) - 1), max(steps, default=0))
    at = [sum(n > position for n in steps) for position in range(k)]
    for _ in range(past_the_stop):
        # which positions the last step reached is not told: the farthest that were accepted at all are the likeliest
        at[max(position for position, n in enumerate(at) if n)] -= 1
    return Acceptance(
        num_verify_steps=len(steps), num_draft_tokens=k * len(steps) - past_the_stop, num_accepted_tokens=sum(at), accepted_at=tuple(at)
    )


def _accepted_by_step(told: Mapping[str, Any]) -> list[int] | None:
    """How many drafts each step accepted, in no order; None if the counts are not there or not of all steps."""
    histogram = told.get(_HISTOGRAM)
    if not isinstance(histogram, list) or not all(isinstance(n, int) and n >= 0 for n in histogram):
        return None
    return [j for j, n in enumerate(histogram) for _ in range(n)] if sum(histogram) == told.get(_STEPS) else None
