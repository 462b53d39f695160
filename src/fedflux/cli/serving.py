"""Commands of the service: `fedflux serve` and `fedflux keys`. Nothing here may load torch."""

from pathlib import Path
from typing import Annotated, Any

import typer

from fedflux.cli.answers import finish
from fedflux.serve.keeping.keys import RATE, SCOPES, USUAL, Keys
from fedflux.serve.service.running import run_service
from fedflux.serve.service.settings import ServiceSettings

app = typer.Typer()
keys = typer.Typer(help="Make, list and revoke the API keys of a service.", no_args_is_help=True)
app.add_typer(keys, name="keys")
Json = Annotated[bool, typer.Option("--json", help="print one JSON object as the last line of stdout")]
State = Annotated[Path, typer.Option("--state", help="folder of the service's API keys and audit log")]
STATE = Path("serving")
USED = ServiceSettings(Path(), STATE)


@app.command()
def serve(
    bundle: Annotated[Path, typer.Argument(help="a bundle: a folder or a .zip that fedflux export wrote")],
    state: State = STATE,
    host: Annotated[
        str, typer.Option(help="address to listen on; others than this machine's need API keys")
    ] = USED.host,
    port: Annotated[int, typer.Option(help="port to listen on")] = USED.port,
    trust: Annotated[
        Path | None, typer.Option("--trust", help="PEM file of the ed25519 key whose bundles are served, and no others")
    ] = None,
    certificate: Annotated[Path | None, typer.Option("--tls-certificate", help="PEM file, with its chain")] = None,
    private_key: Annotated[Path | None, typer.Option("--tls-key", help="PEM file")] = None,
    origin: Annotated[
        list[str] | None, typer.Option("--origin", help="origin of a web page elsewhere that may ask (default: none)")
    ] = None,
) -> None:
    """Serve a bundle over HTTP: place new clients, hand out their models, answer for them; its page is at /.

    SIGHUP or POST /v1/reload reads the bundle again, SIGTERM lets requests finish.
    """
    run_service(
        ServiceSettings(
            bundle,
            state,
            host=host,
            port=port,
            trust=trust,
            certificate=certificate,
            private_key=private_key,
            origins=tuple(origin or ()),
        )
    )


@keys.command()
def add(
    name: Annotated[str, typer.Argument(help="who will hold the key")],
    scopes: Annotated[str, typer.Option(help=f"what it is for: {', '.join(SCOPES)}")] = ",".join(USUAL),
    rate: Annotated[float, typer.Option(help="requests a second")] = RATE,
    state: State = STATE,
    as_json: Json = False,
) -> None:
    """Make a key. It is shown once, here; only its digest is kept."""
    secret = Keys(state).add(name, tuple(one.strip() for one in scopes.split(",") if one.strip()), rate)
    finish({"name": name, "key": secret}, as_json, lambda a: print(a["key"]))


@keys.command()
def revoke(
    name: Annotated[str, typer.Argument(help="whose key ends")], state: State = STATE, as_json: Json = False
) -> None:
    """End a key at once, also in a service that runs."""
    Keys(state).revoke(name)
    finish({"name": name}, as_json, lambda a: print(f"the key of {a['name']} is revoked"))


@keys.command("list")
def list_keys(state: State = STATE, as_json: Json = False) -> None:
    """List who holds keys, and what for."""
    found = [
        {"name": key.name, "scopes": list(key.scopes), "rate": key.rate, "revoked": key.revoked}
        for key in Keys(state).all()
    ]
    finish({"keys": found}, as_json, lambda a: print(*map(_line, a["keys"]), sep="\n"))


def _line(key: dict[str, Any]) -> str:
    told = "revoked" if key["revoked"] else f"{', '.join(key['scopes'])}; {key['rate']:g} requests a second"
    return f"{key['name']}: {told}"
