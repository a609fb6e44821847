"""What computes: takes requests from a queue, batches them, hands tokens back to the event loop.

It runs in the process's main thread: torch's CPU kernels were seen to take twice as long in any other.
"""

import asyncio
import queue
import threading
import traceback
from collections.abc import AsyncIterator

import torch
from prometheus_client import CollectorRegistry, Counter, Gauge

from outrider.core.errors import EngineFailed
from outrider.core.results import Acceptance
from outrider.drafters.eagle3 import Eagle3Drafter
from outrider.engines.reference.generation import PlainBatch, Running, speculate
from outrider.engines.reference.sampling import Request
from outrider.targets.model import TargetModel

_IDLE_POLL_S = 0.2


class Answer:
    """One answer on its way: iterate for (tokens, finish reason or None).

    Args:
        in_pieces: whether tokens are wanted as they come; waking the event loop for each costs a decoding step's time.
    """

    def __init__(self, request: Request, in_pieces: bool) -> None:
        self.row = Running(request, key=self)
        self._in_pieces = in_pieces
        self._loop = asyncio.get_running_loop()
        self._pieces: asyncio.Queue[tuple[list[int], str | None] | BaseException] = asyncio.Queue()
        self._num_sent = 0

    def cancel(self) -> None:
        """Nobody listens any more."""
        self.row.is_cancelled = True

    def send_new(self) -> None:
        """From the worker's thread: hand over the tokens that have come since."""
        if not (self._in_pieces or self.row.finish_reason):
            return
        tokens, self._num_sent = self.row.tokens[self._num_sent :], len(self.row.tokens)
        self._put((tokens, self.row.finish_reason))

    def end_cancelled(self) -> None:
        """From the worker's thread: the request is no longer computed."""
        self._put(([], "abort"))

    def fail(self, error: BaseException) -> None:
        """From the worker's thread: the request cannot be answered."""
        self._put(error)

    def _put(self, piece: "tuple[list[int], str | None] | BaseException") -> None:
        try:
            self._loop.call_soon_threadsafe(self._pieces.put_nowait, piece)
        except RuntimeError:  # the loop has closed: the server is going down
            self.cancel()

    async def __aiter__(self) -> AsyncIterator[tuple[list[int], str | None]]:
        while True:
            piece = await self._pieces.get()
            if isinstance(piece, BaseException):
                raise EngineFailed("the engine could not compute this answer", evidence=repr(piece)) from piece
            yield piece
            if piece[1]:
                return


class Worker:
    """Computes answers: many plain ones at once, or one at a time with a drafter.

    Args:
        num_tokens: K.
        max_batch: rows decoded at once.
    """

    def __init__(self, target: TargetModel, drafter: Eagle3Drafter | None, num_tokens: int, max_batch: int) -> None:
        self._target, self._drafter, self._num_tokens, self._max_batch = target, drafter, num_tokens, max_batch
        self._waiting: queue.Queue[Answer] = queue.Queue()
        self._stopping = threading.Event()
        self.is_running = False
        self.registry = CollectorRegistry()

        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(f"reference_{name}", text, labels, registry=self.registry)

        self._requests = counter("requests", "answers finished")
        self._generated = counter("generation_tokens", "tokens of answers")
        self._steps = counter("num_verify_steps", "target passes over a proposal")
        self._drafted = counter("num_draft_tokens", "tokens proposed, drafts past the stop left out")
        self._accepted = counter("num_accepted_tokens", "proposed tokens that the target kept")
        self._accepted_at = counter("num_accepted_tokens_per_position", "the same, by position", "position")
        self._running = Gauge("reference_running_requests", "answers being computed or waiting", registry=self.registry)
        for position in range(num_tokens if drafter else 0):
            self._accepted_at.labels(position=str(position))

    def stop(self) -> None:
        """Let `run` end after the step in progress; from any thread, or a signal's handler."""
        self._stopping.set()

    def submit(self, request: Request, *, in_pieces: bool) -> Answer:
        """Queue a request; called in the event loop."""
        answer = Answer(request, in_pieces)
        self._running.inc()
        self._waiting.put(answer)
        return answer

    def run(self) -> None:
        """Compute answers until `stop`."""
        self.is_running = True
        with torch.inference_mode():
            while not self._stopping.is_set():
                first = self._next(wait=True)
                if first is None:
                    continue
                if self._drafter is not None:
                    self._speculate(first, self._drafter)
                else:
                    self._decode_batch(first)
        self.is_running = False
        while not self._waiting.empty():
            self._end(self._waiting.get_nowait())

    def _next(self, wait: bool) -> Answer | None:
        try:
            answer = self._waiting.get(timeout=_IDLE_POLL_S) if wait else self._waiting.get_nowait()
        except queue.Empty:
            return None
        if answer.row.is_cancelled:
            self._end(answer)
            return None
        return answer

    def _speculate(self, answer: Answer, drafter: Eagle3Drafter) -> None:
        try:
            for tokens, counts in speculate(self._target, drafter, answer.row, self._num_tokens):
                self._count(len(tokens), counts)  # before the tokens leave: who has the answer can read its counts
                self._requests.inc(answer.row.finish_reason is not None)
                answer.send_new()
                if self._stopping.is_set():
                    break
            self._end(answer)
        except Exception as error:  # one request must not take the server down
            traceback.print_exc()
            self._running.dec()
            answer.fail(error)

    def _decode_batch(self, first: Answer) -> None:
        batch = PlainBatch(self._target)
        joining: list[Answer] = [first]
        try:
            while (joining or batch.rows) and not self._stopping.is_set():
                while len(joining) + len(batch.rows) < self._max_batch and (more := self._next(wait=False)):
                    joining.append(more)
                if joining:
                    rows = [answer.row for answer in joining]
                    batch.add(rows)
                    joining = []
                    self._hand_out(rows)
                else:
                    batch.step()
                    self._hand_out(batch.rows)
                for row in batch.drop_finished():
                    self._end(self._answer_of(row))
            for answer in [*joining, *(self._answer_of(row) for row in batch.rows)]:  # the server is going down
                self._end(answer)
        except Exception as error:  # one batch must not take the server down
            traceback.print_exc()
            for answer in [*joining, *(self._answer_of(row) for row in batch.rows)]:
                self._running.dec()
                answer.fail(error)

    def _end(self, answer: Answer) -> None:
        self._running.dec()
        if answer.row.finish_reason is None:
            answer.end_cancelled()

    def _hand_out(self, rows: list[Running]) -> None:
        self._generated.inc(len(rows))
        self._requests.inc(sum(row.finish_reason is not None for row in rows))
        for row in rows:
            self._answer_of(row).send_new()

    @staticmethod
    def _answer_of(row: Running) -> Answer:
        assert isinstance(row.key, Answer)
        return row.key

    def _count(self, num_tokens: int, counts: Acceptance) -> None:
        self._generated.inc(num_tokens)
        self._steps.inc(counts.num_verify_steps)
        self._drafted.inc(counts.num_draft_tokens)
        self._accepted.inc(counts.num_accepted_tokens)
        for position, number in enumerate(counts.accepted_at):
            self._accepted_at.labels(position=str(position)).inc(number)
