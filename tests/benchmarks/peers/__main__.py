"""Make an environment for each peer: ``python -m tests.benchmarks.peers [name ...]``.

Each takes minutes and one to two gigabytes. An environment that is there is brought to the
versions that are written down.
"""

import argparse
import subprocess
import sys
from pathlib import Path

PEERS = ("grain", "litdata", "streaming")
#: What `bench_streams` needs besides.
MORE = ("energon",)
DEFAULT_FOLDER = Path(__file__).parents[3] / ".peers"


def python_of(folder: Path, name: str) -> Path:
    """Return the Python of a peer's environment."""
    return folder / name / "bin" / "python"


def make_environment(folder: Path, name: str) -> None:
    """Install a peer in an environment of its own."""
    python = python_of(folder, name)
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", str(folder / name)], check=True)
    versions = Path(__file__).with_name(f"{name}.txt")
    subprocess.run([str(python), "-m", "pip", "install", "-r", str(versions)], check=True)


def main() -> None:
    """Make those that are asked for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="name", help=f"of {', '.join(PEERS + MORE)}")
    parser.add_argument("--peers-folder", type=Path, default=DEFAULT_FOLDER)
    arguments = parser.parse_args()
    unknown = sorted(set(arguments.names) - {*PEERS, *MORE})
    if unknown:
        parser.error(f"peers are {', '.join(PEERS + MORE)}, got {', '.join(unknown)}")
    for name in arguments.names or PEERS + MORE:
        make_environment(arguments.peers_folder, name)
        print(f"{name} is in {arguments.peers_folder / name}", flush=True)


if __name__ == "__main__":
    main()
