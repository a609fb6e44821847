"""The commands that start vLLM and SGLang: as vLLM's own parser reads them, by version, and beside the user's arguments."""

import json
import os
import subprocess
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from outrider.core.errors import InputError
from outrider.engines.arguments import joined, name_of, options
from outrider.engines.engine import Engine, Launch, ServeSpec
from outrider.engines.environment import Environment
from outrider.engines.printing import printed
from outrider.engines.sglang import ENGINE as SGLANG
from outrider.engines.vllm import ENGINE as VLLM
from proofs import launch_flags

_SPEC = ServeSpec(Path("/models/target"), Path("/models/drafter"), 3, "bfloat16", 8123, max_batch=16)
_PLAIN = replace(_SPEC, drafter=None)
# vLLM's own parser of its server's arguments, under its own Python; each line of the answer is one command's reading
_PARSE = """
import contextlib, importlib, json, sys
def first(modules, name):
    for module in modules:
        with contextlib.suppress(ModuleNotFoundError, AttributeError):
            return getattr(importlib.import_module(module), name)
make = first(["vllm.entrypoints.openai.cli_args", "vllm.entrypoints.launchers.cli_args"], "make_arg_parser")
parser = make(first(["vllm.utils.argparse_utils", "vllm.utils"], "FlexibleArgumentParser")())
for arguments in json.loads(sys.argv[1]):
    print("READ", json.dumps(vars(parser.parse_args(arguments)), default=str))
"""
_PARSE_TIMEOUT_S = 300


def environment_of(engine: Engine, version: str) -> Environment:
    return Environment("x", engine.id, engine.id, version, Path("/opt/engine/bin/python"), Path("/opt/engine/lib"), ours=False)


def arguments_of(launch: Launch) -> list[str]:
    """What follows `python -m MODULE`."""
    assert launch.command[1] == "-m"
    return launch.command[3:]


def given(words: Sequence[str]) -> dict[str, str]:
    """Option → value, each once."""
    found = [(option[0], " ".join(option[1:])) for option in options(words)]
    assert len(dict(found)) == len(found)
    return dict(found)


def read_by_vllm(environment: Environment, commands: Sequence[Sequence[str]]) -> list[dict[str, Any]]:
    """Commands as an installed vLLM parses them."""
    done = subprocess.run(
        [str(environment.python), "-c", _PARSE, json.dumps(commands)],
        capture_output=True,
        text=True,
        timeout=_PARSE_TIMEOUT_S,
        env=os.environ | {"VLLM_NO_USAGE_STATS": "1"},
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return [json.loads(line.removeprefix("READ ")) for line in done.stdout.splitlines() if line.startswith("READ ")]


# --- as the engine's own parser reads it ------------------------------------------------------------------------------


def test_real_vllm_reads_our_commands_as_they_are_meant(vllm: Environment) -> None:
    extra = (
        "--max_num_seqs=8",
        "--tensor-parallel-size",
        "2",
        "--no-enforce-eager",
        "--speculative-config.draft_tensor_parallel_size",
        "1",
    )
    doubled = [*arguments_of(VLLM.launch(vllm, _PLAIN)), "--max-num-seqs", "5"]
    specs = [_PLAIN, _SPEC, replace(_SPEC, extra_args=extra)]
    commands = [*(arguments_of(VLLM.launch(vllm, spec)) for spec in specs), doubled]
    plain, drafting, with_ours, last_of_two = read_by_vllm(vllm, commands)

    alike = {"model": "/models/target", "served_model_name": ["target"], "host": "127.0.0.1", "port": 8123, "dtype": "bfloat16"}
    for parsed in (plain, drafting):
        assert {key: parsed[key] for key in alike} == alike
        assert (parsed["max_num_seqs"], parsed["enforce_eager"]) == (16, True)
    assert plain["speculative_config"] is None
    assert drafting["speculative_config"] == {"method": "eagle3", "model": "/models/drafter", "num_speculative_tokens": 3}
    assert (plain["per_request_spec_decode_metrics"], drafting["per_request_spec_decode_metrics"]) == ("none", "detailed")
    assert {key for key in plain if plain[key] != drafting[key]} == {"speculative_config", "per_request_spec_decode_metrics"}

    assert (with_ours["max_num_seqs"], with_ours["tensor_parallel_size"], with_ours["enforce_eager"]) == (8, 2, False)
    assert with_ours["speculative_config"] == drafting["speculative_config"] | {"draft_tensor_parallel_size": 1}
    assert last_of_two["max_num_seqs"] == 5  # of two that are the same it takes the last


# --- by version -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("version", "has_it"), [("0.9.2", False), ("0.28.0", False), ("0.29.0", True), ("0.33.0+cu130", True), ("dev", False)]
)
def test_vllm_is_asked_for_counts_of_requests_where_it_has_them(version: str, has_it: bool) -> None:
    place = environment_of(VLLM, version)
    assert ("--per-request-spec-decode-metrics" in VLLM.launch(place, _SPEC).command) is has_it
    assert "--per-request-spec-decode-metrics" not in VLLM.launch(place, _PLAIN).command


_SGLANG_PARSER = """
class ServerArgs:
    host: A[str, "where"] = "127.0.0.1"
    port: A[int, "where"] = 30000
    dtype: A[str, Arg(choices=["auto", {dtype}])] = "auto"
    model_path: A[str, Arg(aliases=["--model"])]
    served_model_name: A[str, "as"] = None
    max_running_requests: A[int, Arg(help="many"{hidden})] = None
    enable_metrics: A[{metrics}, "counts"] = False
    def add_cli_args(parser):
        parser.add_argument("--speculative-algorithm", type=str, choices=["EAGLE", {algorithm}])
        parser.add_argument("--speculative-draft-model-path", "--speculative-draft-model")
        parser.add_argument("--speculative-num-steps", type=int)
        parser.add_argument("--speculative-eagle-topk", type=int)
        parser.add_argument("--speculative-num-draft-tokens", {action}type=int)
"""
_SOUND_PARSER = {"dtype": '"bfloat16"', "hidden": "", "metrics": "bool", "algorithm": '"EAGLE3"', "action": ""}


@pytest.mark.parametrize(
    ("changed", "refused"),
    [
        ({}, None),
        ({"dtype": '"float16"'}, "--dtype"),
        ({"hidden": ", no_cli=True"}, "--max-running-requests"),
        ({"metrics": "str"}, "--enable-metrics"),
        ({"algorithm": '"NEXTN"'}, "--speculative-algorithm"),
        ({"action": 'action="store_true", '}, "--speculative-num-draft-tokens"),
    ],
)
def test_the_proof_of_launches_finds_what_a_parser_does_not_take(tmp_path: Path, changed: dict[str, str], refused: str | None) -> None:
    (tmp_path / "sglang-0.5.16.dist-info").mkdir()
    (tmp_path / "sglang-0.5.16.dist-info" / "METADATA").write_text("Name: sglang\nVersion: 0.5.16\nRequires-Dist: torch\n")
    (tmp_path / "sglang" / "srt").mkdir(parents=True)
    (tmp_path / "sglang" / "launch_server.py").write_text('if __name__ == "__main__":\n    pass\n')
    (tmp_path / "sglang" / "srt" / "server_args.py").write_text(_SGLANG_PARSER.format(**_SOUND_PARSER | changed))
    row = launch_flags.row_of(tmp_path)
    assert [name for name, accepted in row.accepted.items() if not accepted] == ([refused] if refused else [])
    assert ("**NO**" in launch_flags.page_of([row])) is bool(refused)


@pytest.mark.parametrize("k", [1, 3, 7])
def test_k_is_the_same_chain_in_both_engines(k: int) -> None:
    spec = replace(_SPEC, num_speculative_tokens=k)
    vllm = given(arguments_of(VLLM.launch(environment_of(VLLM, "0.16.0"), spec)))
    assert json.loads(vllm["--speculative-config"])["num_speculative_tokens"] == k
    sglang = given(arguments_of(SGLANG.launch(environment_of(SGLANG, "0.5.23"), spec)))
    names = ("algorithm", "num-steps", "eagle-topk", "num-draft-tokens")
    assert [sglang[f"--speculative-{name}"] for name in names] == ["EAGLE3", str(k), "1", str(k + 1)]


@pytest.mark.parametrize(("engine", "version", "limit"), [(VLLM, "0.16.0", "--max-num-seqs"), (SGLANG, "0.5.10", "--max-running-requests")])
def test_both_arms_differ_by_the_drafter_only(engine: Engine, version: str, limit: str) -> None:
    plain, drafting = (given(arguments_of(engine.launch(environment_of(engine, version), spec))) for spec in (_PLAIN, _SPEC))
    assert plain == {name: value for name, value in drafting.items() if not name.startswith("--speculative-")}
    assert plain != drafting
    assert plain[limit] == "16"


# --- beside the user's arguments --------------------------------------------------------------------------------------


def test_options_are_told_from_their_values() -> None:
    assert options(["x", "--a", "1", "-2", "--b=3", "--c", "-tp", "4"]) == [("x",), ("--a", "1", "-2"), ("--b=3",), ("--c",), ("-tp", "4")]
    assert [name_of(option, {"-tp": "--tp"}) for option in options(["--a_b=c_d", "--no-x", "-tp", "4"])] == ["--a-b", "--x", "--tp"]
    ours = [("--a", "1"), ("--b", "2"), ("--switch",)]
    assert joined(ours, options(["--other", "x", "--b=3", "--no-switch"]), {}, {}, "X") == [
        "--a",
        "1",
        "--other",
        "x",
        "--b=3",
        "--no-switch",
    ]
    assert joined(ours, [], {}, {}, "X") == ["--a", "1", "--b", "2", "--switch"]


@pytest.mark.parametrize(
    ("engine", "written"),
    [
        (VLLM, ("--host", "0.0.0.0")),
        (VLLM, ("--served-model-name=other",)),
        (VLLM, ("--max_num_seqs", "4")),
        (SGLANG, ("--max-running-requests=4",)),
        (SGLANG, ("--dtype", "float16")),
        (SGLANG, ("--speculative-draft-model", "/else")),
    ],
)
def test_the_users_argument_stands_alone_and_last(engine: Engine, written: tuple[str, ...]) -> None:
    place = environment_of(engine, "0.30.0" if engine is VLLM else "0.5.16")
    ours, theirs = engine.launch(place, _SPEC), engine.launch(place, replace(_SPEC, extra_args=written))
    assert theirs.command[-len(written) :] == list(written)
    given(arguments_of(theirs))
    assert len(options(theirs.command)) == len(options(ours.command))


@pytest.mark.parametrize(
    ("engine", "written", "fix"),
    [
        (VLLM, ("--port", "9000"), "--port to Outrider"),
        (VLLM, ("--model=/else",), "--target"),
        (SGLANG, ("--port=9000",), "--port to Outrider"),
        (SGLANG, ("--model", "/else"), "--target"),
        (VLLM, ("--speculative-config", '{"num_speculative_tokens": 5}'), "--num-speculative-tokens 5"),
        (VLLM, ("--spec-tokens", "5"), "--num-speculative-tokens 5"),
        (VLLM, ("--speculative-config", "[1]"), None),
        (SGLANG, ("--speculative-num-steps", "5"), "--num-speculative-tokens"),
        (SGLANG, ("--speculative-num-draft-tokens=3",), "--num-speculative-tokens"),
    ],
)
def test_what_only_outrider_may_say_is_refused(engine: Engine, written: tuple[str, ...], fix: str | None) -> None:
    place = environment_of(engine, "0.30.0" if engine is VLLM else "0.5.16")
    with pytest.raises(InputError) as refused:
        engine.launch(place, replace(_SPEC, extra_args=written))
    assert (fix or "") in (refused.value.fix or "")


@pytest.mark.parametrize(
    "written",
    [
        ("--speculative-config", '{"rejection_sample_method": "strict"}'),
        ("-sc", '{"rejection_sample_method": "strict", "num_speculative_tokens": 3}'),
        ("--speculative-config.rejection_sample_method=strict",),
        ("--speculative_config.rejection-sample-method", "strict", "--spec-tokens", "3"),
    ],
)
def test_the_users_speculation_is_merged_into_ours(written: tuple[str, ...]) -> None:
    command = given(arguments_of(VLLM.launch(environment_of(VLLM, "0.30.0"), replace(_SPEC, extra_args=written))))
    expected = {"method": "eagle3", "model": "/models/drafter", "num_speculative_tokens": 3, "rejection_sample_method": "strict"}
    assert json.loads(command["--speculative-config"]) == expected
    assert not any("spec-tokens" in name or "." in name or name == "-sc" for name in command)


def test_without_a_drafter_the_users_speculation_is_the_engines() -> None:
    written = ("--speculative-config", '{"method": "ngram", "num_speculative_tokens": 5}')
    launch = VLLM.launch(environment_of(VLLM, "0.30.0"), replace(_PLAIN, extra_args=written))
    assert launch.command[-2:] == list(written)


# --- printed ----------------------------------------------------------------------------------------------------------


def test_a_printed_launch_is_the_launch_to_a_shell(tmp_path: Path) -> None:
    show = tmp_path / "it's python"
    show.write_text('#!/bin/sh\nfor word; do printf "%s\\0" "$word"; done; printf "%s\\0%s\\0" "$ONE" "$TWO"\n')
    show.chmod(0o755)
    odd = ["-m", "a.b", "--x", '{"a": "it\'s"}', "--y", "$HOME `id` \n", "--switch"]
    text = printed(Launch([str(show), *odd], {"ONE": "1; exit", "TWO": "ours"}), {"TWO": "the user's"})
    done = subprocess.run(["sh", "-c", text], capture_output=True, env={"TWO": "the user's", "PATH": "/usr/bin:/bin"}, check=True)
    assert done.stdout.decode().split("\0")[:-1] == [*odd, "1; exit", "the user's"]
    assert "TWO=" not in text
    assert text.splitlines()[0] == "ONE='1; exit' \\"
    assert "-m a.b \\" in text
