"""The command `dpbilevel`: signals first, and then all that takes time to import."""

from dpbilevel.cli.signals import SIGNALS


def main() -> None:
    """The entry point of the installed command and of ``python -m dpbilevel.cli``."""
    SIGNALS.install()
    from dpbilevel.cli.app import main as run

    run()
