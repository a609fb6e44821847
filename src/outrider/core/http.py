"""A client for OpenAI-compatible servers: completions from token ids, streamed, with their times."""

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import httpx2
from pydantic import BaseModel, ConfigDict

from outrider.core.errors import EngineFailed, InputError

_TIMEOUT = httpx2.Timeout(600.0, connect=10.0)


class Completion(BaseModel):
    """One answer.

    Attributes:
        token_ids: the answer's ids as the server made them; None if it does not tell.
        first_token_s: seconds from the request to the first piece of text; None if it came whole.
        total_s: seconds from the request to the end.
        metrics: what the server says of this request by its own names; None if nothing.
    """

    model_config = ConfigDict(frozen=True)

    text: str
    token_ids: tuple[int, ...] | None
    finish_reason: str
    num_tokens: int | None
    first_token_s: float | None
    total_s: float
    metrics: dict[str, Any] | None = None


@dataclass(frozen=True)
class Question:
    """What is asked for.

    Attributes:
        model: as /v1/models names it.
        prompt: token ids.
    """

    model: str
    prompt: Sequence[int]
    max_tokens: int
    temperature: float
    seed: int

    def body(self) -> dict[str, Any]:
        """The JSON of the request."""
        return {
            "model": self.model,
            "prompt": list(self.prompt),
            "max_tokens": self.max_tokens,
            "temperature": self.temperature,
            "seed": self.seed,
            "return_token_ids": True,
            "skip_special_tokens": False,
        }


class Server:
    """An OpenAI-compatible server at `url` (without /v1)."""

    def __init__(self, url: str, max_connections: int = 64) -> None:
        self.url = url.rstrip("/").removesuffix("/v1")
        limits = httpx2.Limits(max_connections=max_connections, max_keepalive_connections=max_connections)
        # a server named by the user is asked directly: a proxy from the environment has no business between them
        self._client = httpx2.AsyncClient(base_url=self.url, timeout=_TIMEOUT, limits=limits, trust_env=False)

    async def close(self) -> None:
        """Close all connections."""
        await self._client.aclose()

    async def __aenter__(self) -> "Server":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def model(self) -> str:
        """The id of the first model served.

        Raises:
            EngineFailed: no answer; InputError: an answer that is not of this API.
        """
        reply = await self._get("/v1/models")
        try:
            return str(reply.json()["data"][0]["id"])
        except (ValueError, KeyError, IndexError, TypeError):
            raise InputError(
                f"{self.url} is not an OpenAI-compatible server", evidence=f"/v1/models answered {reply.text[:120]!r}"
            ) from None

    async def metrics(self) -> str:
        """The text of /metrics."""
        return (await self._get("/metrics")).text

    async def complete(self, question: "Question") -> Completion:
        """Complete a prompt through /v1/completions, whole: cheaper for both sides than a stream.

        Raises:
            EngineFailed: the server refused, broke off, or is gone.
        """
        started = time.monotonic()
        try:
            reply = await self._client.post("/v1/completions", json=question.body())
            _require_ok(reply.status_code, reply.text)
            choice, usage = reply.json()["choices"][0], reply.json().get("usage") or {}
            total_s = time.monotonic() - started
            return Completion(
                text=choice["text"],
                token_ids=choice.get("token_ids"),
                finish_reason=choice["finish_reason"],
                num_tokens=usage.get("completion_tokens"),
                first_token_s=None,
                total_s=total_s,
                metrics=reply.json().get("metrics"),
            )
        except httpx2.HTTPError as error:
            raise self._broke_off(error) from None
        except (ValueError, KeyError, IndexError, TypeError) as error:
            raise EngineFailed("the server's answer is not of the OpenAI API", evidence=f"{error!r}: {reply.text[:200]}") from None

    async def stream(self, question: "Question") -> Completion:
        """The same, streamed, so that the first token's time is known.

        Raises:
            EngineFailed: the server refused, broke off, or is gone.
        """
        body = question.body() | {"stream": True, "stream_options": {"include_usage": True}}
        parts = _StreamParts()
        try:
            async with self._client.stream("POST", "/v1/completions", json=body) as reply:
                _require_ok(reply.status_code, "" if reply.status_code == 200 else (await reply.aread()).decode(errors="replace"))
                async for line in reply.aiter_lines():
                    if line.startswith("data:"):
                        parts.add(line[5:].strip())
        except httpx2.HTTPError as error:
            raise self._broke_off(error) from None
        return parts.completion()

    def _broke_off(self, error: Exception) -> EngineFailed:
        return EngineFailed(f"the server at {self.url} broke off", evidence=f"{type(error).__name__}: {error}")

    async def _get(self, path: str) -> httpx2.Response:
        try:
            reply = await self._client.get(path)
        except httpx2.HTTPError as error:
            raise EngineFailed(
                f"no server answers at {self.url}", evidence=f"{type(error).__name__}: {error}", fix="start it, or check the address"
            ) from None
        if reply.status_code != 200:
            raise EngineFailed(f"{self.url}{path} answered HTTP {reply.status_code}", evidence=reply.text[:200])
        return reply


def _require_ok(status: int, text: str) -> None:
    if status != 200:
        raise EngineFailed(f"the server refused a request (HTTP {status})", evidence=text[:400])


class _StreamParts:
    """Gathers the events of one streamed completion."""

    def __init__(self) -> None:
        self._started = time.monotonic()
        self._first_s: float | None = None
        self._text: list[str] = []
        self._ids: list[int] = []
        self._has_ids = False
        self._finish = ""
        self._num_tokens: int | None = None
        self._metrics: dict[str, Any] | None = None

    def add(self, data: str) -> None:
        if data == "[DONE]":
            return
        try:
            event: dict[str, Any] = json.loads(data)
        except ValueError:
            raise EngineFailed("the server sent an event that is not JSON", evidence=data[:200]) from None
        if "error" in event:
            raise EngineFailed("the server failed within an answer", evidence=str(event["error"])[:400])
        if event.get("usage"):
            self._num_tokens = event["usage"].get("completion_tokens")
        self._metrics = event.get("metrics") or self._metrics
        for choice in event.get("choices", ()):
            if self._first_s is None:
                self._first_s = time.monotonic() - self._started
            self._text.append(choice.get("text") or "")
            if choice.get("token_ids") is not None:
                self._has_ids = True
                self._ids += choice["token_ids"]
            self._finish = choice.get("finish_reason") or self._finish

    def completion(self) -> Completion:
        if not self._finish:
            raise EngineFailed("an answer broke off before its end", evidence=f"received {len(self._text)} pieces")
        total_s = time.monotonic() - self._started
        ids = tuple(self._ids) if self._has_ids else None
        return Completion(
            text="".join(self._text),
            token_ids=ids,
            finish_reason=self._finish,
            num_tokens=self._num_tokens if self._num_tokens is not None else ids and len(ids),
            first_token_s=self._first_s if self._first_s is not None else total_s,
            total_s=total_s,
            metrics=self._metrics,
        )
