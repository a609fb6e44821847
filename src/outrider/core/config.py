"""The run's configuration: `run.toml`, checked key by key."""

import difflib
import tomllib
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from outrider.core.errors import InputError

Dtype = Literal["float32", "bfloat16"]
PositiveInt = Annotated[int, Field(gt=0)]


class _Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class TargetSection(_Section):
    """The model being sped up: a safetensors folder with tokenizer and chat template."""

    path: Path


class EngineSection(_Section):
    """The engine that answers and is measured; `args` are further arguments of its own command.

    `lift_target_types` are drafted for although the engine's own list of target types does not name them.
    """

    name: str = "reference"
    environment: str | None = None
    python: Path | None = None
    args: tuple[str, ...] = ()
    lift_target_types: tuple[str, ...] = ()
    dtype: Dtype = "bfloat16"
    threads: PositiveInt | None = None


class SynthesizeSection(_Section):
    """Prompts in, the target's own answers out."""

    prompts: tuple[Path, ...] = ()
    num_prompts: PositiveInt | None = None
    num_self_prompts: Annotated[int, Field(ge=0)] = 0
    max_tokens: PositiveInt = 512
    temperature: Annotated[float, Field(ge=0)] = 0.0
    concurrency: PositiveInt = 32
    dtype: Dtype = "bfloat16"
    seed: int = 0


class ExtractSection(_Section):
    """Which target states are stored, and how."""

    aux_layers: tuple[int, ...] = ()
    dtype: Dtype = "bfloat16"
    compute_dtype: Dtype = "bfloat16"
    max_length: PositiveInt = 2048
    batch_tokens: PositiveInt = 4096
    shard_tokens: PositiveInt = 65536


class TrainSection(_Section):
    """The drafter and how it is trained."""

    draft_vocab_size: PositiveInt = 32000
    ttt_steps: PositiveInt = 4
    epochs: PositiveInt = 3
    max_steps: PositiveInt | None = None
    batch_tokens: PositiveInt = 4096
    learning_rate: Annotated[float, Field(gt=0)] = 5e-4
    warmup_fraction: Annotated[float, Field(ge=0, le=1)] = 0.05
    weight_decay: Annotated[float, Field(ge=0)] = 0.0
    grad_clip: Annotated[float, Field(gt=0)] = 1.0
    step_decay: Annotated[float, Field(gt=0, le=1)] = 0.8
    held_out_fraction: Annotated[float, Field(ge=0, lt=1)] = 0.05
    evaluations: PositiveInt = 5
    checkpoints: PositiveInt = 10
    intermediate_size: PositiveInt | None = None
    init_from: Path | None = None
    seed: int = 0


class ExportSection(_Section):
    """How the drafter's folder names things, and who must be able to load it."""

    layer_names: Literal["midlayer", "layers.0"] = "midlayer"
    dtype: Dtype = "bfloat16"
    engines: tuple[str, ...] = ()


class MeasureSection(_Section):
    """Prompt sets; the first is the run's own workload."""

    prompts: dict[str, Path] = Field(default_factory=dict)
    num_prompts: PositiveInt = 80
    num_speculative_tokens: PositiveInt = 3
    max_tokens: PositiveInt = 256
    temperature: Annotated[float, Field(ge=0)] = 0.0
    concurrency: PositiveInt = 1


class RunConfig(_Section):
    """One run: what `run.toml` says, with defaults filled in."""

    target: TargetSection
    engine: EngineSection = EngineSection()
    synthesize: SynthesizeSection = SynthesizeSection()
    extract: ExtractSection = ExtractSection()
    train: TrainSection = TrainSection()
    export: ExportSection = ExportSection()
    measure: MeasureSection = MeasureSection()


def load_config(path: Path) -> RunConfig:
    """Read `run.toml`; relative paths in it count from its own folder.

    Raises:
        InputError: missing, not TOML, an unknown key (the nearest right one is named) or a wrong value.
    """
    try:
        raw = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise InputError(f"no configuration at {path}", fix="`outrider init` writes a commented run.toml") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, IsADirectoryError) as error:
        raise InputError(f"{path} is not valid TOML", evidence=str(error), fix="mend the line named") from None
    try:
        config = RunConfig.model_validate(raw)
    except ValidationError as error:
        raise _explained(path, error) from None
    return _with_paths_from(path.resolve().parent, config)


def _explained(path: Path, error: ValidationError) -> InputError:
    """The first wrong key or value, in words."""
    first = error.errors()[0]
    place = ".".join(str(part) for part in first["loc"])
    if first["type"] == "extra_forbidden":
        known = _keys_at(first["loc"][:-1])
        near = difflib.get_close_matches(str(first["loc"][-1]), known, n=1, cutoff=0.5)
        fix = f"did you mean {near[0]}?" if near else f"known here: {', '.join(known)}"
        return InputError(f"unknown key {place}", evidence=str(path), effect="the setting would be ignored", fix=fix)
    return InputError(f"wrong value at {place}: {first['msg']}", evidence=f"{path}: {first['input']!r}", fix="see `outrider init`")


def _keys_at(location: tuple[int | str, ...]) -> list[str]:
    section: Any = RunConfig
    for part in location:
        section = section.model_fields[str(part)].annotation
    return list(section.model_fields)


def _with_paths_from(base: Path, config: RunConfig) -> RunConfig:
    def absolute(value: Any) -> Any:
        if isinstance(value, Path):
            return base / value.expanduser()
        if isinstance(value, tuple):
            return tuple(absolute(item) for item in value)
        if isinstance(value, dict):
            return {key: absolute(item) for key, item in value.items()}
        if isinstance(value, _Section):
            return value.model_copy(update={name: absolute(getattr(value, name)) for name in type(value).model_fields})
        return value

    resolved = absolute(config)
    assert isinstance(resolved, RunConfig)
    return resolved
