"""A server inside a container: the launch of its engine, wrapped in `docker run` or `podman run`.

What the container program is asked to end by SIGTERM it hands on to the engine; should it be killed itself, or the engine
not end, the container is found by its name and no other way: one that runs under a daemon is no child of ours.
"""

import os
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import outrider.inside
from outrider.core.errors import EngineFailed
from outrider.engines.asking import CONTAINERS, found_image
from outrider.engines.engine import Engine, Launch, ServeSpec
from outrider.engines.environment import Environment
from outrider.inside.owned_processes import marked

_INSIDE: Final = Path(outrider.inside.__file__).parent
# paths of this machine, which mean nothing inside; of PYTHONPATH only what is ours is
_OF_THIS_MACHINE: Final = ("LD_PRELOAD",)
# variables that a user sets for the engine; they go in by name, so that no command line shows their values
_FOR_THE_ENGINE: Final = ("VLLM_", "SGLANG_", "SGL_", "NCCL_", "CUDA_", "NVIDIA_", "TORCH_", "OMP_", "HF_TOKEN")
_GPUS: Final[Mapping[str, tuple[str, ...]]] = {"docker": ("--gpus", "all"), "podman": ("--device", "nvidia.com/gpu=all")}
# a first process that heeds SIGTERM while the engine still loads; podman has none of its own
_INIT: Final[Mapping[str, tuple[str, ...]]] = {"docker": ("--init",), "podman": ()}
_STOP_S: Final = 20
_ANSWER_TIMEOUT_S: Final = 60.0


def launch_of(engine: Engine, environment: Environment, spec: ServeSpec, name: str) -> Launch:
    """How an engine is started where it lives: under its interpreter, or inside its image, in a container called `name`.

    Raises:
        InputError: see `Engine.launch` and `launched`.
    """
    launch = engine.launch(environment, spec)
    return launched(launch, environment, spec, name) if environment.image else launch


@contextmanager
def ending(environment: Environment, name: str) -> Iterator[None]:
    """Whatever happens in the block, no container of that name is left; nothing is done where the engine has no image."""
    try:
        yield
    finally:
        if environment.image:
            ended(name)


def launched(launch: Launch, environment: Environment, spec: ServeSpec, name: str) -> Launch:
    """The same server, inside a container called `name` that is removed when it ends.

    Target and drafter are there under the paths that they have here, read-only; the network is this machine's, so that the
    server is on loopback as any other. Its log is the output of the command.

    Raises:
        InputError: no container program has the image.
    """
    program, _ = found_image(environment.image)
    command = [program, "run", "--rm", "--name", name, "--pull", "never", "--network", "host", "--ipc", "host"]
    command += _INIT[Path(program).name]
    if _has_gpu():
        command += _GPUS[Path(program).name]
    folders = [*_folders(spec.target), *(_folders(spec.drafter) if spec.drafter else ())]
    env = {key: value for key, value in launch.env.items() if key not in _OF_THIS_MACHINE}
    if ours := [path for path in env.pop("PYTHONPATH", "").split(os.pathsep) if Path(path).is_relative_to(_INSIDE)]:
        env["PYTHONPATH"] = os.pathsep.join(ours)
        folders += map(Path, ours)
    # z: where SELinux guards files, the container may read them
    command += [word for folder in dict.fromkeys(folders) for word in ("--volume", f"{folder}:{folder}:ro,z")]
    command += [word for key in _variables(env) for word in ("--env", key)]
    return Launch([*command, "--entrypoint", launch.command[0], environment.image, *launch.command[1:]], env)


def ended(name: str) -> None:
    """See that no container of that name is there: it is asked to end, made to, and removed. None is fine.

    Raises:
        EngineFailed: it is there still.
    """
    for program in filter(None, map(shutil.which, CONTAINERS)):
        _said(program, "stop", "-t", str(_STOP_S), name)
        _said(program, "rm", "--force", name)
        found = _said(program, "ps", "--all", "--quiet", "--filter", f"name=^{name}$")
        if found.stdout.strip():
            raise EngineFailed(
                f"the container {name} cannot be ended", evidence=found.stdout.strip(), fix=f"{Path(program).name} rm --force {name}"
            )


def _folders(folder: Path) -> list[Path]:
    """A folder, and those that its links lead to, as in the cache of a hub."""
    links = [path for path in folder.iterdir() if path.is_symlink()] if folder.is_dir() else []
    beyond = {path.resolve().parent for path in links if path.exists()}
    return [folder, *sorted(path for path in beyond if not path.is_relative_to(folder))]


def _variables(env: Mapping[str, str]) -> Iterator[str]:
    """The names of those that go in; their values are those of the command's own environment."""
    yield from dict.fromkeys([*env, *(key for key in sorted(os.environ) if key.startswith(_FOR_THE_ENGINE)), *marked("")])


def _has_gpu() -> bool:
    return shutil.which("nvidia-smi") is not None


def _said(program: str, *arguments: str) -> "subprocess.CompletedProcess[str]":
    try:
        return subprocess.run([program, *arguments], capture_output=True, text=True, timeout=_STOP_S + _ANSWER_TIMEOUT_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise EngineFailed(f"{program} does not answer", evidence=str(error), fix=f"see what `{Path(program).name} ps` says") from None
