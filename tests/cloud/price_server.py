"""A fake of AWS's price list API: GetProducts over HTTP, with filters and pages."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

ORDINARY = {
    "operatingSystem": "Linux",
    "tenancy": "Shared",
    "preInstalledSw": "NA",
    "capacitystatus": "Used",
    "marketoption": "OnDemand",
    "locationType": "AWS Region",
}


def product(machine_type: str, region: str, dollars: str, **attributes: str) -> dict[str, Any]:
    """An entry of the price list, as AWS writes it."""
    dimension = {"unit": "Hrs", "beginRange": "0", "endRange": "Inf", "pricePerUnit": {"USD": dollars}}
    offer = {"offerTermCode": "JRTCKXETXF", "priceDimensions": {"A.JRTCKXETXF.6YS6EN2CT7": dimension}}
    described = {**ORDINARY, "instanceType": machine_type, "regionCode": region, **attributes}
    return {
        "product": {"productFamily": "Compute Instance", "attributes": described, "sku": "A"},
        "serviceCode": "AmazonEC2",
        "terms": {"OnDemand": {"A.JRTCKXETXF": offer}},
    }


@dataclass
class PriceServer:
    """What it is asked for, and what it has."""

    products: list[dict[str, Any] | str] = field(default_factory=list)
    """A string is sent as it is."""
    page_entries: int = 100
    refuses_page: int | None = None

    def answer(self, question: dict[str, Any]) -> dict[str, Any] | None:
        """None: refused."""
        start = int(question.get("NextToken", 0))
        if self.refuses_page == start // self.page_entries:
            return None
        wanted = {one["Field"]: one["Value"] for one in question["Filters"]}
        found = [one for one in self.products if _fits(one, wanted)]
        page = found[start : start + self.page_entries]
        texts = [one if isinstance(one, str) else json.dumps(one) for one in page]
        after = start + self.page_entries
        more = {"NextToken": str(after)} if after < len(found) else {}
        return {"FormatVersion": "aws_v1", "PriceList": texts, **more}


def _fits(entry: dict[str, Any] | str, wanted: dict[str, str]) -> bool:
    if isinstance(entry, str):
        return True
    attributes = entry["product"]["attributes"]
    return all(attributes.get(name) == value for name, value in wanted.items())


@contextmanager
def price_server() -> Iterator[tuple[str, PriceServer]]:
    """The server's address, and what it has."""
    state = PriceServer()

    class Handler(BaseHTTPRequestHandler):
        wbufsize = (
            -1
        )  # head and body in one packet: otherwise the body waits 40 ms for the client's acknowledgement

        def do_POST(self) -> None:
            assert self.headers["X-Amz-Target"] == "AWSPriceListService.GetProducts"
            question = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            answer = state.answer(question)
            refusal = {"__type": "AccessDeniedException", "Message": "not authorized"}
            body = json.dumps(refusal if answer is None else answer).encode()
            self.send_response(400 if answer is None else 200)
            self.send_header("Content-Type", "application/x-amz-json-1.1")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *arguments: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}", state
        finally:
            server.shutdown()
            thread.join()
