"""Functions as commands of typer: their parameters are options, with a help text each."""

import inspect
from collections.abc import Callable, Iterable
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from dpbilevel.cli.fit_command import Positional


def add(
    function: Callable[..., None],
    options: Iterable[inspect.Parameter],
    example: str,
    to: typer.Typer,
    name: str | None,
    kind: type[TyperCommand] = TyperCommand,
) -> None:
    """Register a function as a command, by default of its own name."""
    function.__signature__ = inspect.Signature([_shown(option) for option in options])  # type: ignore[attr-defined]
    to.command(name=name, cls=kind, epilog=f"Example: {example}")(function)


def _shown(option: inspect.Parameter) -> inspect.Parameter:
    """A parameter as an option or an argument of typer."""
    if option.annotation is typer.Context:
        return option
    kind, text = option.annotation.__origin__, option.annotation.__metadata__[0]
    shown: Any = typer.Option(f"--{option.name.replace('_', '-')}", help=text)
    if isinstance(text, Positional):
        shown = typer.Argument(metavar=option.name.upper(), help=text)
    return option.replace(annotation=Annotated[kind, shown])


class Resumable(TyperCommand):
    """A command that requires nothing else with ``--resume``: the run that it names has all options."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        required = [parameter for parameter in self.params if parameter.required]
        typed = list(args)
        if any(argument.partition("=")[0] == "--resume" for argument in args):
            for parameter in required:
                parameter.required = False
            try:
                rest = super().parse_args(ctx, args)
            finally:
                for parameter in required:
                    parameter.required = True
            if ctx.params["resume"] is not None:
                return rest
        return super().parse_args(ctx, typed)


class Launching(TyperCommand):
    """A command that runs another one: options after the name of that one belong to it."""

    allow_interspersed_args = False
