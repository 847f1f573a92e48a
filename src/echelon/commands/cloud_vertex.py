"""`cloud up` and `cloud down` for a job on Vertex AI: submitted, followed, and cancelled when its time is over."""

from __future__ import annotations

import datetime
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rich.console import Console

from echelon.cloud.cluster_spec import load_spec
from echelon.cloud.prices import age_warning, price_list
from echelon.cloud.vertex import VertexSpec, hourly, recipe_address, render_job
from echelon.cloud.vertex_jobs import VertexJobs, open_jobs
from echelon.errors import UserError
from echelon.recipe.loading import load_recipe
from echelon.store import put_file

Ask = Callable[[str], bool]


def run_job(path: Path, recipe: Path | None, ask: Ask, console: Console) -> dict[str, Any]:
    """Show the bill, ask, submit a job and show its log until it ends."""
    if recipe is None:
        raise UserError("a job on Vertex AI needs --recipe, what to train")
    spec = load_spec(path, VertexSpec)
    load_recipe(recipe, [])
    console.print(format_job(spec), markup=False, highlight=False, soft_wrap=True)
    warning = age_warning("gcp", price_list("gcp"), datetime.date.today())
    if warning:
        console.print(f"  {warning}", markup=False, highlight=False, soft_wrap=True)
    if not ask("Submit this job?"):
        raise UserError("nothing was submitted")
    put_file(recipe, recipe_address(spec))
    return _follow(open_jobs(spec), spec, console)


def _follow(jobs: VertexJobs, spec: VertexSpec, console: Console) -> dict[str, Any]:
    name = jobs.submit(render_job(spec))
    console.print(f"{name} is submitted", markup=False, highlight=False)

    def tell(line: str) -> None:
        console.print(line, markup=False, highlight=False, soft_wrap=True)

    try:
        state = jobs.follow(name, tell, spec.hours * 3600)
    except KeyboardInterrupt:
        raise UserError(f"{name} keeps running; cancel it with `echelon cloud down FILE.TOML`") from None
    return {"name": name, "state": state, "run": f"{spec.bucket}/runs/{spec.name}"}


def cancel_jobs(path: Path, jobs: VertexJobs | None = None) -> list[str]:
    """Cancel the running jobs of a file's name; return their names."""
    spec = load_spec(path, VertexSpec)
    jobs = jobs or open_jobs(spec)
    names = [str(job["name"]) for job in jobs.find(spec.name)]
    for name in names:
        jobs.cancel(name)
    return names


def format_job(spec: VertexSpec) -> str:
    """The job and its bill."""
    pools = {"chief": spec.chief, "workers": spec.workers, "parameter servers": spec.parameter_servers}
    lines = [
        f"  {name}: {pool.count} x {pool.machine}"
        + (f" with {pool.accelerators} x {pool.accelerator}" if pool.accelerator else "")
        for name, pool in {**pools, "evaluator": spec.evaluator}.items()
        if pool
    ]
    cost = hourly(spec)
    bill = (
        f"  ${cost:.2f} an hour, at most ${cost * spec.hours:.2f}"
        if cost is not None
        else "  our list does not have the price of one of these machines"
    )
    limit = f"Vertex AI cancels it after {spec.hours:g} hours"
    return "\n".join([f"{spec.name}: a job on Vertex AI in {spec.region}", *lines, f"{bill}; {limit}"])
