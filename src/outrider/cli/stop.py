"""`outrider stop`: end servers that we have started, whole."""

from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from outrider.engines.server_records import Server
    from outrider.engines.servers import Stopped


def stop(
    server: Annotated[list[str], typer.Argument(help="As `outrider ps` lists it; the beginning or end of its name will do.")],
    deadline: Annotated[float, typer.Option(min=0.0, help="Seconds that it has to end by itself; then it is killed.")] = 30.0,
) -> None:
    """End servers with all their processes, here or over ssh, and verify that nothing of them is left.

    Exit code 0 if nothing is left, 3 if something is.
    """
    from outrider.core.errors import EngineFailed
    from outrider.engines.server_records import server_named
    from outrider.engines.servers import stop as stop_server

    not_whole = []
    for one in [server_named(name) for name in server]:
        stopped = stop_server(one, deadline)
        for line in _lines(one, stopped):
            typer.echo(line)
        not_whole += [f"{process}" for process in stopped.left]
    if not_whole:
        raise EngineFailed(
            "not all processes could be ended",
            evidence="; ".join(not_whole),
            effect="they may hold the port and memory; the record is kept",
            fix="end them as their owner or root, then `outrider stop` again",
        )


def _lines(server: "Server", stopped: "Stopped") -> list[str]:
    """What came of it."""
    if not stopped.ended:
        return [f"{server.id}: no process of it was left; its record is removed"]
    killed = f", {len(stopped.killed)} of them killed at the deadline" if stopped.killed else ""
    left = f"{len(stopped.left)} processes are left" if stopped.left else "nothing is left"
    port = f"port {server.port} is still held by {stopped.port_holder}" if stopped.port_holder else f"port {server.port} is closed"
    lines = [f"{server.id}: {len(stopped.ended)} processes ended{killed}; {left}; {port}"]
    if stopped.memory_unknown:
        lines.append(f"  GPU memory not checked: {stopped.memory_unknown}")
    else:
        lines += [f"  {holder}" for holder in stopped.memory] or ["  its GPUs hold no memory of any process"]
    return lines
