"""The command `dpbilevel`: installs signal handlers first, before slow imports."""

from dpbilevel.cli.signals import SIGNALS

_NEEDED = ("typer", "pyarrow", "matplotlib")  # installed by the extra "cli": options, tables in files, reports


def main() -> None:
    """Run the command line; if a package is missing, report that before anything is read."""
    SIGNALS.install()
    import importlib.util
    import sys

    missing = [name for name in _NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        sys.stderr.write(
            f"dpbilevel: the command line needs {', '.join(missing)}, not installed with the library alone; "
            'pip install "dpbilevel[cli]"\n'
        )
        sys.exit(2)
    from dpbilevel.cli.app import main as run

    run()
