"""An engine on another machine: what is there is asked over ssh; nothing of ours needs to be there."""

import io
import json
import tarfile
from pathlib import Path
from typing import Any, Final

from outrider.core.errors import EngineFailed, InputError
from outrider.core.ssh import Host
from outrider.engines.engine import Engine
from outrider.engines.environment import ASK, Environment

_TIMEOUT_S: Final = 120.0
_TOKEN_TIMEOUT_S: Final = 300.0
# what preflight reads beside the weights
_CONFIGS: Final = """
cd -- "$1" || exit
set --
for file in *.json *.jinja; do [ -f "$file" ] && set -- "$@" "./$file"; done
tar -chf - "$@"
"""
_TOKEN: Final = """
import json, sys, urllib.request
def asked(path, body=None):
    request = urllib.request.Request(sys.argv[1] + path, body and json.dumps(body).encode(), {"Content-Type": "application/json"})
    return json.load(urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=float(sys.argv[2])))
model = asked("/v1/models")["data"][0]["id"]
answer = asked("/v1/completions", {"model": model, "prompt": [1], "max_tokens": 8, "temperature": 0, "ignore_eos": True})
print(answer["usage"]["completion_tokens"])
"""


def environment_on(host: Host, engine: Engine, python: str) -> Environment:
    """The engine behind an interpreter of another machine; its paths are of that machine.

    Raises:
        InputError: the machine cannot be reached, or the interpreter has no such engine.
    """
    modules = {distribution.name: distribution.imports for distribution in engine.distributions}
    done = host.run([python, "-c", ASK, json.dumps(modules)], timeout_s=_TIMEOUT_S)
    try:
        answer: dict[str, Any] = json.loads(done.stdout)
        name, version = next(iter(answer["found"].items()))
    except (ValueError, KeyError, StopIteration):
        raise InputError(
            f"{python} on {host} has no {engine.id}",
            evidence=_last_words(done.stderr) or f"none of {', '.join(modules)} is installed there",
            fix="name the interpreter of the engine's own environment there: --engine-python",
        ) from None
    packages, source = Path(answer["packages"][name]), Path(answer["source"][name])
    return Environment(f"{engine.id} on {host}", engine.id, name, version, Path(python), packages, False, source)


def copy_configs(host: Host, folder: str, place: Path) -> Path:
    """The configs of a model's folder on another machine, as a folder here.

    Raises:
        InputError: the machine cannot be reached, or there is no such folder.
    """
    done = host.run(["sh", "-c", _CONFIGS, "sh", folder], timeout_s=_TIMEOUT_S)
    try:
        with tarfile.open(fileobj=io.BytesIO(done.stdout)) as tar:
            tar.extractall(place, filter="data")
    except tarfile.TarError:
        raise InputError(
            f"{folder} on {host} holds no model", evidence=_last_words(done.stderr), fix="name its folder on that machine"
        ) from None
    return place


def require_token(host: Host, python: str, port: int) -> None:
    """Ask a server on another machine's loopback for a token.

    Raises:
        EngineFailed: none came.
    """
    url = f"http://127.0.0.1:{port}"
    done = host.run([python, "-c", _TOKEN, url, str(_TOKEN_TIMEOUT_S)], timeout_s=_TOKEN_TIMEOUT_S + _TIMEOUT_S)
    if done.exit_code or not done.stdout.strip().isdigit():
        raise EngineFailed("the server was up and failed on its first request", evidence=_last_words(done.stderr))


def _last_words(said: str) -> str:
    return (said.strip().splitlines() or [""])[-1]
