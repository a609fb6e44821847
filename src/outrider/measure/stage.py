"""The stage: two servers, the same prompts, paired; every reply kept as it comes, so that a killed run goes on.

At concurrency 1 the arms take turns prompt by prompt, in changing order, so that a drift of the machine meets both.
At a higher concurrency one arm runs after the other, and an interval of the speedup is not given.
"""

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from outrider.core.errors import MeasurementInvalid
from outrider.core.http import Question, Server
from outrider.core.journal import Journal
from outrider.core.progress import Track
from outrider.core.prompts import Conversation
from outrider.core.results import Acceptance, ArmResult, MeasureResult, SetMeasurement
from outrider.engines.engine import Engine
from outrider.measure.statistics import bootstrap
from outrider.targets.folder import TargetFolder

PLAIN, DRAFTED = "plain", "drafted"
_WARM_UP_TOKENS = 16
Reply = dict[str, Any]


@dataclass(frozen=True)
class Terms:
    """What both arms are asked alike."""

    max_tokens: int
    temperature: float
    concurrency: int
    num_speculative_tokens: int
    seed: int = 0


@dataclass(frozen=True)
class Arm:
    """A running server, with or without the drafter."""

    name: str
    url: str


async def measure(
    engine: Engine, arms: Sequence[Arm], target: TargetFolder, sets: Mapping[str, Sequence[Conversation]], terms: Terms, folder: Path
) -> MeasureResult:
    """Measure every prompt set on both arms.

    Args:
        arms: the plain server and the drafting one, in this order.
        folder: where replies.jsonl is kept.

    Raises:
        EngineFailed: a server died; MeasurementInvalid: the drafting server has not speculated.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with Journal(folder / "replies.jsonl") as journal:
        total = len(arms) * sum(len(prompts) for prompts in sets.values())
        with Track("measure", total, "answers", done=len(journal.rows)) as track:
            for name, prompts in sets.items():
                run = _SetRun(engine, arms, target, name, prompts, terms, journal, track)
                await (run.in_turns() if terms.concurrency == 1 else run.one_arm_after_the_other())
        results = {name: _summary(engine, name, [c.id for c in prompts], terms, journal.rows) for name, prompts in sets.items()}
    first = next(iter(results.values()))
    return MeasureResult(
        engine=engine.id,
        engine_version=engine.version(),
        num_speculative_tokens=terms.num_speculative_tokens,
        temperature=terms.temperature,
        max_tokens=terms.max_tokens,
        acceptance_length=first.acceptance_length,
        speedup=first.speedup.value if first.speedup else None,
        sets=results,
    )


class _SetRun:
    """Asks one set's prompts, as far as the journal lacks the replies."""

    def __init__(
        self,
        engine: Engine,
        arms: Sequence[Arm],
        target: TargetFolder,
        name: str,
        prompts: Sequence[Conversation],
        terms: Terms,
        journal: Journal,
        track: Track,
    ) -> None:
        self._engine, self._arms, self._target, self._name, self._prompts = engine, arms, target, name, prompts
        self._terms, self._journal, self._track = terms, journal, track

    async def in_turns(self) -> None:
        """Prompt by prompt on both arms; counters are read around each prompt."""
        done = {(row["arm"], row["prompt"]) for row in self._journal.rows if row["set"] == self._name}
        todo = [(number, c) for number, c in enumerate(self._prompts) if not all((arm.name, c.id) in done for arm in self._arms)]
        if not todo:
            return
        servers = {arm.name: Server(arm.url) for arm in self._arms}
        models = {name: await server.model() for name, server in servers.items()}
        for name, server in servers.items():
            await server.stream(self._question(models[name], todo[0][1], max_tokens=_WARM_UP_TOKENS))
        for number, conversation in todo:
            for arm in self._arms if number % 2 == 0 else reversed(self._arms):
                if (arm.name, conversation.id) not in done:
                    before = await self._counters(servers[arm.name])
                    reply = await self._ask(servers[arm.name], models[arm.name], conversation)
                    after = await self._counters(servers[arm.name])
                    self._keep(arm, [reply], reply["total_s"], _difference(before, after))
        for server in servers.values():
            await server.close()

    async def one_arm_after_the_other(self) -> None:
        """All prompts of an arm at the asked concurrency; counters are read around the drained run."""
        for arm in self._arms:
            if any(row["arm"] == arm.name and row["set"] == self._name for row in self._journal.rows):
                continue
            async with Server(arm.url, max_connections=self._terms.concurrency) as server:
                model = await server.model()
                await server.stream(self._question(model, self._prompts[0], max_tokens=_WARM_UP_TOKENS))
                waiting = asyncio.Semaphore(self._terms.concurrency)

                async def ask(
                    conversation: Conversation, server: Server = server, model: str = model, waiting: asyncio.Semaphore = waiting
                ) -> Reply:
                    async with waiting:
                        return await self._ask(server, model, conversation)

                before, started = await self._counters(server), time.monotonic()
                replies = await asyncio.gather(*(ask(c) for c in self._prompts))
                wall_s = time.monotonic() - started
                self._keep(arm, replies, wall_s, _difference(before, await self._counters(server)))

    def _question(self, model: str, conversation: Conversation, max_tokens: int) -> Question:
        return Question(model, self._target.prompt_ids(conversation.messages([])), max_tokens, self._terms.temperature, self._terms.seed)

    async def _ask(self, server: Server, model: str, conversation: Conversation) -> Reply:
        completion = await server.stream(self._question(model, conversation, self._terms.max_tokens))
        ids = completion.token_ids if completion.token_ids is not None else tuple(self._target.ids(completion.text))
        return {
            "prompt": conversation.id,
            "token_ids": list(ids),
            "num_tokens": completion.num_tokens or len(ids),
            "first_token_s": completion.first_token_s,
            "total_s": completion.total_s,
        }

    async def _counters(self, server: Server) -> dict[str, float]:
        return self._engine.counters(await server.metrics())

    def _keep(self, arm: Arm, replies: Sequence[Reply], wall_s: float, counters: dict[str, float]) -> None:
        """One row a reply; what belongs to the whole run of them stands in the first."""
        for number, reply in enumerate(replies):
            shared = {"wall_s": wall_s, "counters": counters} if number == 0 else {}
            self._journal.append({"set": self._name, "arm": arm.name, **reply, **shared})
            self._track.advance(1)


def _difference(before: dict[str, float], after: dict[str, float]) -> dict[str, float]:
    return {name: value - before.get(name, 0.0) for name, value in after.items()}


def _summary(engine: Engine, name: str, order: Sequence[str], terms: Terms, rows: Sequence[Reply]) -> SetMeasurement:
    by_arm = {arm: {row["prompt"]: row for row in rows if row["set"] == name and row["arm"] == arm} for arm in (PLAIN, DRAFTED)}
    plain, drafted = [by_arm[PLAIN][i] for i in order], [by_arm[DRAFTED][i] for i in order]
    pairs = list(zip(plain, drafted, strict=True))
    result = _arm(engine, drafted)
    if result.acceptance is None:
        raise MeasurementInvalid(
            f"the drafting server has not speculated on {name}",
            evidence=f"counters: {result.raw_counters}",
            effect="there is nothing to compare",
            fix="start it with the drafter",
        )
    differing = {d["prompt"]: at for p, d in pairs if (at := _first_difference(p["token_ids"], d["token_ids"])) is not None}
    in_turns = terms.concurrency == 1
    speedup = bootstrap(pairs, _speedup) if in_turns else None
    return SetMeasurement(
        plain=_arm(engine, plain),
        drafted=result,
        acceptance_length=result.acceptance.acceptance_length,
        acceptance_length_interval=bootstrap(drafted, lambda some: _acceptance_length(engine, some)) if in_turns else None,
        speedup=speedup,
        speedup_missing=None if speedup else _no_interval(in_turns),
        num_prompts=len(pairs),
        num_identical=len(pairs) - len(differing),
        first_difference=differing,
        num_distinct_answers=len({tuple(row["token_ids"]) for row in drafted}),
    )


def _no_interval(in_turns: bool) -> str:
    if in_turns:
        return "an interval needs at least two prompts"
    return "at a concurrency above 1 each arm is one run: compare tokens/s, and repeat the measurement for an interval"


def _arm(engine: Engine, rows: Sequence[Reply]) -> ArmResult:
    tokens, wall_s = sum(row["num_tokens"] for row in rows), sum(row.get("wall_s", 0.0) for row in rows)
    counters: dict[str, float] = {}
    for row in rows:
        for key, value in row.get("counters", {}).items():
            counters[key] = counters.get(key, 0.0) + value
    return ArmResult(
        output_tokens=tokens, wall_s=wall_s, tok_per_s=tokens / wall_s, acceptance=engine.acceptance(counters), raw_counters=counters
    )


def _acceptance_length(engine: Engine, rows: Sequence[Reply]) -> float | None:
    total = sum((a for row in rows if (a := engine.acceptance(row["counters"]))), Acceptance())
    return total.acceptance_length


def _speedup(pairs: Sequence[tuple[Reply, Reply]]) -> float | None:
    def rate(arm: int) -> float:
        return float(sum(pair[arm]["num_tokens"] for pair in pairs) / sum(pair[arm]["wall_s"] for pair in pairs))

    return rate(1) / rate(0)


def _first_difference(a: list[int], b: list[int]) -> int | None:
    """The first position, from 0, at which two outputs differ; None if they are equal."""
    if a == b:
        return None
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
