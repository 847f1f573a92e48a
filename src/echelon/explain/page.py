"""A report as one self-contained page: styles and charts are inline, and nothing is loaded from elsewhere."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from html import escape
from importlib.resources import files

from echelon.explain.answers import Answer
from echelon.explain.comparison import Comparison
from echelon.explain.history import History
from echelon.explain.host_samples import find_lost, host_table
from echelon.explain.parameter_servers import find_processes, traffic_table
from echelon.explain.report import Report
from echelon.explain.sheet import SERIES_COLOURS, Sheet, to_svg
from echelon.explain.units import show_count, show_step, show_workers
from echelon.explain.verdict import Verdict
from echelon.explain.verdict_table import verdict_table
from echelon.monitor.screen import show_seconds

_EVENTS = 40
_SAMPLES = 4


def report_page(report: Report) -> str:
    """The page of one run, as it stands now."""
    return render_page(report.name, report_sections(report))


def comparison_page(comparison: Comparison) -> str:
    """The page of several runs."""
    charts = "".join(_figure(sheet) for sheet in comparison.charts.values())
    heading = ["", *comparison.names]
    sections = {
        "head": _header(" / ".join(comparison.names), "", ""),
        "words": "".join(f"<p>{escape(sentence)}</p>" for sentence in comparison.sentences),
        "verdict": f"<h2>Do they differ?</h2>{_verdict(comparison.verdict)}",
        "differences": "<h2>What differs</h2>" + _table(heading, comparison.differences),
        "measures": "<h2>Results</h2>" + _table(heading, comparison.measures),
        "charts": f'<div class="charts">{charts}</div>',
    }
    return render_page(" / ".join(comparison.names), sections)


def study_page(
    title: str,
    state: str,
    sentences: Sequence[str],
    tables: Mapping[str, tuple[Sequence[str], Sequence[tuple[str, Sequence[str]]]]],
    charts: Sequence[Sheet],
) -> str:
    """The page of many trainings with one purpose; tables, each a heading and its rows, by their titles."""
    found = "".join(f"<h2>{escape(name)}</h2>{_table(*table)}" for name, table in tables.items())
    sections = {
        "head": _header(title, state, _when(time.time())),
        "words": "".join(f"<p>{escape(sentence)}</p>" for sentence in sentences),
        "charts": f'<div class="charts">{"".join(_figure(sheet) for sheet in charts)}</div>',
        "trials": found,
    }
    return render_page(title, sections)


def _verdict(verdict: Verdict | str) -> str:
    if isinstance(verdict, str):
        return f"<p>{escape(verdict)}</p>"
    heading, *rows = verdict_table(verdict)
    sentences = "".join(f"<p>{escape(sentence)}</p>" for sentence in verdict.sentences)
    return _table(heading, [(row[0], row[1:]) for row in rows]) + sentences


def render_page(title: str, sections: Mapping[str, str]) -> str:
    """A whole document, in which nothing can be executed."""
    style = files("echelon.explain").joinpath("page.css").read_text() + _series_styles()
    policy = (
        "default-src 'none'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; form-action 'none'"
    )
    body = "".join(f'<section id="{name}">{content}</section>' for name, content in sections.items())
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="color-scheme" content="light dark">\n'
        '<link rel="icon" href="data:,">\n'
        f"<title>{escape(title)} - Echelon</title>\n<style>\n{style}</style>\n</head>\n<body>\n"
        f'<a class="skip" href="#answers">Skip to the answers</a>\n<main>\n{body}\n</main>\n</body>\n</html>\n'
    )


def _series_styles() -> str:
    return "".join(
        f".line.s{number}{{stroke:{colour}}}.area.s{number}{{fill:{colour}}}"
        for number, colour in enumerate(SERIES_COLOURS)
    )


def report_sections(report: Report) -> dict[str, str]:
    """The page's parts by their ids."""
    history = report.history
    done, planned = history.last_step, history.planned_steps
    state = f"{history.outcome}, step {show_count(done)} of {show_count(planned)}"
    return {
        "head": _header(report.name, state, _when(report.made))
        + _progress(done, planned)
        + (f'<p class="score">{escape(str(history.test))}</p>' if history.test else ""),
        "tiles": _tiles(report),
        "charts": f'<div class="charts">{"".join(_figure(sheet) for sheet in report.charts.values())}</div>',
        "servers": _servers(history),
        "hosts": _hosts(history),
        "samples": _samples(history),
        "answers": "<h2>Questions and answers</h2>" + "".join(map(_answer, report.answers)),
        "events": _events(history),
    }


def _header(title: str, state: str, made: str) -> str:
    status = f'<p class="state" role="status">{escape(state)}</p>' if state else ""
    return f'<header><h1>{escape(title)}</h1>{status}<p class="made">{escape(made)}</p></header>'


def _when(seconds: float) -> str:
    return time.strftime("as of %Y-%m-%d %H:%M:%S", time.localtime(seconds))


def _progress(done: int, planned: int) -> str:
    share = min(1.0, done / planned) if planned else 0.0
    return (
        f'<div class="bar" role="progressbar" aria-label="steps done" aria-valuemin="0" aria-valuemax="{planned}" '
        f'aria-valuenow="{done}"><div style="width:{100 * share:.2f}%"></div></div>'
    )


def _tiles(report: Report) -> str:
    history, pace = report.history, report.history.pace
    best, (metric, key) = history.best_score(), history.metric
    tested = history.test.metrics.get(key) if history.test else None
    test = [] if tested is None else [(f"test {metric}", f"{tested:.2f}")]
    tiles = [
        *test,
        (f"best validation {metric}", "-" if best is None else f"{best:.2f}"),
        ("training loss", "-" if history.last_loss is None else f"{history.last_loss:.3f}"),
        ("time per step", show_step(pace) if pace else "-"),
        (f"{history.unit.split()[-1]}/s", show_count(history.targets_per_second)),
        ("so far", show_seconds(history.training_seconds)),
        ("to go", _eta(history)),
        ("bound by", report.case.bound if pace else "-"),
        ("host hours", f"{report.case.host_hours:.2g} h")
        if report.case.cost is None
        else ("cost so far", f"${report.case.cost:,.2f}"),
    ]
    cells = "".join(f"<div><dt>{escape(name)}</dt><dd>{escape(value)}</dd></div>" for name, value in tiles)
    return f'<dl class="tiles">{cells}</dl>'


def _eta(history: History) -> str:
    if history.outcome != "training":
        return history.outcome
    return "-" if history.seconds_left is None else show_seconds(history.seconds_left)


def _figure(sheet: Sheet) -> str:
    return f"<figure>{to_svg(sheet)}</figure>"


def _servers(history: History) -> str:
    """How much each process sent to each other one, in a run with parameter servers."""
    processes = find_processes(history)
    return "<h2>Parameter servers</h2>" + _table(*traffic_table(processes)) if processes else ""


def _hosts(history: History) -> str:
    """What each host is doing."""
    if not history.host_samples:
        return ""
    return "<h2>Hosts</h2>" + _table(*host_table(history.host_samples, lost=find_lost(history)))


def _samples(history: History) -> str:
    """The same few sentences, translated at several steps."""
    by_source: dict[str, list[dict[str, str]]] = {}
    for sample in history.samples:
        by_source.setdefault(str(sample.get("source", "")), []).append(sample)
    blocks = []
    for source, translations in list(by_source.items())[:_SAMPLES]:
        lines = "".join(
            f'<li><span class="at">step {sample.get("step", 0):,}</span> {escape(str(sample.get("output", "")))}</li>'
            for sample in _spread(translations)
        )
        reference = escape(str(translations[-1].get("reference", "")))
        blocks.append(
            f"<article><h3>{escape(source)}</h3><ol>{lines}</ol><p class=reference>reference: {reference}</p></article>"
        )
    return (
        f'<h2>Translations as they improve</h2><div class="samples">{"".join(blocks)}</div>' if blocks else ""
    )


def _spread(entries: Sequence[dict[str, str]], most: int = 5) -> list[dict[str, str]]:
    """A few items, including the first and the last."""
    if len(entries) <= most:
        return list(entries)
    return [entries[round(number * (len(entries) - 1) / (most - 1))] for number in range(most)]


def _answer(answer: Answer) -> str:
    evidence = "".join(f"<li>{escape(line)}</li>" for line in answer.evidence)
    details = f"<details><summary>evidence</summary><ul>{evidence}</ul></details>" if evidence else ""
    return (
        f'<article class="answer" id="answer-{answer.key}"><h3>{escape(answer.heading)}</h3>'
        f"<p>{escape(answer.answer)}</p>{details}</article>"
    )


def _events(history: History) -> str:
    notes = [(record.get("time") or 0.0, str(record["message"])) for record in history.events]
    notes += [
        (record.get("time") or 0.0, f"checkpoint of step {record.get('step', 0):,} written")
        for record in history.checkpoints
    ]
    notes += [
        (
            record.get("time") or 0.0,
            f"started with {show_workers(record.get('workers', 1))} at step {record.get('step', 0):,}",
        )
        for record in history.starts
    ]
    latest = sorted(notes, reverse=True)[:_EVENTS]
    lines = "".join(
        f"<li><time>{time.strftime('%H:%M:%S', time.localtime(at))}</time> {escape(message.splitlines()[0])}</li>"
        for at, message in latest
        if message
    )
    return f'<h2>Events</h2><ol class="events">{lines}</ol>' if lines else ""


def _table(heading: Sequence[str], rows: Sequence[tuple[str, Sequence[str]]]) -> str:
    head = "".join(f'<th scope="col">{escape(cell)}</th>' for cell in heading)
    body = "".join(
        f'<tr><th scope="row">{escape(name)}</th>'
        + "".join(f"<td>{escape(cell)}</td>" for cell in cells)
        + "</tr>"
        for name, cells in rows
    )
    return f'<div class="scroll" tabindex="0"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'
