"""The command `hocket toy`, which prints a word."""

import typer


def register(application: typer.Typer) -> None:
    application.command("toy", help="Print a word.")(toy)


def toy(word: str) -> int:
    print(word)
    return 3
