"""``pate federate`` and ``pate party``: teachers in several organisations."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from pate.cli import options
from pate.console import print_json

app = options.new_app()

Recipe = Annotated[Path, typer.Argument(help="A .toml file.")]
Insecure = Annotated[
    bool, typer.Option("--insecure", help="Without TLS: for tests on one machine only.")
]


@app.command()
def federate(
    recipe: Recipe,
    out: options.Out = None,
    address: Annotated[
        str, typer.Option("--address", help="Where parties reach this coordinator, HOST:PORT.")
    ] = "127.0.0.1:9092",
    certificates: Annotated[
        Path | None,
        typer.Option("--certificates", help="Folder with ca.crt, server.pem and server.key."),
    ] = None,
    party_keys: Annotated[
        Path | None,
        typer.Option("--party-keys", help="Admit only parties with a public key (*.pub) in here."),
    ] = None,
    insecure: Insecure = False,
    wait: Annotated[
        float,
        typer.Option("--wait", help="Seconds to join, and again to train.", min=1),
    ] = 600.0,
    timeout: Annotated[
        float, typer.Option("--timeout", help="Seconds for each step of the sum.", min=1)
    ] = 120.0,
    json: options.Json = False,
) -> None:
    """Coordinate a federation: ask the parties, train a student on their noised votes."""
    from pate.errors import InvalidInput
    from pate.federated.coordinator import Coordinator
    from pate.federated.processes import Certificates, run_federation

    if insecure == (certificates is not None):
        raise InvalidInput("give --certificates FOLDER, or --insecure for a test on one machine")
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal():
        raise InvalidInput(f"--address is {address!r}; give HOST:PORT")
    if insecure and host not in ("127.0.0.1", "localhost"):
        raise InvalidInput(f"--insecure is for 127.0.0.1 only, not {host}; give --certificates")
    folder = Path("runs") / recipe.stem if out is None else out
    Coordinator.open(str(recipe), folder).require_finish()  # mistakes are reported here
    found = run_federation(
        recipe,
        folder,
        host=host,
        port=int(port),
        certificates=None
        if certificates is None
        else Certificates(
            authority=certificates / "ca.crt",
            certificate=certificates / "server.pem",
            key=certificates / "server.key",
        ),
        party_keys=party_keys,
        wait=wait,
        timeout=timeout,
    )
    if json:
        print_json(found)
        return
    accuracy = found["accuracy"]
    voters = f"{found['teachers']} teachers" if found["teachers"] else "record votes"
    typer.echo(f"{folder}: {found['parties']} parties, {voters}")
    typer.echo(f"student's accuracy: {100 * accuracy['accuracy']:.1f} % of {accuracy['records']}")
    typer.echo(f"{found['printed']}, {found['holds']}")


party = options.new_app(help="A party of a federation.", no_args_is_help=True)
app.add_typer(party, name="party")


@party.command()
def join(
    recipe: Recipe,
    superlink: Annotated[
        str, typer.Option("--superlink", help="The coordinator, HOST:PORT.")
    ] = "127.0.0.1:9092",
    folder: Annotated[
        Path | None, typer.Option("--out", help="The party's private folder; default runs/NAME.")
    ] = None,
    certificate: Annotated[
        Path | None,
        typer.Option("--certificate", help="The authority (ca.crt) that signed the coordinator's."),
    ] = None,
    key: Annotated[
        Path | None, typer.Option("--key", help="This party's private key, to be recognised by.")
    ] = None,
    port: Annotated[
        int, typer.Option("--port", help="A free port of this machine, on loopback.")
    ] = 9094,
    engine: options.EngineName = "serial",
    insecure: Insecure = False,
) -> None:
    """Join a federation: train own teachers, and add noised votes to its sums, until stopped."""
    import os

    from pate.errors import InvalidInput
    from pate.federated.party import FAILED, Party
    from pate.federated.processes import party_environment, supernode_command

    if insecure == (certificate is not None):
        raise InvalidInput("give --certificate FILE, or --insecure for a test on one machine")
    if insecure and superlink.rpartition(":")[0] not in ("127.0.0.1", "localhost"):
        raise InvalidInput(f"--insecure is for 127.0.0.1 only, not {superlink}; give --certificate")
    place = Path("runs") / recipe.stem if folder is None else folder
    Party.open(str(recipe), place)  # what is wrong with the recipe is reported here
    (place / FAILED).unlink(missing_ok=True)
    words = supernode_command(superlink=superlink, authority=certificate, key=key, port=port)
    os.execve(words[0], words, party_environment(recipe, place, engine=engine))
