"""Ask an installed engine what it makes of target and drafter: it builds its own configuration, without weights.

Runs under the engine's interpreter, as `python - REQUEST` with this text on its standard input. REQUEST is one JSON object:
`{"engine": "vllm", "pairs": [{"target": DIR, "drafter": DIR, "method": "eagle3", "k": 3, "arguments": ["--tensor-parallel-size", "2"]}]}`
where method and k are null if the arguments name them. For each pair one JSON object goes to standard output, a line each:

    verdict          accepted | refused | could_not_tell
    stage            where it ended: import, arguments, target, speculation, configuration, device, interface; empty if accepted
    error            what the engine said, as it said it
    architecture     of the target, as the engine resolves it
    method           of speculation, as the engine takes it
    runner           V1 or V2 of vLLM
    supports_eagle3  whether the target's class hands out aux states
    version          of the engine

A machine without the device is no fault of the pair: what is refused for that is `could_not_tell`, at stage `device`.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import io
import json
import logging
import os
import re
import sys
import traceback
from collections.abc import Callable, Iterator
from typing import Any

# where vLLM 0.9 to 0.28, 0.29 to 0.32 and 0.33 keep the arguments of their server
_VLLM_PARSERS = ("vllm.entrypoints.openai.cli_args", "vllm.entrypoints.launchers.cli_args", "vllm.entrypoints.common.cli_args")
_VLLM_ARGUMENT_PARSERS = ("vllm.utils.argparse_utils", "vllm.utils")
# keys of --speculative-config → the arguments that newer versions take in their place
_VLLM_SHORT = {"model": "spec_model", "method": "spec_method", "num_speculative_tokens": "spec_tokens"}
# methods that are fed with the target's aux states
_FED = ("eagle3", "dflash", "dspark", "extract_hidden_states")
_STAGES = {"create_model_config": "target", "create_speculative_config": "speculation", "from_server_args": "target"}
_ABOUT_DEVICES = re.compile(r"\b(devices?|cuda|hip|rocm|nvml|nvidia|gpus?|accelerators?|drivers?|platforms?|compute capability)\b", re.I)
# vLLM imports a target's class in a process of its own; that fails where a package is missing that only this class needs
_NOT_IMPORTED = "failed to be inspected"
_LONGEST_ERROR = 6000


class _LastError(logging.Handler):
    """Keeps the last line of what an engine logs as an error: some of its exceptions only say that it is there."""

    last = ""

    def emit(self, record: logging.LogRecord) -> None:
        lines = (str(record.exc_info[1]) if record.exc_info else record.getMessage()).strip().splitlines()
        self.last = lines[-1] if lines else ""


_LOG = _LastError(logging.ERROR)


class _Ended(Exception):
    """A verdict before the end."""

    def __init__(self, verdict: str, stage: str, error: str) -> None:
        self.parts = {"verdict": verdict, "stage": stage, "error": error[:_LONGEST_ERROR]}


def _ended_by(error: BaseException, stage: str = "") -> _Ended:
    """What an exception of the engine means: of a missing file, package or device nothing follows for the pair."""
    names = [frame.name for frame in traceback.extract_tb(error.__traceback__)]
    stage = stage or next((_STAGES[name] for name in reversed(names) if name in _STAGES), "configuration")
    text = f"{type(error).__name__}: {error}"
    if _NOT_IMPORTED in text:
        return _Ended("could_not_tell", "import", f"{text}; the log: {_LOG.last}")
    if isinstance(error, (ImportError, OSError, MemoryError)):
        return _Ended("could_not_tell", stage, text)
    if _ABOUT_DEVICES.search(str(error)) and not _is_vllm_on_cpu():
        return _Ended("could_not_tell", "device", text)
    return _Ended("refused", stage, text)


def _is_vllm_on_cpu() -> bool:
    """A CPU build has the device that it is for."""
    platforms = sys.modules.get("vllm.platforms") if sys.argv == ["vllm"] else None  # SGLang may import it, too
    return platforms is not None and bool(platforms.current_platform.is_cpu())


@contextlib.contextmanager
def _at(stage: str) -> Iterator[None]:
    """Whatever the engine raises within is its verdict."""
    said = io.StringIO()
    try:
        if stage == "arguments":
            with contextlib.redirect_stderr(said):
                yield
        else:
            yield
    except _Ended:
        raise
    except SystemExit as error:
        lines = [line for line in said.getvalue().splitlines() if line.strip()]
        raise _Ended("refused", stage or "configuration", lines[-1] if lines else f"exit code {error.code}") from None
    except Exception as error:
        raise _ended_by(error, stage) from error


def _first(modules: tuple[str, ...], name: str) -> Any:
    """A name, out of the first of some modules that has it."""
    for module in modules:
        with contextlib.suppress(ModuleNotFoundError):
            found = getattr(importlib.import_module(module), name, None)
            if found is not None:
                return found
    raise ImportError(f"none of {', '.join(modules)} has {name}")


def _vllm(pair: dict[str, Any], told: dict[str, Any]) -> None:
    """Ends without an exception where vLLM takes the pair; fills in what is learnt on the way."""
    try:
        import vllm
        from vllm.engine.arg_utils import AsyncEngineArgs

        told["version"] = vllm.__version__
        make_parser, parser = _first(_VLLM_PARSERS, "make_arg_parser"), _first(_VLLM_ARGUMENT_PARSERS, "FlexibleArgumentParser")
    except Exception as error:
        raise _Ended("could_not_tell", "import", f"{type(error).__name__}: {error}") from error
    try:
        with _at("arguments"):
            parsed = make_parser(parser()).parse_args(pair["arguments"])
            _told_of_the_pair(parsed, pair)
            arguments = AsyncEngineArgs.from_cli_args(parsed)
        with _at(""):
            config = arguments.create_engine_config()
    except _Ended as ended:
        if ended.parts["stage"] == "device":
            _vllm_without_device(pair, told)
        raise
    # to 0.21 only a variable chooses
    chosen = getattr(config, "use_v2_model_runner", None)
    told["runner"] = "V2" if (os.environ.get("VLLM_USE_V2_MODEL_RUNNER") == "1" if chosen is None else chosen) else "V1"
    _vllm_interface(config.model_config, config.speculative_config, told)


def _told_of_the_pair(parsed: Any, pair: dict[str, Any]) -> None:
    """Puts the pair into arguments, in the way of `--speculative-config`; what they say of method and K themselves stays."""
    parsed.model = pair["target"]
    own = _own_speculation(pair)
    parsed.speculative_config = dict(parsed.speculative_config or {}) | own
    for key in own:
        if hasattr(parsed, _VLLM_SHORT[key]):
            setattr(parsed, _VLLM_SHORT[key], None)


def _own_speculation(pair: dict[str, Any]) -> dict[str, Any]:
    told = {"model": pair["drafter"], "method": pair["method"], "num_speculative_tokens": pair["k"]}
    return {key: value for key, value in told.items() if value is not None}


def _vllm_without_device(pair: dict[str, Any], told: dict[str, Any]) -> None:
    """What can be had without one: vLLM then reads no arguments, but it takes or refuses target, drafter and method."""
    from vllm.config import ParallelConfig
    from vllm.engine.arg_utils import AsyncEngineArgs

    reader = argparse.ArgumentParser(allow_abbrev=False)
    reader.add_argument("--speculative-config", "-sc", type=json.loads)
    reader.add_argument("--trust-remote-code", action="store_true")
    with _at("arguments"):
        given, _ = reader.parse_known_args(pair["arguments"])
    with _at(""):
        speculation = (given.speculative_config or {}) | _own_speculation(pair)
        arguments = AsyncEngineArgs(model=pair["target"], speculative_config=speculation, trust_remote_code=given.trust_remote_code)
        model = arguments.create_model_config()
        speculative = arguments.create_speculative_config(model, ParallelConfig())
    _vllm_interface(model, speculative, told)


def _vllm_interface(model: Any, speculation: Any, told: dict[str, Any]) -> None:
    """The registry's class for the target, and the question that the runner asks of it once all is loaded."""
    from vllm.model_executor.models import ModelRegistry
    from vllm.model_executor.models.interfaces import supports_eagle3

    try:
        target, told["architecture"] = ModelRegistry.resolve_model_cls(model.architectures, model)
    except Exception as error:
        raise _Ended("could_not_tell", "interface", f"{type(error).__name__}: {error}") from error
    told["supports_eagle3"], told["method"] = supports_eagle3(target), speculation.method
    if speculation.method in _FED and not told["supports_eagle3"] and _is_fed(speculation):
        raise _Ended("refused", "interface", f"supports_eagle3({target.__name__}) is False, and method {speculation.method} asks for it")


def _is_fed(speculation: Any) -> bool:
    """A drafter of EAGLE-3 may do without aux states."""
    drafter = getattr(getattr(speculation, "draft_model_config", None), "hf_config", None)
    own = getattr(drafter, "eagle_config", None)
    return speculation.method != "eagle3" or not isinstance(own, dict) or bool(own.get("use_aux_hidden_state", True))


def _sglang(pair: dict[str, Any], told: dict[str, Any]) -> None:
    """Ends without an exception where SGLang takes the pair."""
    try:
        import sglang
        from sglang.srt.configs.model_config import ModelConfig
        from sglang.srt.models.registry import ModelRegistry
        from sglang.srt.server_args import prepare_server_args

        told["version"] = sglang.__version__
    except Exception as error:
        raise _Ended("could_not_tell", "import", f"{type(error).__name__}: {error}") from error
    own = ["--speculative-algorithm", pair["method"].upper()] if pair["method"] else []
    if pair["k"]:  # all three numbers or none
        own += [
            "--speculative-num-steps",
            str(pair["k"]),
            "--speculative-eagle-topk",
            "1",
            "--speculative-num-draft-tokens",
            str(pair["k"] + 1),
        ]
    paths = ["--model-path", pair["target"], "--speculative-draft-model-path", pair["drafter"]]
    with _at("arguments"):  # versions to 0.5.21 check all of it while they read it, newer ones in resolve_once
        server = prepare_server_args([*pair["arguments"], *own, *paths])
    with _at(""):
        if hasattr(server, "resolve_once"):
            server.resolve_once()
        model = ModelConfig.from_server_args(server)
    with _at("speculation"):
        drafter = ModelConfig.from_server_args(server, model_path=pair["drafter"], is_draft_model=True)
        drafts, _ = ModelRegistry.resolve_model_cls(drafter.hf_config.architectures)
    with _at("target"):
        target, told["architecture"] = ModelRegistry.resolve_model_cls(model.hf_config.architectures)
    told["supports_eagle3"] = hasattr(target, "set_eagle3_layers_to_capture")
    told["method"] = str(server.speculative_algorithm).lower()
    if server.speculative_algorithm == "EAGLE3" and not told["supports_eagle3"]:
        raise _Ended("refused", "interface", f"{target.__name__} has no set_eagle3_layers_to_capture")
    if server.speculative_algorithm == "EAGLE3" and not hasattr(drafts, "set_embed"):  # a general class stands in for the unknown
        raise _Ended("refused", "interface", f"{drafter.hf_config.architectures} is served by {drafts.__name__}, which has no set_embed")


_ENGINES: dict[str, Callable[[dict[str, Any], dict[str, Any]], None]] = {"vllm": _vllm, "sglang": _sglang}


def _verdict(engine: str, pair: dict[str, Any]) -> dict[str, Any]:
    told: dict[str, Any] = {"verdict": "accepted", "stage": "", "error": "", "architecture": "", "method": "", "runner": "", "version": ""}
    told["supports_eagle3"] = None
    try:
        _ENGINES[engine](pair, told)
    except _Ended as ended:
        told |= ended.parts
    return told


def main() -> None:
    """Answer the request; the engine's own prints go to standard error."""
    request = json.loads(sys.argv[1])
    sys.argv = [request["engine"]]
    logging.getLogger(request["engine"]).addHandler(_LOG)
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    for pair in request["pairs"]:
        answers.write(json.dumps(_verdict(request["engine"], pair)) + "\n")
        answers.flush()


if __name__ == "__main__":
    main()
