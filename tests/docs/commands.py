"""docs/commands.md, made from every command's own help."""

import re

from typer.testing import CliRunner

from outrider.cli.main import app

COMMANDS = (
    *("", "run", "init", "demo", "target import", "engine add", "engine list", "engine remove"),
    *("engine gate lift", "engine gate restore", "engine gate status", "preflight", "synthesize", "extract"),
    *("train", "export", "measure", "replay", "diagnose", "report", "serve", "watch", "ps", "stop"),
)


def document() -> str:
    """The whole page."""
    parts = ["# Commands\n\nMade by `tools/write-command-docs` from the commands' own help."]
    for command in COMMANDS:
        title = f"outrider {command}".strip()
        parts.append(f"## {title}\n\n```\n{help_text(command)}\n```")
    return "\n\n".join(parts) + "\n"


def help_text(command: str) -> str:
    """A command's help at 100 columns, without colours."""
    result = CliRunner().invoke(
        app,
        [*command.split(), "--help"],
        prog_name="outrider",
        env={"COLUMNS": "100", "TERMINAL_WIDTH": "100", "NO_COLOR": "1", "TERM": "dumb"},
    )
    assert result.exit_code == 0, result.output
    plain = re.sub(r"\x1b\[[0-9;]*m", "", result.output)
    return "\n".join(line.rstrip() for line in plain.strip().splitlines())


if __name__ == "__main__":
    print(document(), end="")
