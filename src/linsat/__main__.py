"""``python -m linsat info`` and ``check``: this machine. Files are for ``linsat`` of the package linsat-tools."""

from __future__ import annotations

import argparse

import linsat


def main() -> int:
    """Exit codes: 0 fine; 1 a back end gives wrong answers here; 2 a command that is not understood."""
    parser = argparse.ArgumentParser(
        prog="python -m linsat",
        description="What linsat finds on this machine.",
        epilog="Constraint and score files: pip install linsat-tools, then linsat --help.",
    )
    parser.add_argument("--version", action="version", version=f"linsat {linsat.__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="{info,check}")
    commands.add_parser("info", help="versions, and which back ends can be used here")
    commands.add_parser("check", help="solve small systems with every back end that runs here and compare them")
    command = parser.parse_args().command
    from linsat.machine import check_machine, print_info

    if command == "check":
        return 0 if check_machine() else 1
    print_info()
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
