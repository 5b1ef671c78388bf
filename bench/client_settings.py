"""`--client NAME=VALUE`, repeated: more settings of confluent-kafka, such as those of a secure connection."""

import argparse


def add_to(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--client", action="append", default=[], metavar="NAME=VALUE", help="a setting of the client")


def chosen(options: argparse.Namespace) -> dict[str, str]:
    return dict(setting.split("=", 1) for setting in options.client)


def flags(settings: dict[str, str]) -> list[str]:
    """The other way round: for the command line of such a client."""
    return [part for name, value in settings.items() for part in ("--client", f"{name}={value}")]
