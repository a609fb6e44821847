"""Whether the drafter pays, by one rule; and what speaks against believing the numbers."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from outrider.core.results import MeasureResult, SetMeasurement, SynthesizeResult
from outrider.report.figures import counted, times, with_bounds


@dataclass(frozen=True)
class Verdict:
    """One line that says whether the drafter pays, and the conditions it holds under."""

    kind: Literal["pays", "does not pay", "undecided", "not measured"]
    reason: str
    conditions: str = ""

    @property
    def sentence(self) -> str:
        """The verdict in one line."""
        return f"{self.kind}: {self.reason}"


def judge(measure: MeasureResult | None) -> Verdict:
    """The verdict: the speedup interval of the first set against 1."""
    if measure is None:
        return Verdict("not measured", "the stage measure has not run")
    if not measure.sets:
        return Verdict("not measured", "the measurement holds no prompt set")
    name, first = next(iter(measure.sets.items()))
    conditions = _conditions(measure, first)
    speedup = first.speedup
    if speedup is None:
        return Verdict("not measured", f"no speedup on {name}: {first.speedup_missing or 'no reason was given'}", conditions)
    if not all(math.isfinite(end) for end in (speedup.value, speedup.low, speedup.high)):
        return Verdict("not measured", f"the speedup on {name} is not finite", conditions)
    shown = f"{with_bounds(times(speedup.value), speedup)} on {name}"
    if speedup.low > 1:
        return Verdict("pays", shown, conditions)
    if speedup.high < 1:
        return Verdict("does not pay", shown, conditions)
    return Verdict("undecided", f"{shown}; {counted(first.num_prompts, 'prompt')} cannot tell it from 1×", conditions)


def _conditions(measure: MeasureResult, first: SetMeasurement) -> str:
    return (
        f"{measure.engine} {measure.engine_version}, {counted(first.num_prompts, 'prompt')}, K = {measure.num_speculative_tokens}, "
        f"temperature {measure.temperature:g}, at most {measure.max_tokens:,} tokens an answer"
    )


def cautions(measure: MeasureResult | None, synthesize: SynthesizeResult | None) -> tuple[str, ...]:
    """What speaks against believing the numbers, one sentence each."""
    found: list[str] = []
    if measure is not None:
        for name, measured in measure.sets.items():
            found += _about_outputs(name, measured, measure.temperature)
        if not measure.arms_in_turns and any(measured.speedup for measured in measure.sets.values()):
            found.append("The servers ran one after the other, one start each: intervals hold for other prompts, not for other starts.")
    if synthesize is not None:
        for name, shared in synthesize.shared_ngrams.items():
            if shared:
                whose = "shares" if shared == 1 else "share"
                found.append(f"{name}: {counted(shared, 'prompt')} {whose} an 8-gram with a training prompt; its numbers may flatter.")
    return tuple(found)


def _about_outputs(name: str, measured: SetMeasurement, temperature: float) -> Iterator[str]:
    differing = measured.num_prompts - measured.num_identical
    if temperature == 0 and differing:
        first = min(measured.first_difference.values(), default=None)
        where = "" if first is None else f", the earliest at token {first:,}"
        changed = "output changes" if differing == 1 else "outputs change"
        yield f"{name}: {differing:,} of {measured.num_prompts:,} {changed} with the drafter{where}."
    if 2 * measured.num_distinct_answers < measured.num_prompts:
        yield f"{name}: only {measured.num_distinct_answers:,} distinct answers to {counted(measured.num_prompts, 'prompt')}."
