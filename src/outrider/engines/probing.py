"""Whether a server answers: its port, /health, and a first token; asked beside whoever follows its log."""

import re
import socket
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Final, Literal, Self
from urllib.parse import urlsplit

import httpx2

_POLL_S = 0.2
_UNWELL_POLL_S = 1.0  # each question is a line in its log
_JOIN_S = 1.0
_CONNECT_S = 5.0
_HEALTH_S = 30.0  # SGLang's own takes up to 20 s to say that it is not well
_TOKEN_S = 3600.0  # who watches gives it up, long before
# enough tokens that a drafting server must verify a proposal, not only make one
_NUM_TOKENS = 8
_TOKENS_MADE: Final = re.compile(r"^\w+:generation_tokens(?:_total)?(?:\{[^}]*\})?\s+([0-9.eE+]+)", re.MULTILINE)

# closed: nothing listens; silent: /health has not answered; unwell: it answered, and not with 200; asked: it is well, and was asked
# for tokens; answered: they came; refused: it said something else
Stage = Literal["closed", "silent", "unwell", "asked", "answered", "refused"]


@dataclass(frozen=True)
class Seen:
    """How a server is.

    Attributes:
        since_s: on time.monotonic's clock.
        said: what it answered last; empty if that is as it should be.
    """

    stage: Stage
    since_s: float
    said: str = ""


class Probe:
    """Asks a server until it has given tokens, then no more; in a thread of its own, for an answer may never come.

    Args:
        url: without /v1.
        again_after_s: after tokens came, ask once more after this time, and so on; None for never: a server that is being
            measured is not disturbed.
    """

    def __init__(self, url: str, again_after_s: float | None = None) -> None:
        self.seen = Seen("closed", time.monotonic())
        self._url, self._again_after_s = url.rstrip("/").removesuffix("/v1"), again_after_s
        self._left = threading.Event()
        self._thread = threading.Thread(target=self._ask_on, name=f"probe {url}", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """A request that waits for its answer is not waited for: it ends with the server, or with us."""
        self._left.set()
        if self.seen.stage not in ("silent", "asked"):
            self._thread.join(_JOIN_S)

    def tokens_made(self) -> float | None:
        """How many tokens it has made for whomever, as far as its /metrics tell; None if they do not, within 5 s."""
        try:
            text = httpx2.get(f"{self._url}/metrics", timeout=_CONNECT_S, trust_env=False).text
        except httpx2.HTTPError:
            return None
        values = [float(value) for value in _TOKENS_MADE.findall(text)]
        return sum(values) if values else None

    def _ask_on(self) -> None:
        timeout = httpx2.Timeout(_HEALTH_S, connect=_CONNECT_S)
        with httpx2.Client(base_url=self._url, timeout=timeout, trust_env=False) as client:
            while not self._left.wait(_UNWELL_POLL_S if self.seen.stage == "unwell" else _POLL_S):
                if not self._listens():
                    self._see("closed")
                    continue
                self._ask(client)
                if self.seen.stage == "refused" or (self.seen.stage == "answered" and self._again_after_s is None):
                    return
                if self.seen.stage == "answered":
                    self._left.wait(self._again_after_s)

    def _listens(self) -> bool:
        """Cheaper than a request, while nothing does."""
        address = urlsplit(self._url)
        try:
            with socket.create_connection((address.hostname or "", address.port or 80), timeout=_CONNECT_S):
                return True
        except OSError:
            return False

    def _ask(self, client: httpx2.Client) -> None:
        try:
            if self.seen.stage == "closed":
                self._see("silent")
            health = client.get("/health")
            if health.status_code != 200:
                self._see("unwell", f"/health answered {health.status_code}")
                return
            self._see("asked", anew=True)
            self._see(*_first_answer(client))
        except httpx2.TimeoutException:
            self._see("silent", f"/health did not answer within {_HEALTH_S:.0f} s")
        except httpx2.HTTPError as error:  # it has died, or is about to
            self._see("closed", f"{type(error).__name__}: {error}")

    def _see(self, stage: Stage, said: str = "", anew: bool = False) -> None:
        if anew or stage != self.seen.stage:
            self.seen = Seen(stage, time.monotonic(), said)


def _first_answer(client: httpx2.Client) -> tuple[Stage, str]:
    """Ready means that tokens came, not that a port is open."""
    reply = client.get("/v1/models", timeout=_TOKEN_S)
    try:
        model = reply.json()["data"][0]["id"]
        body = {"model": model, "prompt": [1], "max_tokens": _NUM_TOKENS, "temperature": 0, "ignore_eos": True}
        reply = client.post("/v1/completions", json=body, timeout=_TOKEN_S)
        answer: Mapping[str, Any] = reply.json() if reply.status_code == 200 else {}
        if answer["choices"][0]["text"] or answer["usage"]["completion_tokens"]:
            return "answered", ""
    except (ValueError, KeyError, IndexError, TypeError):
        pass
    return "refused", f"{reply.status_code}: {reply.text[:300]}"
