"""The cluster examples, as far as they can be checked without a cluster: each script is run by bash with programs that only note how they
were called; every command of Outrider is read by its own command line, every argument of vLLM by vLLM's own parser."""

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml  # type: ignore[import-untyped]

from engines.test_launch import arguments_of, given, read_by_vllm
from outrider.cli.main import app
from outrider.engines.engine import ServeSpec
from outrider.engines.environment import Environment
from outrider.engines.vllm import ENGINE as VLLM

_ROOT = Path(__file__).parents[2]
_EXAMPLES = _ROOT / "examples"
_SLURM = sorted(_EXAMPLES.glob("*.sbatch"))
_SKY = _EXAMPLES / "sky-ray.yaml"
_PAGE = _ROOT / "docs" / "clusters.md"
_JOB = {"SLURM_JOB_ID": "1234567", "SLURM_JOB_NUM_NODES": "2", "SLURMD_NODENAME": "node-a"}
_CLOUD = {"SKYPILOT_NODE_IPS": "10.0.0.1\n10.0.0.2", "SKYPILOT_NUM_NODES": "2", "SKYPILOT_NUM_GPUS_PER_NODE": "8"}
# notes its name and arguments; srun goes on with the command behind its own options, as the real one would on a node
_PROGRAM = """#!{python}
import json, os, sys
name, words = os.path.basename(sys.argv[0]), sys.argv[1:]
line = json.dumps([name, *words, *(["AT", os.environ["RAY_ADDRESS"]] if name == "ray" else [])])
with open({calls!r}, "a") as calls:
    calls.write(line + "\\n")
if name == "srun":
    while words[0].startswith("--"):
        del words[0]
    os.execv(words[0], words)
"""


class Desk:
    """A folder with the programs of a cluster that only note how they were called."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._calls = folder / "calls"

    def add(self, path: str) -> str:
        """A program under a path of this folder."""
        program = self.folder / path
        program.parent.mkdir(parents=True, exist_ok=True)
        program.write_text(_PROGRAM.format(python=sys.executable, calls=str(self._calls)))
        program.chmod(0o755)
        return str(program)

    def run(self, script: str, variables: dict[str, str]) -> "subprocess.CompletedProcess[str]":
        """A script, where the programs are; what it left running is waited for."""
        environment = {"PATH": f"{self.folder / 'bin'}:/usr/bin:/bin", "HOME": str(self.folder)} | variables
        return subprocess.run(
            ["bash", "-c", script], env=environment, cwd=self.folder, capture_output=True, text=True, timeout=60, check=False
        )

    def called(self, name: str) -> list[list[str]]:
        """The arguments of each call of a program."""
        calls = [json.loads(line) for line in self._calls.read_text().splitlines()] if self._calls.exists() else []
        return [words for program, *words in calls if program == name]


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    found = Desk(tmp_path)
    for program in ("outrider", "srun", "sleep"):
        found.add(f"bin/{program}")
    return found


def slurm_variables(desk: Desk) -> dict[str, str]:
    desk.add("vllm/bin/ray")
    return _JOB | {"TARGET": "/models/a target", "DRAFTER": "/models/drafter", "ENGINE_PYTHON": str(desk.folder / "vllm/bin/python")}


def sky_variables(desk: Desk) -> dict[str, str]:
    desk.add(".venv/bin/outrider")
    desk.add("engines/vllm-0.32.0/venv/bin/ray")
    told: dict[str, str] = yaml.safe_load(_SKY.read_text())["envs"]
    return _CLOUD | told | {"OUTRIDER_HOME": str(desk.folder)}


def read_by_outrider(words: list[str]) -> tuple[str, dict[str, Any]]:
    """The command and its parameters, as our own command line reads them; nothing is run."""
    command: Any = typer.main.get_command(app)
    context, path = command.context_class(command, info_name="outrider"), list[str]()
    while hasattr(command, "resolve_command"):
        name, command, words = command.resolve_command(context, words)
        path.append(str(name))
        context = command.context_class(command, info_name=name, parent=context)
    return " ".join(path), dict(command.make_context(path[-1], words).params)


def served(words: list[str], place: Environment) -> list[str]:
    """The engine's arguments that a call of `outrider serve` stands for."""
    command, said = read_by_outrider(words)
    assert command == "serve" and said["engine"] == "vllm"
    extra = (*said["engine_args"].split(), *(said["further"] or ()))
    spec = ServeSpec(said["target"], said["drafter"], said["num_speculative_tokens"], said["dtype"], said["port"], extra_args=extra)
    return arguments_of(VLLM.launch(place, spec))


def place_of(version: str = "0.32.0") -> Environment:
    return Environment("x", "vllm", "vllm", version, Path("python"), Path("/opt/a/b"), ours=False)


def commands_of_the_page() -> Iterator[str]:
    for block in re.findall(r"^```sh\n(.*?)^```", _PAGE.read_text(), flags=re.MULTILINE | re.DOTALL):
        yield from block.splitlines()


# --- each script by itself --------------------------------------------------------------------------------------------


def scripts() -> dict[str, str]:
    sky = yaml.safe_load(_SKY.read_text())
    return {path.name: path.read_text() for path in _SLURM} | {f"sky {part}": f"#!/bin/bash\n{sky[part]}" for part in ("setup", "run")}


@pytest.mark.parametrize("name", scripts())
def test_a_script_is_sound_bash(name: str) -> None:
    done = subprocess.run(["bash", "-n"], input=scripts()[name], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("name", scripts())
def test_a_script_is_sound_by_shellcheck(name: str) -> None:
    if not shutil.which("shellcheck"):
        pytest.skip("no shellcheck")
    done = subprocess.run(["shellcheck", "-"], input=scripts()[name], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("path", _SLURM, ids=lambda path: path.name)
def test_slurms_options_stand_where_slurm_reads_them(path: Path) -> None:
    """It stops at the first line that is no comment."""
    head = path.read_text().split("\nset -")[0].splitlines()
    assert head[0] == "#!/bin/bash"
    options = dict(line.removeprefix("#SBATCH --").partition("=")[::2] for line in head if line.startswith("#SBATCH"))
    assert {"job-name", "nodes", "gpus-per-node", "time", "output", "signal"} <= options.keys()
    assert path.read_text().count("#SBATCH") == len(options)
    assert all(line.startswith("#") for line in head if line)


# --- what they call ---------------------------------------------------------------------------------------------------


def test_slurm_serves_on_one_node(desk: Desk) -> None:
    variables = slurm_variables(desk)
    done = desk.run((_EXAMPLES / "slurm-serve.sbatch").read_text(), variables)
    assert done.returncode == 0, done.stderr
    (call,) = desk.called("outrider")
    said = given(served(call, place_of()))
    assert (said["--model"], said["--host"], said["--tensor-parallel-size"]) == ("/models/a target", "0.0.0.0", "8")
    assert said["--port"] == str(20000 + 1234567 % 20000)
    assert read_by_outrider(call)[1]["log"] == Path("server-1234567.log")
    del variables["DRAFTER"]
    missing = desk.run((_EXAMPLES / "slurm-serve.sbatch").read_text(), variables)
    assert missing.returncode != 0 and "the folder of the drafter" in missing.stderr
    assert len(desk.called("outrider")) == 1


def test_slurm_does_a_whole_run(desk: Desk) -> None:
    cases: list[tuple[dict[str, str], str]] = [({}, "run.toml"), ({"CONFIG": "my run.toml"}, "my run.toml")]
    for variables, config in cases:
        assert desk.run((_EXAMPLES / "slurm-run.sbatch").read_text(), variables).returncode == 0
        command, said = read_by_outrider(desk.called("outrider")[-1])
        assert (command, said["config"]) == ("run", Path(config))


def test_slurm_makes_a_ray_cluster_and_serves_on_it(desk: Desk) -> None:
    done = desk.run((_EXAMPLES / "slurm-ray.sbatch").read_text(), slurm_variables(desk))
    assert done.returncode == 0, done.stderr
    assert ["start", "--head", "--port=6379", "AT", "node-a:6379"] in desk.called("ray")
    assert ["start", "--address=node-a:6379", "--block", "AT", "node-a:6379"] in desk.called("ray")
    (others,) = desk.called("srun")
    assert others[:4] == ["--overlap", "--nodes=1", "--ntasks-per-node=1", "--exclude=node-a"]
    checked, serving = desk.called("outrider")
    assert_checked_first(checked, serving, "16")


@pytest.mark.parametrize("rank", ["0", "1"])
def test_sky_makes_a_ray_cluster_and_serves_on_it(desk: Desk, rank: str) -> None:
    run = yaml.safe_load(_SKY.read_text())["run"]
    done = desk.run(run, sky_variables(desk) | {"SKYPILOT_NODE_RANK": rank})
    assert done.returncode == 0, done.stderr
    where = ["start", "--head", "--port=6399"] if rank == "0" else ["start", "--address=10.0.0.1:6399"]
    assert desk.called("ray") == [[*where, "AT", "10.0.0.1:6399"]]
    assert desk.called("sleep") == ([] if rank == "0" else [["infinity"]])
    if rank == "0":
        checked, serving = desk.called("outrider")
        assert_checked_first(checked, serving, "16")
    else:
        assert desk.called("outrider") == []


def assert_checked_first(checked: list[str], serving: list[str], tensor_parallel: str) -> None:
    """Preflight is asked of what is then served."""
    command, asked = read_by_outrider(checked)
    assert command == "preflight"
    told = given(served(serving, place_of()))
    assert (told["--distributed-executor-backend"], told["--tensor-parallel-size"]) == ("ray", tensor_parallel)
    assert {name: told[name] for name in given(asked["serve_args"].split())} == given(asked["serve_args"].split())
    said = read_by_outrider(serving)[1]
    alike = ("target", "drafter", "engine", "environment", "engine_python")
    assert {key: str(said[key]) for key in alike} == {key: str(asked[key]) for key in alike}


def test_skys_file_asks_for_what_its_script_counts_on() -> None:
    told = yaml.safe_load(_SKY.read_text())
    assert told.keys() <= {"name", "num_nodes", "workdir", "resources", "envs", "file_mounts", "setup", "run"}
    (kind,) = re.findall(r"^(\w+):8$", told["resources"]["accelerators"])
    assert kind and told["num_nodes"] == 2
    (added,) = re.findall(r"outrider (engine add \S+)", told["setup"])
    assert read_by_outrider(added.split())[0] == "engine add"


def test_every_command_of_the_page_is_one(desk: Desk) -> None:
    read = []
    for program in ("sbatch", "kubectl"):
        desk.add(f"bin/{program}")
    for line in commands_of_the_page():
        assert desk.run(f"set -o pipefail; {line}", {}).returncode == 0
    for call in desk.called("outrider"):
        read.append(read_by_outrider(call)[0])
    assert sorted(read) == ["preflight", "serve", "watch", "watch", "watch"]
    for (path,) in desk.called("sbatch"):
        assert (_ROOT / path).is_file()
    with pytest.raises(Exception, match="No such option: --no-such-option"):
        read_by_outrider(["serve", "--target", "x", "--no-such-option"])


def test_links_of_the_page_lead_somewhere() -> None:
    links = re.findall(r"\]\(([^)#]+)\)", _PAGE.read_text())
    assert {(_PAGE.parent / link).resolve() for link in links} == {*_SLURM, _SKY}


def test_vllms_own_parser_takes_every_argument(desk: Desk, vllm: Environment) -> None:
    desk.run((_EXAMPLES / "slurm-serve.sbatch").read_text(), slurm_variables(desk))
    desk.run((_EXAMPLES / "slurm-ray.sbatch").read_text(), slurm_variables(desk))
    desk.run(yaml.safe_load(_SKY.read_text())["run"], sky_variables(desk) | {"SKYPILOT_NODE_RANK": "0"})
    serving = [call for call in desk.called("outrider") if call[0] == "serve"]
    assert len(serving) == 3
    one_node, slurm, sky = read_by_vllm(vllm, [served(call, place_of()) for call in serving])
    assert [parsed["tensor_parallel_size"] for parsed in (one_node, slurm, sky)] == [8, 16, 16]
    assert [parsed["distributed_executor_backend"] for parsed in (one_node, slurm, sky)] == [None, "ray", "ray"]
    assert all(parsed["speculative_config"]["method"] == "eagle3" and not parsed["enforce_eager"] for parsed in (one_node, slurm, sky))
