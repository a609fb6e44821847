"""`outrider ps`: the servers that we have started."""

import time
from pathlib import PurePath
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from outrider.engines.server_records import Server
    from outrider.engines.servers import ServerState

_HEAD = ("id", "state", "engine", "target", "drafter", "where", "age", "processes", "log")


def ps(
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object a server and line: its record, state and processes.")] = False,
) -> None:
    """List the servers that Outrider has started, here and over ssh, with their state.

    A server that ended with the command that had started it is listed once more if that command was killed, then forgotten.
    """
    from outrider.engines.server_records import damaged, forget, servers
    from outrider.engines.servers import states

    every = servers()
    found = states(every)
    if as_json:
        import json

        for server in every:
            state = found[server.id]
            told = {"state": state.state, "detail": state.detail, "processes": [p.model_dump() for p in state.processes]}
            typer.echo(json.dumps({**server.model_dump(mode="json", exclude={"mark"}), **told}))
    else:
        _print_table(every, found)
    for path in damaged():
        typer.echo(f"warning: {path} cannot be read and is left out; remove it if nothing of it runs", err=True)
    for server in every:
        if not server.is_detached and found[server.id].state == "gone":
            forget(server)


def _print_table(every: "list[Server]", found: "dict[str, ServerState]") -> None:
    """Columns as wide as they need: an id or a path that is cut is of no use."""
    if not every:
        typer.echo("none")
        return
    rows = [_HEAD, *(_row(server, found[server.id]) for server in every)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        typer.echo("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
    for server in every:
        if detail := found[server.id].detail:
            typer.echo(f"{server.id}: {detail}")


def _row(server: "Server", state: "ServerState") -> tuple[str, ...]:
    place = f"{server.host}, port {server.port}" if server.host else f"127.0.0.1:{server.port}"
    models = (_last(server.target), _last(server.drafter) if server.drafter else "none")
    age = _age(time.time() - server.started_at)
    return (server.id, state.state, f"{server.engine} {server.version}", *models, place, age, str(len(state.processes)), server.log)


def _last(path: str) -> str:
    return PurePath(path).name or path


def _age(seconds: float) -> str:
    """Two units at most."""
    minutes = int(seconds // 60)
    if minutes < 1:
        return f"{max(0, int(seconds))} s"
    if minutes < 60:
        return f"{minutes} min"
    hours = minutes // 60
    return f"{hours} h {minutes % 60} min" if hours < 48 else f"{hours // 24} d {hours % 24} h"
