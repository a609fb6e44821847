"""The reference engine over HTTP: OpenAI-compatible completions and chat, on loopback."""

import argparse
import asyncio
import json
import signal
import sys
import threading
import time
import uuid
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
import uvicorn
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from pydantic import BaseModel, Field, ValidationError
from starlette.applications import Starlette
from starlette.requests import Request as HttpRequest
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from outrider.core.errors import OutriderError
from outrider.engines.reference.generation import load_pair
from outrider.engines.reference.sampling import Request
from outrider.engines.reference.worker import Answer, Worker
from outrider.targets.folder import TargetFolder

_DISCONNECT_POLL_S = 0.5
_GREEDY_BELOW = 1e-5  # scores divided by less would overflow


class _Body(BaseModel):
    """What completions and chat have in common; fields that this engine does not know are ignored, as elsewhere."""

    model: str | None = None
    max_tokens: int = Field(256, ge=1)
    temperature: float = Field(1.0, ge=0)
    top_p: float = Field(1.0, gt=0, le=1)
    seed: int = Field(0, ge=-(1 << 63), lt=1 << 63)
    n: Literal[1] = 1
    stream: bool = False
    stop: str | list[str] | None = None
    stop_token_ids: list[int] = []
    ignore_eos: bool = False
    return_token_ids: bool = False
    skip_special_tokens: bool = True


class CompletionBody(_Body):
    """Body of /v1/completions."""

    prompt: str | list[int]


class ChatBody(_Body):
    """Body of /v1/chat/completions."""

    messages: list[dict[str, Any]] = Field(min_length=1)


class Api:
    """The routes, over one worker.

    Args:
        worker: answers requests in its own thread.
        folder: the target, for its tokenizer.
    """

    def __init__(self, worker: Worker, folder: TargetFolder) -> None:
        self._worker, self._folder = worker, folder
        self._max_length = int(folder.text_config.get("max_position_embeddings", 1 << 20))

    def app(self) -> Starlette:
        """The ASGI application."""
        routes = [
            Route("/health", self._health),
            Route("/metrics", self._metrics),
            Route("/v1/models", self._models),
            Route("/v1/completions", self._completions, methods=["POST"]),
            Route("/v1/chat/completions", self._chat, methods=["POST"]),
        ]
        return Starlette(routes=routes)

    async def _health(self, _: HttpRequest) -> Response:
        return Response(status_code=200 if self._worker.is_running else 503)

    async def _metrics(self, _: HttpRequest) -> Response:
        return Response(generate_latest(self._worker.registry), media_type=CONTENT_TYPE_LATEST)

    async def _models(self, _: HttpRequest) -> Response:
        return JSONResponse({"object": "list", "data": [{"id": self._folder.path.name, "object": "model", "owned_by": "outrider"}]})

    async def _completions(self, http: HttpRequest) -> Response:
        def prompt_of(body: CompletionBody) -> list[int]:
            return self._folder.ids(body.prompt) if isinstance(body.prompt, str) else body.prompt

        return await self._reply(http, CompletionBody, prompt_of, _as_completion)

    async def _chat(self, http: HttpRequest) -> Response:
        def prompt_of(body: ChatBody) -> list[int]:
            return self._folder.prompt_ids(body.messages)

        return await self._reply(http, ChatBody, prompt_of, _as_chat)

    async def _reply(self, http: HttpRequest, kind: Any, prompt_of: Callable[[Any], list[int]], shape: "Shape") -> Response:
        try:
            body = kind.model_validate_json(await http.body())
            prompt = prompt_of(body)
        except ValidationError as error:
            first = error.errors()[0]
            return _refusal(f"{'.'.join(map(str, first['loc']))}: {first['msg']}")
        except Exception as error:  # a template is the model author's program: it may raise anything
            return _refusal(f"the chat template refuses these messages: {error}")
        if not prompt or not all(0 <= i < self._folder.vocab_size for i in prompt):
            return _refusal("prompt: empty, or an id outside the vocabulary")
        if len(prompt) + body.max_tokens > self._max_length:
            return _refusal(f"prompt and max_tokens come to {len(prompt) + body.max_tokens}; the model takes {self._max_length}")
        stop_ids = frozenset(body.stop_token_ids) | frozenset(() if body.ignore_eos else self._folder.eos_token_ids)
        temperature = 0.0 if body.temperature < _GREEDY_BELOW else body.temperature
        request = Request(tuple(prompt), body.max_tokens, temperature, body.top_p, body.seed, stop_ids)
        stops = [body.stop] if isinstance(body.stop, str) else (body.stop or [])
        answer = self._worker.submit(request, in_pieces=body.stream or bool(stops))
        pieces = self._pieces(answer, body, stops)
        if body.stream:
            return StreamingResponse(_events(pieces, body, shape, len(prompt)), media_type="text/event-stream")
        watcher = asyncio.create_task(_cancel_when_disconnected(http, answer))
        try:
            return await _whole(pieces, shape, body, len(prompt))
        finally:
            watcher.cancel()

    async def _pieces(self, answer: Answer, body: _Body, stops: list[str]) -> AsyncIterator["Piece"]:
        """The answer's text as it comes; cut at a stop string, which ends the request. A stop token has no text."""
        ids: list[int] = []
        sent = ""
        try:
            async for tokens, finish in answer:
                ids += tokens
                shown = ids[:-1] if finish == "stop" else ids
                text = str(self._folder.tokenizer.decode(shown, skip_special_tokens=body.skip_special_tokens))
                cut = min((at for stop in stops if (at := text.find(stop)) >= 0), default=-1)
                if cut >= 0:
                    text, finish = text[:cut], "stop"
                elif not finish and text.endswith("\ufffd"):
                    text = sent  # the rest of a character is still to come
                elif not finish:
                    text = text[: len(text) - _num_held_back(text, stops)]
                piece = text[len(sent) :]
                sent = sent + piece
                yield Piece(piece, tokens, finish)
                if finish:
                    return
        finally:
            answer.cancel()


def _num_held_back(text: str, stops: list[str]) -> int:
    """How many characters at the end of a text may be the beginning of a stop string."""
    return max((n for stop in stops for n in range(1, len(stop)) if text.endswith(stop[:n])), default=0)


async def _cancel_when_disconnected(http: HttpRequest, answer: Answer) -> None:
    while not await http.is_disconnected():
        await asyncio.sleep(_DISCONNECT_POLL_S)
    answer.cancel()


@dataclass(frozen=True)
class Piece:
    """A piece of an answer."""

    text: str
    token_ids: list[int]
    finish_reason: str | None


Shape = Callable[[str, str | None, list[int] | None, bool], dict[str, Any]]


def _as_completion(text: str, finish: str | None, ids: list[int] | None, is_piece: bool) -> dict[str, Any]:
    choice: dict[str, Any] = {"index": 0, "text": text, "finish_reason": finish} | ({"token_ids": ids} if ids is not None else {})
    return {"object": "text_completion", "choices": [choice]}


def _as_chat(text: str, finish: str | None, ids: list[int] | None, is_piece: bool) -> dict[str, Any]:
    choice: dict[str, Any] = {
        "index": 0,
        "delta" if is_piece else "message": {"role": "assistant", "content": text},
        "finish_reason": finish,
    }
    choice |= {"token_ids": ids} if ids is not None else {}
    return {"object": "chat.completion.chunk" if is_piece else "chat.completion", "choices": [choice]}


def _head() -> dict[str, Any]:
    return {"id": f"ref-{uuid.uuid4().hex}", "created": int(time.time())}


def _usage(num_prompt: int, num_answer: int) -> dict[str, int]:
    return {"prompt_tokens": num_prompt, "completion_tokens": num_answer, "total_tokens": num_prompt + num_answer}


async def _events(pieces: AsyncIterator[Piece], body: _Body, shape: Shape, num_prompt: int) -> AsyncIterator[str]:
    head, count = _head(), 0
    try:
        async for piece in pieces:
            count += len(piece.token_ids)
            ids = piece.token_ids if body.return_token_ids else None
            yield f"data: {json.dumps(head | shape(piece.text, piece.finish_reason, ids, True))}\n\n"
        yield f"data: {json.dumps(head | {'choices': [], 'usage': _usage(num_prompt, count)})}\n\n"
    except OutriderError as error:
        yield f"data: {json.dumps({'error': {'message': error.what}})}\n\n"
    yield "data: [DONE]\n\n"


async def _whole(pieces: AsyncIterator[Piece], shape: Shape, body: _Body, num_prompt: int) -> Response:
    text, finish = "", None
    ids: list[int] = []
    try:
        async for piece in pieces:
            text, finish = text + piece.text, piece.finish_reason
            ids += piece.token_ids
    except OutriderError as error:
        return JSONResponse({"error": {"message": error.what}}, status_code=500)
    reply = shape(text, finish, ids if body.return_token_ids else None, False)
    return JSONResponse(_head() | reply | {"usage": _usage(num_prompt, len(ids))})


def _refusal(message: str) -> Response:
    return JSONResponse({"error": {"message": message, "type": "invalid_request_error"}}, status_code=400)


def main() -> int:
    """Serve until stopped."""
    parser = argparse.ArgumentParser(description="The reference engine over HTTP, on loopback.")
    parser.add_argument("--target", type=Path, required=True)
    parser.add_argument("--drafter", type=Path)
    parser.add_argument("--num-speculative-tokens", type=int, default=3)
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--max-batch", type=int, default=32)
    parser.add_argument("--threads", type=int)
    args = parser.parse_args()
    if args.threads:
        torch.set_num_threads(args.threads)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        folder = TargetFolder.open(args.target)
        target, drafter = load_pair(folder, args.drafter, getattr(torch, args.dtype), device)
        _ = folder.tokenizer
    except OutriderError as error:
        # in one line: who reads the log takes it for the evidence
        print("; ".join(" ".join(line.split()) for line in error.lines()), file=sys.stderr)
        return error.exit_code
    worker = Worker(target, drafter, args.num_speculative_tokens, args.max_batch)
    return _serve(worker, Api(worker, folder).app(), args.port)


def _serve(worker: Worker, app: Starlette, port: int) -> int:
    """Compute in this thread and talk HTTP in another, until a signal or the end of either."""
    config = uvicorn.Config(app, host="127.0.0.1", port=port, log_level="warning", timeout_graceful_shutdown=1)
    server = uvicorn.Server(config)

    def talk() -> None:
        try:
            server.run()
        finally:
            worker.stop()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: worker.stop())
    talking = threading.Thread(target=talk, name="http", daemon=True)
    talking.start()
    worker.run()
    server.should_exit = True
    talking.join(timeout=5)
    return 0 if server.started else 1


if __name__ == "__main__":
    sys.exit(main())
