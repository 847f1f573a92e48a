"""`echelon serve`."""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from echelon.cli.options import Json, Model, Which
from echelon.cli.output import messages, show


def serve(
    model: Model,
    *,
    host: Annotated[
        str, typer.Option(help="The address to listen on; other than loopback needs a token.")
    ] = "127.0.0.1",
    port: Annotated[
        int, typer.Option(min=0, max=65535, help="The port to listen on; 0 picks a free one.")
    ] = 8000,
    token: Annotated[
        str | None,
        typer.Option(
            envvar="ECHELON_TOKEN", help="The token that requests must carry; made up if one is needed."
        ),
    ] = None,
    tokens: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="A TOML file of tokens with names and limits; SIGHUP reads it again."
        ),
    ] = None,
    tls_cert: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Serve HTTPS with this certificate, in PEM form.")
    ] = None,
    tls_key: Annotated[Path | None, typer.Option(metavar="FILE", help="The certificate's key.")] = None,
    audit_log: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Append a line of JSON for each request, without its text."),
    ] = None,
    drain_seconds: Annotated[
        float, typer.Option(min=0.0, help="How long to report not ready before stopping.")
    ] = 0.0,
    engine: Annotated[
        Literal["auto", "ctranslate2", "torch"],
        typer.Option(help="What runs the model; auto: CTranslate2 if it is installed."),
    ] = "auto",
    precision: Annotated[
        Literal["float32", "int8"], typer.Option(help="Precision of CTranslate2.")
    ] = "float32",
    checkpoint: Which = None,
    threads: Annotated[int | None, typer.Option(min=1, help="CPU threads.  [default: all]")] = None,
    requests_per_second: Annotated[float, typer.Option(min=0.1, help="The limit for one client.")] = 50.0,
    trusted_proxy: Annotated[
        list[str] | None,
        typer.Option(
            metavar="ADDRESS", help="Trust the X-Forwarded-For of this proxy; needs a token. May be repeated."
        ),
    ] = None,
    json_: Json = False,
) -> None:
    """Serve a model: a web page and an HTTP API to translate or classify, until Ctrl-C."""
    from echelon.extras import require_extra

    for module in ("fastapi", "prometheus_client", "python_multipart"):
        require_extra(module, "serve")
    from echelon.commands.wording import served_words
    from echelon.serve.http_server import Listening
    from echelon.serve.limits import Limits
    from echelon.serve.server import ServeOptions
    from echelon.serve.server import serve as run_server
    from echelon.serve.tls import tls_files

    def announce(server: dict[str, Any]) -> None:
        show(json_, server, served_words(server))
        sys.stdout.flush()

    limits = Limits(requests_per_second=requests_per_second, burst=max(1, int(4 * requests_per_second)))
    messages().print("loading ...", highlight=False)
    listening = Listening(host, port, tls_files(tls_cert, tls_key), tuple(trusted_proxy or ()), limits)
    loaded = ServeOptions(model, checkpoint, engine, precision, threads, listening)
    options = dataclasses.replace(
        loaded, token=token, tokens=tokens, audit_log=audit_log, drain_s=drain_seconds
    )
    ended = run_server(options, announce)
    messages().print(f"stopped after {ended['requests']:,} requests", highlight=False)
