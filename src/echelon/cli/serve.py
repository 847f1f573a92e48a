"""`echelon serve`."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from echelon.cli.flags import takes_flags
from echelon.cli.options import Json, ModelOption, Which
from echelon.cli.output import messages, note_unscored, show

if TYPE_CHECKING:
    from echelon.serve.http_server import ListenOptions


@dataclass(frozen=True)
class AddressFlags:
    """Where to listen."""

    host: Annotated[
        str, typer.Option(help="The address to listen on; other than loopback needs a token.")
    ] = "127.0.0.1"
    port: Annotated[
        int, typer.Option(min=0, max=65535, help="The port to listen on; 0 picks a free one.")
    ] = 8000


@dataclass(frozen=True)
class AccessFlags:
    """Who may ask, and what is kept of it."""

    token: Annotated[
        str | None,
        typer.Option(
            envvar="ECHELON_TOKEN", help="The token that requests must carry; made up if one is needed."
        ),
    ] = None
    tokens: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="A TOML file of tokens with names and limits; SIGHUP reads it again."
        ),
    ] = None
    tls_cert: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Serve HTTPS with this certificate, in PEM form.")
    ] = None
    tls_key: Annotated[Path | None, typer.Option(metavar="FILE", help="The certificate's key.")] = None
    audit_log: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Append a line of JSON for each request, without its text."),
    ] = None
    drain_seconds: Annotated[
        float, typer.Option(min=0.0, help="How long to report not ready before stopping.")
    ] = 0.0


@dataclass(frozen=True)
class EngineFlags:
    """What computes."""

    engine: Annotated[
        Literal["auto", "ctranslate2", "torch"],
        typer.Option(help="What runs the model; auto: CTranslate2 if it is installed."),
    ] = "auto"
    precision: Annotated[Literal["float32", "int8"], typer.Option(help="Precision of CTranslate2.")] = (
        "float32"
    )
    checkpoint: Which = None
    threads: Annotated[int | None, typer.Option(min=1, help="CPU threads.  [default: all]")] = None


@dataclass(frozen=True)
class ClientFlags:
    """What a client may do."""

    requests_per_second: Annotated[
        float,
        typer.Option(min=0.1, help="The limit for one client.  [default: 50]", show_default=False),
    ] = 50.0
    trusted_proxy: Annotated[
        list[str] | None,
        typer.Option(
            metavar="ADDRESS", help="Trust the X-Forwarded-For of this proxy; needs a token. May be repeated."
        ),
    ] = None


@takes_flags
def serve(
    model: ModelOption,
    *,
    address: AddressFlags,
    access: AccessFlags,
    computed: EngineFlags,
    client: ClientFlags,
    json_: Json = False,
) -> None:
    """Serve a model: a web page and an HTTP API to translate or classify, until Ctrl-C."""
    from echelon.extras import require_extra

    for module in ("fastapi", "prometheus_client"):
        require_extra(module, "serve")
    from echelon.commands.results import format_server
    from echelon.serve.model_server import ServeOptions
    from echelon.serve.model_server import serve as run_server

    def announce(server: dict[str, Any]) -> None:
        show(json_, server, format_server(server))
        sys.stdout.flush()

    note_unscored(model, computed.checkpoint)
    messages().print("loading ...", highlight=False)
    options = ServeOptions(
        model,
        computed.checkpoint,
        computed.engine,
        computed.precision,
        computed.threads,
        listening=_listening(address, access, client),
        token=access.token,
        tokens=access.tokens,
        audit_log=access.audit_log,
        drain_s=access.drain_seconds,
    )
    ended = run_server(options, announce)
    messages().print(f"stopped after {ended['requests']:,} requests", highlight=False)


def _listening(address: AddressFlags, access: AccessFlags, client: ClientFlags) -> ListenOptions:
    from echelon.serve.certificate import tls_files
    from echelon.serve.http_server import ListenOptions
    from echelon.serve.limits import Limits

    rate = client.requests_per_second
    limits = Limits(requests_per_second=rate, burst=max(1, int(4 * rate)))
    tls, proxies = tls_files(access.tls_cert, access.tls_key), tuple(client.trusted_proxy or ())
    return ListenOptions(address.host, address.port, tls, proxies, limits)
