"""`outrider serve`: an engine here or on another machine, checked before, watched while it starts and after."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from outrider.core.ssh import Host
    from outrider.engines.engine import Engine, ServeSpec
    from outrider.engines.environment import Environment

_PROBE_AGAIN_AFTER_S = 60.0
_STOP_DEADLINE_S = 30.0


def serve(
    target: Annotated[Path, typer.Option(help="The target's folder; with --host, on that machine.")],
    drafter: Annotated[Path | None, typer.Option(help="The drafter's folder; plain decoding if not given.")] = None,
    num_speculative_tokens: Annotated[int, typer.Option("--num-speculative-tokens", "-k", min=1, help="Tokens proposed a step.")] = 3,
    engine: str = "reference",
    environment: Annotated[str | None, typer.Option(help="The engine's environment, as `engine list` shows it.")] = None,
    engine_python: Annotated[Path | None, typer.Option(help="The engine's interpreter; with --host, on that machine.")] = None,
    engine_image: Annotated[str | None, typer.Option(help="A container image that holds the engine.")] = None,
    host: Annotated[str | None, typer.Option(help="ssh://user@box: serve there; only sshd, sh and the engine need be there.")] = None,
    detach: Annotated[bool, typer.Option("--detach", help="Leave it running once it is ready; see `outrider ps` and `stop`.")] = False,
    dtype: str = "bfloat16",
    port: int = 8000,
    max_batch: Annotated[int, typer.Option(min=1)] = 32,
    log: Annotated[Path, typer.Option(help="The engine's log.")] = Path("server.log"),
    force: Annotated[bool, typer.Option("--force", help="Start although preflight says that it cannot work.")] = False,
    only_print: Annotated[bool, typer.Option("--print", help="Print the command and its environment, and start nothing.")] = False,
    engine_args: Annotated[str, typer.Option(help="Further arguments of the engine's own command, as one string.")] = "",
    lift_gate: Annotated[
        list[str] | None, typer.Option(help="A model_type to draft for although vLLM's list lacks it; may be given several times.")
    ] = None,
    further: Annotated[list[str] | None, typer.Argument(help="The same, behind `--`, as they stand.", metavar="[-- ARGS]")] = None,
) -> None:
    """Serve a target on loopback, OpenAI-compatible, with a drafter beside it; ended by Ctrl-C or, with the cause, by a failure."""
    from contextlib import ExitStack

    from outrider.cli.choices import dtype_named
    from outrider.core.errors import InputError
    from outrider.core.ssh import Host
    from outrider.engines.asking import image_environment
    from outrider.engines.containers import launch_of
    from outrider.engines.engine import ServeSpec
    from outrider.engines.printing import printed
    from outrider.engines.serving import engine_named
    from outrider.preflight.serve_args import split

    if engine_image and (host or detach):
        raise InputError("an engine inside an image is served here and attached", fix="leave out --host and --detach, or see --print")
    plugin = engine_named(engine)
    with ExitStack() as stack:
        far = stack.enter_context(Host.parsed(host)) if host else None
        place = image_environment(plugin, engine_image) if engine_image else _place(plugin, environment, engine_python, far)
        spec = ServeSpec(
            *(target, drafter, num_speculative_tokens, dtype_named(dtype), port, max_batch),
            extra_args=(*split(engine_args), *(further or ())),
            lift_target_types=tuple(lift_gate or ()),
        )
        spec = spec if far else _of_this_machine(spec)
        _check(plugin, place, spec, far, force)
        if only_print:
            typer.echo(printed(launch_of(plugin, place, spec, plugin.id)))
        elif far or detach:
            _serve_detached(plugin, place, spec, log, far, detach)
        else:
            _serve_attached(plugin, place, spec, log)


def _place(engine: "Engine", name: str | None, python: Path | None, host: "Host | None") -> "Environment":
    from outrider.core.errors import InputError
    from outrider.engines.environments import environment_for
    from outrider.engines.far import environment_on

    if host is None:
        return environment_for(engine, name, python)
    if python is None:
        raise InputError("which interpreter serves there must be told", fix="--engine-python PATH, of that machine")
    return environment_on(host, engine, str(python))


def _of_this_machine(spec: "ServeSpec") -> "ServeSpec":
    from dataclasses import replace

    from outrider.targets.folder import TargetFolder

    TargetFolder.open(spec.target)
    return replace(spec, target=spec.target.resolve(), drafter=spec.drafter.resolve() if spec.drafter else None)


def _check(engine: "Engine", place: "Environment", spec: "ServeSpec", host: "Host | None", force: bool) -> None:
    """Preflight first: what it says of a launch that cannot work is told before anything is loaded."""
    from outrider.launching import checked
    from outrider.preflight.stage import require

    result = checked(engine, place, spec, host)
    if result is None:
        return
    for finding in result.findings:
        if finding.verdict in ("fail", "warn"):
            typer.echo(f"preflight {finding.verdict}: {finding.id}: {finding.title}", err=True)
    if not force:
        require(result)


def _serve_attached(engine: "Engine", place: "Environment", spec: "ServeSpec", log: Path) -> None:
    from outrider.cli import telling
    from outrider.engines.serving import serving

    typer.echo(f"starting {engine.id} {place.version}; log: {log}")
    with serving(engine, place, spec, log, telling.as_text(), _PROBE_AGAIN_AFTER_S) as served:
        typer.echo(f"{served.url} is ready")
        while (failure := served.watch.failure(timeout_s=3600)) is None:
            pass
        raise failure


def _serve_detached(engine: "Engine", place: "Environment", spec: "ServeSpec", log: Path, host: "Host | None", detach: bool) -> None:
    from outrider.cli import telling
    from outrider.engines.servers import stop
    from outrider.launching import detached, followed

    tell = telling.as_text()
    typer.echo(f"starting {engine.id} {place.version}{f' on {host}' if host else ''}; log: {log}")
    with detached(engine, place, spec, log, host, tell) as server:
        typer.echo(f"{server.id} is ready: {server.url}{f' on {host}' if host else ''}; `outrider stop {server.id}` ends it")
        if detach:
            return
        try:
            followed(engine, server, host, tell)
        finally:
            stop(server, _STOP_DEADLINE_S)
