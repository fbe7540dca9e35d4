"""A PostgreSQL server of the tests' own, in a temporary folder, on a free port of this machine alone."""

import os
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path


def binaries() -> Path | None:
    """The folder of PostgreSQL's programs: Debian keeps them off the path, by version."""
    homes = [
        *sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True),
        Path(shutil.which("initdb") or "/").parent,
    ]
    return next((home for home in homes if (home / "initdb").exists() and (home / "pg_ctl").exists()), None)


def reason_to_skip() -> str | None:
    """Why no server can be started here; None where one can."""
    if binaries() is None:
        return "PostgreSQL is not installed (Debian: apt-get install postgresql)"
    if find_spec("psycopg") is None:
        return "psycopg is not installed (pip install 'dpbilevel[postgresql]')"
    if os.getuid() == 0 and not _has_user("postgres"):
        return "PostgreSQL does not run as root, and there is no user postgres to run it as"
    return None


@contextmanager
def server(password: str | None = None) -> Iterator[str]:
    """Start a server, which asks for a password or takes everybody; yields the address of its database."""
    home = binaries()
    assert home is not None
    # PostgreSQL refuses to run as root. Sockets have short names: the folder must not be deep.
    as_user = {"user": "postgres", "group": "postgres", "extra_groups": []} if os.getuid() == 0 else {}
    with tempfile.TemporaryDirectory(prefix="pg-") as folder:
        if as_user:
            shutil.chown(folder, "postgres", "postgres")
        data, port = Path(folder) / "data", _free_port()

        def run(*command: str) -> None:
            subprocess.run(command, check=True, capture_output=True, timeout=120, cwd=folder, **as_user)

        access = ["-A", "trust"]
        if password is not None:
            secret = Path(folder) / "password"
            secret.write_text(password + "\n")
            if as_user:
                shutil.chown(secret, "postgres", "postgres")
            access = ["-A", "scram-sha-256", "--pwfile", str(secret)]
        run(str(home / "initdb"), *access, "--no-sync", "-U", "postgres", "-E", "UTF8", "-D", str(data))
        options = f"-p {port} -c listen_addresses=127.0.0.1 -c unix_socket_directories={folder}"
        run(str(home / "pg_ctl"), "-w", "-D", str(data), "-l", f"{folder}/log", "-o", options, "start")
        try:
            yield f"postgresql://postgres:{password or 'not-a-secret'}@127.0.0.1:{port}/postgres"
        finally:
            run(str(home / "pg_ctl"), "-w", "-m", "immediate", "-D", str(data), "stop")


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def _has_user(name: str) -> bool:
    import pwd

    return any(entry.pw_name == name for entry in pwd.getpwall())
