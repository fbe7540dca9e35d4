"""The command `dpbilevel`: signals first, and then all that takes time to import."""

from dpbilevel.cli.signals import SIGNALS

_NEEDED = ("typer", "pyarrow", "matplotlib")  # what the extra "cli" brings: options, tables in files, reports


def main() -> None:
    """Run the command line, or say what it lacks before it has read anything."""
    SIGNALS.install()
    import importlib.util
    import sys

    missing = [name for name in _NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        sys.stderr.write(
            f"dpbilevel: the command line needs {', '.join(missing)}, which the library alone does not; "
            'pip install "dpbilevel[cli]"\n'
        )
        sys.exit(2)
    from dpbilevel.cli.app import main as run

    run()
