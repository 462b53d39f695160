"""One door: every command by name, loaded when it is called, so that `fedflux --help` is there at once."""

import os
import sys
import traceback
import warnings
from importlib import import_module
from typing import Annotated, Any, NamedTuple

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command

from fedflux.cli.answers import fail
from fedflux.cli.examples import epilog
from fedflux.errors import FedfluxError, StoppedError
from fedflux.version import __version__


class Command(NamedTuple):
    """A command as the list of commands shows it, and the module of its code."""

    help: str
    module: str
    panel: str


TRAIN, USE, STUDY, MACHINE = "Train", "Use what was trained", "Study", "This machine"
COMMANDS = {
    "run": Command("Train one algorithm on one federation, and evaluate it.", "running", TRAIN),
    "compare": Command("Run a grid of algorithms, shifts, levels and seeds.", "running", TRAIN),
    "report": Command("Make one self-contained HTML page of runs.", "keeping", TRAIN),
    "predict": Command("Place clients that a run has never seen, and predict for them.", "using", USE),
    "export": Command("Write a bundle to serve new clients with, or one client's model.", "using", USE),
    "serve": Command("Serve a bundle: place clients, hand out models, answer.", "serving", USE),
    "keys": Command("Make, list and revoke API keys of a service.", "serving", USE),
    "cluster": Command("Cluster a run's descriptors again with another clusterer.", "keeping", STUDY),
    "partition": Command("Write a shifted federation to disk, for use elsewhere.", "keeping", STUDY),
    "reproduce": Command("Reproduce a table or figure of the paper, ours beside it.", "reproducing", STUDY),
    "fidelity": Command("Measure how far descriptor distances are from W2.", "measuring", STUDY),
    "store": Command("Join run stores, or turn one into CSV.", "keeping", STUDY),
    "bench": Command("Measure the engines side by side.", "measuring", MACHINE),
    "doctor": Command("Check this machine: versions, devices, extras, write access.", "measuring", MACHINE),
}


class Commands(TyperGroup):
    """The list of commands is a table; the code of one is imported when it is called."""

    def list_commands(self, ctx: Any) -> list[str]:
        """All, in the order of the help."""
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """A command's name and line of help: enough to list it."""
        if cmd_name not in COMMANDS:
            return None
        told = COMMANDS[cmd_name]
        return TyperCommand(cmd_name, help=told.help, rich_help_panel=told.panel)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """The command that was called, with its code."""
        name, command, rest = super().resolve_command(ctx, args)
        return name, None if command is None else load_command(str(command.name)), rest


def load_command(name: str) -> Any:
    """A command with its flags, in a process that is tuned for long work."""
    module: Any = import_module(f"fedflux.cli.{COMMANDS[name].module}")
    if COMMANDS[name].module != "serving":  # which never loads torch
        import_module("fedflux.engine.allocator").keep_freed_memory()
    group: Any = get_command(module.app)
    command = group.commands[name]
    command.epilog = epilog(name)
    return command


FIRST = """
Begin with `fedflux run`: it trains FLUX on digits, in half a minute. `fedflux compare --algorithms fedavg,flux
--out runs/first`, then `fedflux report runs/first`, shows what clustering gives.
`fedflux COMMAND --help` ends with examples. An error that ends with `(FAQ: name)` is explained in docs/faq.md#name.
"""
app = typer.Typer(
    cls=Commands,
    help="Clustered federated learning under distribution shift.",
    epilog=" ".join(FIRST.split()),
    rich_markup_mode="markdown",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.callback(invoke_without_command=True)
def version(
    show: Annotated[bool, typer.Option("--version", help="print the version and exit")] = False,
) -> None:
    """Clustered federated learning under distribution shift."""
    if show:
        print(__version__)
        raise typer.Exit


def _show_warning(message: Warning | str, category: type[Warning], *where: Any, **more: Any) -> None:
    """One line for people; where in the code it was said is left to Python's callers."""
    print(f"warning: {' '.join(str(message).split())}", file=sys.stderr)


def main() -> None:
    """Run the command line: 0 on success, 2 on bad input, 130 on Ctrl-C, 1 otherwise; errors in one line."""
    warnings.showwarning = _show_warning
    try:
        status = app(standalone_mode=False)
        if status == 130:  # how newer versions of the parser report Ctrl-C
            raise KeyboardInterrupt
        sys.exit(status)
    except KeyboardInterrupt:
        fail("stopped", 130)
    except FedfluxError as error:
        fail(str(error), 2)
    except Exception as error:
        if type(error).__name__ == "Abort":
            fail("stopped", 130)
        if hasattr(error, "format_message"):  # the command-line parser's own errors
            message = error.format_message()
            if not message:  # called without a command: the help is on the screen already
                sys.exit(2)
            fail(f"{message} (see fedflux --help)", 2)
        if isinstance(error, StoppedError):
            fail(str(error), 1)
        if os.environ.get("FEDFLUX_DEBUG"):
            traceback.print_exc()
        fail(f"{type(error).__name__}: {error} (FEDFLUX_DEBUG=1 shows where)", 1)
