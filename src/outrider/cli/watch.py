"""`outrider watch`: what an engine's log says, as it is written: here, on another machine, or from a pipe."""

from typing import Annotated, Literal

import typer


def watch(
    log: Annotated[str, typer.Argument(help="A file, ssh://user@box/path/server.log, or - for standard input.")],
    engine: Annotated[str, typer.Option(help="The engine that writes it.")] = "vllm",
    pid: Annotated[int | None, typer.Option(help="The server's process on this machine: its end and its signs of life count too.")] = None,
    url: Annotated[str | None, typer.Option(help="Where the server answers, e.g. http://127.0.0.1:8000: it is asked for a token.")] = None,
    until: Annotated[Literal["ready", "token", "end"], typer.Option(help="When to stop watching, if nothing goes wrong.")] = "end",
    follow: Annotated[bool, typer.Option("--follow/--no-follow", help="Wait for more, or say how it is by now.")] = True,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object a line; the last one is the end.")] = False,
) -> None:
    """Say which phase a starting engine is in, what it notes, and, within a second, that it failed, why, and what to do.

    Exit code 3 if it failed or hangs, else 0.
    """
    from outrider.cli import telling
    from outrider.engines.log_source import log_named
    from outrider.engines.serving import engine_named
    from outrider.engines.watching_logs import events_so_far, watching_log

    tell = telling.as_json if as_json else telling.as_text()
    plugin, source = engine_named(engine), log_named(log)
    state = "running"
    if not follow:
        for event in events_so_far(plugin, source):
            tell(event)
            state = getattr(event, "state", state)
    else:
        with watching_log(plugin, source, log, pid, url) as watcher:
            try:
                for event in watcher.events(until):
                    tell(event)
            except KeyboardInterrupt:  # no failure: enough was seen
                for event in watcher.finish():
                    tell(event)
            state = watcher.verdict.state if watcher.verdict else state
    if state in ("failed", "hung"):
        raise typer.Exit(3)
