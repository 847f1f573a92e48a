"""`report`: runs explained in the requested format."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path
from typing import Literal

from echelon.cloud import prices
from echelon.errors import UserError
from echelon.explain.page import report_page
from echelon.explain.report import Report, build_report
from echelon.explain.report_text import report_markdown, report_text
from echelon.explain.sheet import to_png
from echelon.runfolder import RunFolder, to_json, write_atomically

ReportForm = Literal["text", "markdown", "json", "html"]
_SUFFIXES: dict[str, ReportForm] = {
    ".md": "markdown",
    ".markdown": "markdown",
    ".json": "json",
    ".html": "html",
    ".txt": "text",
}


def hourly_price(price: float | None, machine: str | None) -> float | None:
    """A host's hourly price: as given, or from the price list."""
    if price is not None or machine is None:
        return price
    found = prices.all_machines().get(machine)
    if found is None:
        raise UserError(f"--machine {machine}: the price lists have no such machine; use --price")
    return found.busy_hourly


def make_reports(runs: list[Path], hourly: float | None, reference: Path | None) -> list[Report]:
    return [build_report(RunFolder(run.absolute()), hourly, reference) for run in runs]


def choose_form(form: ReportForm | None, to: Path | None) -> ReportForm:
    """The given form, or that of the file's suffix; UserError for a suffix of another format."""
    if form is not None:
        return form
    suffix = to.suffix.lower() if to else ""
    if suffix and suffix not in _SUFFIXES:
        raise UserError(f"--to {to}: {suffix} is not written here; use {', '.join(_SUFFIXES)}")
    return _SUFFIXES.get(suffix, "text")


def render_report(report: Report, form: ReportForm, width: int | None = None) -> str:
    """A report in the given form; text fits `width`."""
    match form:
        case "text":
            return report_text(report, width) + "\n"
        case "markdown":
            return report_markdown(report)
        case "json":
            return to_json(report.to_json(), indent=2) + "\n"
        case "html":
            return report_page(report)


def write_report(path: Path, text: str) -> None:
    """Write a report to a file; UserError if it cannot be written."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, text)
    except OSError as error:
        raise UserError(f"{path}: cannot be written: {error.strerror}") from None


def write_bundle(report: Report, path: Path) -> list[str]:
    """Pack answers, charts as PNG, the recipe, records and logs into one archive; return the names in it."""
    run, names = report.history.run, []
    charts = {name: f"charts/{name}.png" for name in report.charts}
    files: dict[str, bytes] = {
        "report.md": report_markdown(report, charts).encode(),
        "report.html": report_page(report).encode(),
        "report.json": to_json(report.to_json(), indent=2).encode(),
        **{charts[name]: to_png(sheet) for name, sheet in report.charts.items()},
    }
    wanted = [
        run.recipe,
        run.provenance,
        *sorted(run.records.glob("*.jsonl")),
        *sorted(run.logs.glob("*.log")),
    ]
    wanted += sorted(run.scores.glob("*"))
    try:
        with tarfile.open(path, "w:gz") as archive:
            for name, content in files.items():
                entry = tarfile.TarInfo(f"{report.name}/{name}")
                entry.size, entry.mtime = len(content), int(report.made)
                archive.addfile(entry, io.BytesIO(content))
                names.append(entry.name)
            for file in wanted:
                if file.is_file() and not file.is_symlink():
                    archive.add(file, f"{report.name}/{file.relative_to(run.path)}", recursive=False)
                    names.append(f"{report.name}/{file.relative_to(run.path)}")
    except OSError as error:
        raise UserError(f"{path}: cannot be written: {error.strerror}") from None
    return names
