"""`outrider`: the commands, and how errors leave it."""

import sys
import tempfile
import traceback
from collections.abc import Callable
from pathlib import Path

import typer

from outrider import __version__
from outrider.cli import (
    demo,
    diagnose,
    engine,
    export,
    extract,
    init,
    measure,
    preflight,
    ps,
    replay,
    report,
    run,
    serve,
    stop,
    synthesize,
    target,
    train,
    watch,
)
from outrider.core.errors import OutriderError, from_os_error

app = typer.Typer(
    help="From a served target model to a speculative-decoding drafter that measurably speeds it up.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)
app.add_typer(target.app, name="target")
app.add_typer(engine.app, name="engine")
_COMMANDS: tuple[Callable[..., None], ...] = (
    run.run,
    init.init,
    demo.demo,
    preflight.preflight,
    synthesize.synthesize,
    extract.extract,
    train.train,
    export.export,
    replay.replay,
    measure.measure,
    diagnose.diagnose,
    report.report,
    serve.serve,
    ps.ps,
    stop.stop,
    watch.watch,
)
for command in _COMMANDS:
    app.command()(command)


@app.callback(invoke_without_command=True)
def _root(version: bool = typer.Option(False, "--version", help="Print the version and end.")) -> None:
    if version:
        typer.echo(f"outrider {__version__}")
        raise typer.Exit


def main() -> None:
    """Run a command; exit code 0 fine, 1 a finding failed, 2 bad usage or input, 3 engine died, 4 invalid measurement."""
    try:
        app()
    except OutriderError as error:
        _leave(error)
    except OSError as error:
        _leave(from_os_error(error))
    except KeyboardInterrupt:
        print("interrupted; the same command continues", file=sys.stderr)
        sys.exit(130)
    except Exception as error:
        _leave_unexpected(error)


def _leave(error: OutriderError) -> None:
    print("\n".join(error.lines()), file=sys.stderr)
    sys.exit(error.exit_code)


def _leave_unexpected(error: Exception) -> None:
    """A fault of ours: the traceback goes to a file that the message names, beside the run if there is one."""
    from outrider.core.record import RunFolder

    folder = RunFolder.active or Path(tempfile.mkdtemp(prefix="outrider-"))
    log = folder / "error.log"
    log.write_text("".join(traceback.format_exception(error)))
    print(
        f"error: unexpected {type(error).__name__}: {str(error)[:200]}\n  run       {RunFolder.active}\n  log       {log}", file=sys.stderr
    )
    sys.exit(2)
