"""The stage: the same prompts with and without the drafter, paired; every reply kept as it comes, so a killed run goes on.

Where two servers can run beside each other, the arms take turns prompt by prompt at concurrency 1, in changing order, so
that a drift of the machine meets both. Else each arm is one start, and the other is asked when it has ended.
"""

import asyncio
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from outrider.core.errors import MeasurementInvalid
from outrider.core.http import Question, Server
from outrider.core.journal import Journal
from outrider.core.progress import Track
from outrider.core.prompts import Conversation
from outrider.core.results import Acceptance, ArmResult, MeasureResult, SetMeasurement
from outrider.core.statistics import bootstrap
from outrider.engines.engine import Answer, Engine
from outrider.measure.arms import DRAFTED, PLAIN, Arm
from outrider.targets.folder import TargetFolder

REPLIES_FILE = "replies.jsonl"
_WARM_UP_TOKENS = 16
Reply = dict[str, Any]
Sets = Mapping[str, Sequence[Conversation]]


@dataclass(frozen=True)
class Terms:
    """What both arms are asked alike."""

    max_tokens: int
    temperature: float
    concurrency: int
    num_speculative_tokens: int
    seed: int = 0


def measure(
    engine: Engine, engine_version: str, arms: Sequence[Arm], target: TargetFolder, sets: Sets, terms: Terms, folder: Path
) -> MeasureResult:
    """Measure every prompt set on both arms.

    Args:
        arms: the plain server and the drafting one, in this order.
        folder: where replies.jsonl is kept.

    Raises:
        EngineFailed: a server died; MeasurementInvalid: the drafting server has not speculated.
    """
    folder.mkdir(parents=True, exist_ok=True)
    in_turns = terms.concurrency == 1 and (engine.side_by_side or all(arm.runs_already for arm in arms))
    with Journal(folder / REPLIES_FILE) as journal:
        total = len(arms) * sum(len(prompts) for prompts in sets.values())
        with Track("measure", total, "answers", done=len({_key(row) for row in journal.rows})) as track:
            asking = _Asking(engine, target, terms, sets, journal, track)
            for group in [list(arms)] if in_turns else [[arm] for arm in arms]:
                if any(asking.todo(arm.name, name) for arm in group for name in sets):
                    with ExitStack() as servers:
                        urls = {arm.name: servers.enter_context(arm.start()) for arm in group}
                        asyncio.run(asking.ask(urls))
        summing = _Summing(engine, target, terms, journal.rows)
        try:
            results = {name: summing.of(name, [c.id for c in prompts]) for name, prompts in sets.items()}
        except MeasurementInvalid:
            # what they mean is known, and the next try is to ask again
            (folder / REPLIES_FILE).replace(folder / f"invalid-{REPLIES_FILE}")
            raise
    first = next(iter(results.values()))
    return MeasureResult(
        engine=engine.id,
        engine_version=engine_version,
        num_speculative_tokens=terms.num_speculative_tokens,
        temperature=terms.temperature,
        max_tokens=terms.max_tokens,
        acceptance_length=first.acceptance_length,
        speedup=first.speedup.value if first.speedup else None,
        sets=results,
        arms_in_turns=in_turns,
    )


def _key(row: Reply) -> tuple[str, str, str]:
    return row["set"], row["arm"], row["prompt"]


class _Asking:
    """Asks what the journal lacks."""

    def __init__(self, engine: Engine, target: TargetFolder, terms: Terms, sets: Sets, journal: Journal, track: Track) -> None:
        self._engine, self._target, self._terms, self._sets = engine, target, terms, sets
        self._journal, self._track = journal, track
        self._servers: dict[str, Server] = {}
        self._models: dict[str, str] = {}

    def todo(self, arm: str, name: str) -> list[Conversation]:
        """The prompts of a set that an arm has not answered; above concurrency 1 a set is one run: all of them, or none."""
        done = {_key(row) for row in self._journal.rows}
        missing = [c for c in self._sets[name] if (name, arm, c.id) not in done]
        return list(self._sets[name]) if missing and self._terms.concurrency > 1 else missing

    async def ask(self, urls: Mapping[str, str]) -> None:
        """Ask the arms that run at these URLs: one prompt at a time, in turns, or each set at the asked concurrency."""
        for arm, url in urls.items():
            self._servers[arm] = Server(url, max_connections=self._terms.concurrency)
            self._models[arm] = await self._servers[arm].model()
            first = next(iter(self._sets.values()))[0]
            await self._servers[arm].stream(self._question(arm, first, _WARM_UP_TOKENS))
        for name in self._sets:
            if self._terms.concurrency == 1:
                await self._one_at_a_time(name, list(urls))
            else:
                for arm in urls:
                    await self._all_at_once(name, arm)
        for arm in urls:
            await self._servers[arm].close()

    async def _one_at_a_time(self, name: str, arms: Sequence[str]) -> None:
        """Counters are read around each answer."""
        todo = {arm: {c.id for c in self.todo(arm, name)} for arm in arms}
        for number, conversation in enumerate(self._sets[name]):
            for arm in arms if number % 2 == 0 else reversed(arms):
                if conversation.id in todo[arm]:
                    before = await self._counters(arm)
                    reply = await self._reply(arm, conversation)
                    self._keep(name, arm, [reply], reply["total_s"], _difference(before, await self._counters(arm)))

    async def _all_at_once(self, name: str, arm: str) -> None:
        """Counters are read around the drained run."""
        if not (prompts := self.todo(arm, name)):
            return
        waiting = asyncio.Semaphore(self._terms.concurrency)

        async def ask(conversation: Conversation) -> Reply:
            async with waiting:
                return await self._reply(arm, conversation)

        before, started = await self._counters(arm), time.monotonic()
        replies = await asyncio.gather(*(ask(c) for c in prompts))
        wall_s = time.monotonic() - started
        self._keep(name, arm, replies, wall_s, _difference(before, await self._counters(arm)))

    def _question(self, arm: str, conversation: Conversation, max_tokens: int) -> Question:
        ids = self._target.prompt_ids(conversation.messages([]))
        return Question(self._models[arm], ids, max_tokens, self._terms.temperature, self._terms.seed)

    async def _reply(self, arm: str, conversation: Conversation) -> Reply:
        question = self._question(arm, conversation, self._terms.max_tokens)
        completion = await self._servers[arm].stream(question)
        ids = completion.token_ids if completion.token_ids is not None else tuple(self._target.ids(completion.text))
        return {
            "prompt": conversation.id,
            "prompt_ids": list(question.prompt),
            "token_ids": list(ids),
            "num_tokens": completion.num_tokens or len(ids),
            "first_token_s": completion.first_token_s,
            "total_s": completion.total_s,
            "metrics": completion.metrics,
        }

    async def _counters(self, arm: str) -> dict[str, float]:
        return self._engine.counters(await self._servers[arm].metrics())

    def _keep(self, name: str, arm: str, replies: Sequence[Reply], wall_s: float, counters: dict[str, float]) -> None:
        """One row a reply; what belongs to the whole run of them stands in the first."""
        for number, reply in enumerate(replies):
            shared = {"wall_s": wall_s, "counters": counters} if number == 0 else {}
            self._journal.append({"set": name, "arm": arm, **reply, **shared})
            self._track.advance(1)


def _difference(before: dict[str, float], after: dict[str, float]) -> dict[str, float]:
    return {name: value - before.get(name, 0.0) for name, value in after.items()}


class _Summing:
    """From replies to results."""

    def __init__(self, engine: Engine, target: TargetFolder, terms: Terms, rows: Sequence[Reply]) -> None:
        self._engine, self._stop_ids, self._terms = engine, target.eos_token_ids, terms
        self._rows = {_key(row): row for row in rows}

    def of(self, name: str, order: Sequence[str]) -> SetMeasurement:
        plain, drafted = ([self._rows[name, arm, prompt] for prompt in order] for arm in (PLAIN, DRAFTED))
        pairs = list(zip(plain, drafted, strict=True))
        result = self._arm(drafted)
        if result.acceptance is None:
            raise MeasurementInvalid(
                f"the drafting server has not speculated on {name}",
                evidence=f"counters: {result.raw_counters}",
                effect="there is nothing to compare",
                fix="start it with the drafter",
            )
        differing = {d["prompt"]: at for p, d in pairs if (at := _first_difference(p["token_ids"], d["token_ids"])) is not None}
        one_at_a_time = self._terms.concurrency == 1
        speedup = bootstrap(pairs, _speedup) if one_at_a_time else None
        return SetMeasurement(
            plain=self._arm(plain),
            drafted=result,
            acceptance_length=result.acceptance.acceptance_length,
            acceptance_length_interval=bootstrap(list(result.by_prompt.values()), _acceptance_length),
            speedup=speedup,
            speedup_missing=None if speedup else _no_interval(one_at_a_time),
            num_prompts=len(pairs),
            num_identical=len(pairs) - len(differing),
            first_difference=differing,
            num_distinct_answers=len({tuple(row["token_ids"]) for row in drafted}),
        )

    def _arm(self, rows: Sequence[Reply]) -> ArmResult:
        tokens, wall_s = sum(row["num_tokens"] for row in rows), sum(row.get("wall_s", 0.0) for row in rows)
        counters: dict[str, float] = {}
        for row in rows:
            for key, value in row.get("counters", {}).items():
                counters[key] = counters.get(key, 0.0) + value
        told = {row["prompt"]: counted for row in rows if (counted := self._engine.answer_acceptance(self._answer(row)))}
        by_prompt = told if len(told) == len(rows) else {}
        total = sum(by_prompt.values(), Acceptance())
        return ArmResult(
            output_tokens=tokens,
            wall_s=wall_s,
            tok_per_s=tokens / wall_s,
            acceptance=total if total.num_verify_steps else self._engine.acceptance(counters),
            by_prompt=by_prompt,
            raw_counters=counters,
        )

    def _answer(self, row: Reply) -> Answer:
        counters = row.get("counters") if self._terms.concurrency == 1 else None
        terms = self._terms
        return Answer(row["token_ids"], terms.max_tokens, self._stop_ids, terms.num_speculative_tokens, row.get("metrics"), counters)


def _no_interval(one_at_a_time: bool) -> str:
    if one_at_a_time:
        return "an interval needs at least two prompts"
    return "at a concurrency above 1 each arm is one run: compare tokens/s, and repeat the measurement for an interval"


def _acceptance_length(answers: Sequence[Acceptance]) -> float | None:
    return sum(answers, Acceptance()).acceptance_length


def _speedup(pairs: Sequence[tuple[Reply, Reply]]) -> float | None:
    def rate(arm: int) -> float:
        return float(sum(pair[arm]["num_tokens"] for pair in pairs) / sum(pair[arm]["wall_s"] for pair in pairs))

    return rate(1) / rate(0) if rate(0) else None


def _first_difference(a: list[int], b: list[int]) -> int | None:
    """The first position, from 0, at which two outputs differ; None if they are equal."""
    if a == b:
        return None
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
