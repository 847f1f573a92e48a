"""The command line: one table, verb -> function. Prints results and errors, and sets the exit status.

Verbs import what they need when they run, so that `echelon --help` starts at once and the control half never
loads torch.
"""

from __future__ import annotations

import dataclasses
import os
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NoReturn

import typer
from rich.console import Console
from rich.text import Text

import echelon
from echelon.console import SafeConsole, write_out
from echelon.errors import EchelonError, UserError
from echelon.launch.library_settings import thread_waiting
from echelon.recipe.workers import WorkerRange, parse_workers
from echelon.runfolder import to_json
from echelon.untrusted import printable

if TYPE_CHECKING:
    from echelon.commands.labs import HostVerb
    from echelon.launch.hosts import Host
    from echelon.runfolder import RunFolder

_KEYBOARD_INTERRUPT = 130
"""Typer's exit status for Ctrl-C, and the shell's."""


def _parse_workers(text: str) -> WorkerRange:
    try:
        return parse_workers(text)
    except ValueError as error:
        raise typer.BadParameter(f"{text!r} is not allowed: {error}") from None


RecipeFile = Annotated[Path, typer.Argument(metavar="RECIPE", help="The recipe, a TOML file.")]
Run = Annotated[Path, typer.Argument(metavar="RUN", help="The run's folder, e.g. runs/demo.")]
Set = Annotated[
    list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Override a key of the recipe.")
]
Steps = Annotated[
    int | None, typer.Option(min=1, help="Train for this many steps, in place of the recipe's length.")
]
Epochs = Annotated[
    float | None, typer.Option(min=0.0, help="Train for this many epochs, in place of the recipe's length.")
]
Json = Annotated[
    bool, typer.Option("--json", help="Print one JSON document on stdout; messages go to stderr.")
]
Workers = Annotated[
    WorkerRange | None,
    typer.Option(
        metavar="N|FEWEST:MOST|auto",
        parser=_parse_workers,
        help="Worker processes, in place of the recipe's, on each host; a range may lose workers and go on.",
    ),
]
LabName = Annotated[str, typer.Option("--name", help="Which lab; several may be up.")]
LabHost = Annotated[str, typer.Argument(metavar="HOST", help="A host of the lab, e.g. host1.")]
Hosts = Annotated[
    str | None,
    typer.Option(
        metavar="A:2,B:2|FILE",
        help="These hosts over SSH, so many workers on each; or a hostfile, or AWS's list of instances.",
    ),
]
Hostfile = Annotated[
    Path | None,
    typer.Option(help="A hostfile: `host slots=2` or `host:2` a line, or AWS's list of instances."),
]
AwsAddress = Annotated[
    Literal["private", "public"], typer.Option(help="Which address of AWS's instances to use.")
]
NumHosts = Annotated[
    str | None,
    typer.Option(
        metavar="MIN:MAX",
        help="How many hosts there must be, and may be.",
    ),
]
SshConfig = Annotated[
    Path | None, typer.Option(help="An ssh configuration in place of your own.", show_default=False)
]
HostPython = Annotated[str | None, typer.Option(help="The Python with Echelon on the hosts.")]
Interface = Annotated[
    str | None, typer.Option(help="The hosts' network card, where the one found is not right.")
]
Container = Annotated[
    str | None, typer.Option(metavar="IMAGE", help="Run everything on the hosts in containers of this image.")
]
Port = Annotated[int | None, typer.Option(help="Where the hosts' agents listen.", min=1024, max=65535)]
TrustHosts = Annotated[
    bool, typer.Option("--trust-hosts", help="Accept the hosts.json of a run that was started elsewhere.")
]
Which = Annotated[
    str | None, typer.Option("--checkpoint", metavar="best|last|average|PATH", help="Which weights to use.")
]

Price = Annotated[float | None, typer.Option(min=0.0, help="Dollars an hour for each host.")]
MachineType = Annotated[
    str | None, typer.Option("--machine", help="What the hosts are, e.g. g4dn.2xlarge, for their price.")
]


def messages() -> Console:
    """Where progress and messages go: stderr, so that stdout holds results only.

    Lines are broken to fit a terminal only: in a pipe or a log a long path stays in one piece. A terminal that cannot
    draw progress bars is treated as a log.
    """
    is_dumb = os.environ.get("TERM") in ("dumb", "unknown")
    is_log = is_dumb or not sys.stderr.isatty()
    return SafeConsole(stderr=True, force_terminal=False if is_dumb else None, soft_wrap=is_log)


def show(as_json: bool, result: Any, text: str) -> None:
    """Print a verb's result, for programs or for people."""
    value = (
        dataclasses.asdict(result)
        if dataclasses.is_dataclass(result) and not isinstance(result, type)
        else result
    )
    write_out((to_json(value, indent=2) if as_json else text) + "\n")


def demo(
    run: Annotated[Path, typer.Option(help="Where the run goes.")] = Path("runs/demo"),
    fresh: Annotated[bool, typer.Option("--fresh", help="Remove an earlier demo run first.")] = False,
    set_: Set = None,
    json_: Json = False,
) -> None:
    """Train and try an English-German model, in minutes."""
    from echelon.commands.demo import demo as run_demo
    from echelon.commands.wording import demo_words

    result = run_demo(run, fresh, set_ or [], messages())
    show(json_, result, demo_words(result))
    _leave_if_interrupted(result)


def prepare(
    recipe: RecipeFile,
    to: Annotated[
        str | None,
        typer.Option(metavar="ADDRESS", help="Copy the data there: s3://bucket/folder or gs://..."),
    ] = None,
    set_: Set = None,
    json_: Json = False,
) -> None:
    """Clean, tokenise and shard a recipe's data, once."""
    from echelon.commands.preparing import data_notes, prepare_data, put_data
    from echelon.commands.wording import prepared_words
    from echelon.recipe.loading import load_recipe

    loaded = load_recipe(recipe, set_ or [])
    prepared = prepare_data(loaded, recipe.parent, messages())
    summary = {
        "folder": str(prepared.folder),
        "key": prepared.key,
        "notes": data_notes(loaded, prepared),
        "manifest": dataclasses.asdict(prepared.manifest),
    }
    words = prepared_words(prepared)
    if to is not None:
        summary["address"] = put_data(prepared, to)
        words += f'\nfor hosts that do not have the corpora: --set data.prepared="{summary["address"]}"'
    show(json_, summary, words)


def describe(recipe: RecipeFile, set_: Set = None, json_: Json = False) -> None:
    """What a recipe means before anything runs."""
    from echelon.commands.preparing import find_data
    from echelon.explain.describing import describe_in_words, describe_recipe
    from echelon.recipe.loading import load_recipe
    from echelon.recipe.schedule import warm_up_note

    loaded = load_recipe(recipe, set_ or [])
    description = describe_recipe(loaded, find_data(loaded, recipe.parent))
    if note := warm_up_note(loaded, description.steps):
        messages().print(note, markup=False, highlight=False, soft_wrap=True)
    show(json_, description, describe_in_words(description))


def plan(
    recipe: RecipeFile,
    *,
    on: Annotated[
        list[str] | None,
        typer.Option(
            metavar="SPEC",
            help="A cluster: 4xg4dn.2xlarge, '2x(2xV100, 1gbit)', a hostfile, lab:NAME, or here; may be repeated.",
        ),
    ] = None,
    sweep: Annotated[
        str | None, typer.Option(metavar="hosts=1..1024", help="Draw the scaling curve of each exchange.")
    ] = None,
    chart: Annotated[
        Path | None, typer.Option(metavar="FILE.svg|FILE.png", help="Draw the sweep into a file.")
    ] = None,
    weak: Annotated[
        bool,
        typer.Option(
            "--weak", help="Every worker does the recipe's whole step: the batch grows with the cluster."
        ),
    ] = False,
    profile: Annotated[
        bool, typer.Option("--profile", help="Measure a few steps here first, and count with them.")
    ] = False,
    use_profile: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Count with what `benchmark --workers 1 --json` has written."),
    ] = None,
    price: Annotated[
        float | None, typer.Option(min=0.0, help="Dollars an hour for a host, in place of the list's.")
    ] = None,
    ssh_config: SshConfig = None,
    set_: Set = None,
    json_: Json = False,
) -> None:
    """Predict step time, traffic, hours and money on clusters."""
    from echelon.commands.planning import PlanOptions, draw_sweep, make_plan

    if chart is not None and sweep is None:
        raise UserError("--chart draws a sweep; say which with --sweep hosts=1..64")
    if profile and use_profile is not None:
        raise UserError("--profile measures, --use-profile reads what was measured; use one of them")
    source = "here" if profile else str(use_profile) if use_profile is not None else None
    options = PlanOptions(recipe, on or [], set_ or [], source, sweep, weak, ssh_config, price)
    made = make_plan(options, messages())
    if chart is not None:
        draw_sweep(made, chart)
        messages().print(f"{chart}: written", highlight=False)
    show(json_, made.to_json(), made.words())


def train(
    recipe: RecipeFile,
    *,
    run: Annotated[Path | None, typer.Option(help="The run's folder; runs/NAME where not given.")] = None,
    workers: Workers = None,
    steps: Steps = None,
    epochs: Epochs = None,
    hosts: Hosts = None,
    hostfile: Hostfile = None,
    rented: Annotated[
        str | None, typer.Option("--cluster", metavar="NAME", help="The machines that `cloud up` has rented.")
    ] = None,
    aws_address: AwsAddress = "private",
    num_hosts: NumHosts = None,
    ssh_config: SshConfig = None,
    python: HostPython = None,
    interface: Interface = None,
    port: Port = None,
    install: Annotated[bool, typer.Option("--install", help="Put Echelon on the hosts first.")] = False,
    sync: Annotated[
        bool, typer.Option("--sync", help="Copy prepared data to hosts that do not see it.")
    ] = False,
    container: Container = None,
    detach: Annotated[
        bool, typer.Option("--detach", help="Train in the background; see status, watch, attach and stop.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show what would be run on every host, and run nothing.")
    ] = False,
    launcher: Annotated[
        Literal["local", "slurm", "kubernetes"] | None,
        typer.Option(help="Who starts the workers; where not given, the launcher that this runs inside."),
    ] = None,
    nodes: Annotated[int | None, typer.Option(min=1, help="Hosts, each with --workers.")] = None,
    node_rank: Annotated[int | None, typer.Option(min=0, help="By hand: this host's number, from 0.")] = None,
    master: Annotated[
        str | None, typer.Option(metavar="ADDR:PORT", help="By hand: where node 0 listens.")
    ] = None,
    partition: Annotated[str | None, typer.Option(help="SLURM: the partition.")] = None,
    time: Annotated[str | None, typer.Option(help="SLURM: the time limit, e.g. 12:00:00.")] = None,
    account: Annotated[str | None, typer.Option(help="SLURM: the account.")] = None,
    gpus_per_node: Annotated[
        int | None, typer.Option(min=1, help="SLURM, Kubernetes: GPUs of a node.")
    ] = None,
    sbatch_option: Annotated[
        list[str] | None, typer.Option(metavar="NAME=VALUE", help="SLURM: any other option of sbatch.")
    ] = None,
    image: Annotated[str | None, typer.Option(help="Kubernetes: the container image.")] = None,
    to: Annotated[Path | None, typer.Option(help="Kubernetes: write the manifests into this folder.")] = None,
    set_: Set = None,
    json_: Json = False,
) -> None:
    """Prepare if needed, train, score. The same command again goes on where it stopped."""
    from echelon.commands.launching import LaunchOptions, launch
    from echelon.commands.training import TrainOptions

    settings = [*(set_ or []), *_length_settings(steps, epochs)]
    if detach:
        if dry_run or launcher in ("slurm", "kubernetes"):
            raise UserError(
                "--detach trains in the background; it does not go with --dry-run or a site's launcher"
            )
        from echelon.commands.running import detach as run_in_background
        from echelon.commands.training import run_folder

        words = [word for word in sys.argv[1:] if word != "--detach"]
        begun = run_in_background(words, run_folder(recipe, run, settings), messages())
        show(json_, begun, f"training in the background; `echelon watch {begun['run']}` shows it")
        return
    from echelon.commands.clusters import ClusterOptions, on_rented
    from echelon.launch.ssh import find_config

    cluster = ClusterOptions(
        _name_hosts(hosts, hostfile, aws_address),
        num_hosts=num_hosts,
        ssh_config=find_config(ssh_config),
        python=python,
        interface=interface,
        port=port,
        install=install,
        sync=sync,
        container=container,
    )
    if rented is not None:
        cluster = on_rented(rented, cluster)
    if cluster.hosts:
        cluster = cluster.with_workers(workers)
    else:
        cluster.refuse_idle_options()
    how = LaunchOptions(
        launcher=launcher,
        nodes=nodes,
        node_rank=node_rank,
        master=master,
        partition=partition,
        time=time,
        account=account,
        gpus_per_node=gpus_per_node,
        sbatch_options=sbatch_option or [],
        image=image,
        to=to,
        dry_run=dry_run,
    )
    options = TrainOptions(recipe, run, workers, settings, cluster if cluster.hosts else None)
    launched = launch(options, how, messages())
    if launched.is_shown:
        show(json_, launched.result, launched.words)
    raise typer.Exit(launched.exit_status)


def _length_settings(steps: int | None, epochs: float | None) -> list[str]:
    """--steps and --epochs as settings: each replaces the other in the recipe."""
    if steps is not None and epochs is not None:
        raise UserError("--steps and --epochs both say how long to train; use one of them")
    if steps is not None:
        return [f"train.steps={steps}", "train.epochs="]
    return [f"train.epochs={epochs:g}", "train.steps="] if epochs is not None else []


def _name_hosts(
    hosts: str | None, hostfile: Path | None, aws_address: Literal["private", "public"]
) -> list[Host]:
    from echelon.launch.hosts import load_hosts

    if hosts is not None and hostfile is not None:
        raise UserError("--hosts and --hostfile both name hosts; use one of them")
    source = hosts if hosts is not None else hostfile
    return load_hosts(source, aws_address) if source is not None else []


def runs(
    folder: Annotated[Path, typer.Argument(help="Where the runs are.")] = Path("runs"),
    prune: Annotated[
        bool,
        typer.Option(
            "--prune",
            help="Keep only the best, the last and, where the recipe scores it, the average's.",
        ),
    ] = False,
    remove: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="Remove a run, with everything.")
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask before removing.")] = False,
    json_: Json = False,
) -> None:
    """List runs: state, steps, score, size. Prune or remove them."""
    from echelon.commands.listing import prune_runs, summarise_runs
    from echelon.commands.training import remove_run
    from echelon.commands.wording import runs_words
    from echelon.runfolder import RunFolder

    for doomed in [RunFolder(folder / name).require() for name in remove or []]:
        if yes or _confirm(f"Remove {doomed.path} with all its checkpoints?"):
            remove_run(doomed)
    if prune:
        freed = prune_runs(folder)
        messages().print(f"freed {freed / 1e6:,.1f} MB", highlight=False)
    found = summarise_runs(folder)
    show(json_, [dataclasses.asdict(run) for run in found], runs_words(found, folder))


def evaluate(
    run: Run,
    *,
    checkpoint: Which = None,
    split: Annotated[
        Literal["valid", "test"] | None,
        typer.Option(help="Which of the run's own sets to score; test if nothing else is given."),
    ] = None,
    source: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Score another set: the lines to translate, and ...")
    ] = None,
    target: Annotated[
        Path | None, typer.Option(metavar="FILE", help="... their translations to compare with.")
    ] = None,
    test: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=SOURCE,TARGET",
            help="The same with a name; or NAME=PAIRS for a .tsv, .tmx, .po or .mo file. May be repeated.",
        ),
    ] = None,
    images: Annotated[
        list[str] | None,
        typer.Option(
            metavar="[NAME=]FOLDER",
            help="Score pictures in FOLDER/CLASS/*.jpg with a classifier. May be repeated.",
        ),
    ] = None,
    name: Annotated[
        str | None,
        typer.Option(help="What the scores are kept by, in RUN/scores; the file's or folder's if not given."),
    ] = None,
    set_: Set = None,
    json_: Json = False,
) -> None:
    """Score a checkpoint: BLEU, chrF, loss, perplexity; or top-1, top-5, loss."""
    from echelon.commands.given_sets import SetOptions
    from echelon.commands.wording import evaluated_words
    from echelon.runfolder import RunFolder

    folder = RunFolder(run).require()
    from echelon.commands.using import EvaluateOptions
    from echelon.commands.using import evaluate as score

    options = EvaluateOptions(
        checkpoint, split, SetOptions(source, target, name, test or [], images or []), set_ or []
    )
    results = score(folder, options, lambda line: messages().print(line, markup=False, highlight=False))
    words = "\n\n".join(map(evaluated_words, results))
    show(json_, results[0] if len(results) == 1 else {"sets": results}, words)


def translate(
    model: Annotated[Path, typer.Argument(metavar="RUN", help="A run's folder or an exported model's.")],
    *,
    file: Annotated[
        Path | None,
        typer.Option("--input", metavar="FILE", help="Translate this file; stdin where not given."),
    ] = None,
    output: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write to this file; stdout where not given.")
    ] = None,
    checkpoint: Which = None,
    beam: Annotated[int | None, typer.Option(help="Hypotheses followed at a time; 1 is greedy.")] = None,
    length_penalty: Annotated[float | None, typer.Option(help="More favours longer translations.")] = None,
    n_best: Annotated[
        int | None, typer.Option(help="So many translations of each line, as: number, score, text.")
    ] = None,
    scores: Annotated[bool, typer.Option("--scores", help="Number and score before each text.")] = False,
    sample: Annotated[
        float | None, typer.Option(metavar="TEMPERATURE", help="Draw at random; 1: as likely as they are.")
    ] = None,
    top_k: Annotated[int | None, typer.Option(help="Draw among so many of the likeliest tokens.")] = None,
    seed: Annotated[int | None, typer.Option(help="Draw the same again.")] = None,
    prefix: Annotated[str | None, typer.Option(help="What every translation begins with.")] = None,
    min_length: Annotated[int | None, typer.Option(help="In tokens.")] = None,
    max_length: Annotated[int | None, typer.Option(help="In tokens.")] = None,
    sentences: Annotated[
        bool, typer.Option("--sentences", help="Translate each sentence of a line by itself.")
    ] = False,
    alignment: Annotated[
        bool, typer.Option("--alignment", help="With --json: which source piece each target piece looked at.")
    ] = False,
    processes: Annotated[int, typer.Option(min=1, max=256, help="Translate with so many processes.")] = 1,
    json_: Json = False,
) -> None:
    """Translate lines, from stdin to stdout or from file to file, in order."""
    from echelon.commands.translating import Source, TranslateOptions, as_json, as_text, open_output
    from echelon.commands.translating import translate as translate_lines

    if alignment and not json_:
        raise UserError("--alignment is shown with --json only")
    changes = {
        "beam": max(beam or 0, n_best or 0) or None if sample is None else beam,
        "n_best": n_best,
        "length_penalty": length_penalty,
        "temperature": sample,
        "top_k": top_k,
        "seed": seed,
        "min_length": min_length,
        "max_length": max_length,
        "sentences": sentences or None,
        "alignment": alignment or None,
    }
    source = Source(file)
    if source.is_terminal:
        messages().print("Type a sentence and press Enter; Ctrl-D ends.", highlight=False)
    options = TranslateOptions(model, checkpoint, changes, prefix, processes)
    found = translate_lines(options, source, messages())
    with_scores = scores or n_best is not None
    readable = printable if output is None and sys.stdout.isatty() else str
    with open_output(file=output) as writer:
        if json_:
            writer.write(
                to_json({"translations": [as_json(one, with_scores=with_scores) for one in found]}, 2) + "\n"
            )
            return
        for number, one in enumerate(found, start=1):
            writer.write(readable(as_text(number, one, with_scores=with_scores)))
            writer.flush()


def export(
    run: Run,
    *,
    to: Annotated[Path, typer.Option(metavar="DIR", help="The folder to make.")],
    format_: Annotated[
        Literal["safetensors", "ctranslate2", "onnx"], typer.Option("--format", help="What will compute it.")
    ] = "safetensors",
    precision: Annotated[
        Literal["float32", "int8"], typer.Option(help="Of the weights; int8 with ctranslate2 only.")
    ] = "float32",
    edge: Annotated[
        bool, typer.Option("--edge", help="Add a runner script that needs neither torch nor Echelon.")
    ] = False,
    checkpoint: Which = None,
    licence: Annotated[str, typer.Option(help="For the model card, e.g. cc-by-4.0.")] = "unknown",
    force: Annotated[bool, typer.Option("--force", help="Replace an earlier export.")] = False,
    json_: Json = False,
) -> None:
    """Make a folder with a run's model, to carry away; it is compared with PyTorch first."""
    from echelon.commands.wording import exported_words
    from echelon.runfolder import RunFolder

    folder = RunFolder(run).require()
    messages().print("writing and checking ...", highlight=False)
    from echelon.export.exporting import ExportOptions, export_run

    options = ExportOptions(format_, to, precision, checkpoint, edge, licence, force)
    result = export_run(folder, options)
    show(json_, result, exported_words(result))


def classify(
    model: Annotated[Path, typer.Argument(metavar="RUN", help="A run's folder or an exported model's.")],
    pictures: Annotated[list[Path], typer.Argument(metavar="PICTURE...", help="Picture files.")],
    *,
    top: Annotated[int, typer.Option(min=1, help="How many classes to name for each picture.")] = 3,
    checkpoint: Which = None,
    json_: Json = False,
) -> None:
    """Name the likeliest classes of pictures, with probabilities."""
    from echelon.commands.classifying import classify as classify_pictures
    from echelon.commands.wording import classified_words

    found = classify_pictures(model, pictures, checkpoint=checkpoint, top=top)
    show(json_, {"pictures": found}, classified_words(found))


def experiment(
    kind: Annotated[
        Literal["checkpoints", "resume", "workers", "exchanges"],
        typer.Argument(
            help="What checkpoints cost; whether a resumed run is the same; 1, 2 and 4 workers; how workers agree: "
            "all-reduce and others, parameter servers in step and not."
        ),
    ],
    recipe: RecipeFile,
    *,
    steps: Annotated[int, typer.Option(min=2, help="Steps of each training.")] = 2000,
    to: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Where its runs go; experiments/KIND where not given.")
    ] = None,
    workers: Workers = None,
    set_: Set = None,
    json_: Json = False,
) -> None:
    """Do an experiment of a systems course: its trainings, a table and a chart."""
    from echelon.commands.experimenting import ExperimentOptions, run_experiment

    folder = to or Path("experiments") / kind
    options = ExperimentOptions(kind, recipe, steps, folder, workers, set_ or [])
    outcome = run_experiment(options, messages())
    show(json_, outcome.to_json(), outcome.words())


def report(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN...", help="Run folders.")],
    *,
    form: Annotated[
        Literal["text", "markdown", "json", "html"] | None,
        typer.Option("--format", help="How; where not given, as the file's name says, or text."),
    ] = None,
    to: Annotated[Path | None, typer.Option(metavar="FILE", help="Write it here, not to the screen.")] = None,
    reference: Annotated[
        Path | None, typer.Option(metavar="CURVE.csv", help="A known curve: is this run on track?")
    ] = None,
    bundle: Annotated[
        Path | None,
        typer.Option(metavar="FILE.tar.gz", help="Pack answers, charts as PNG, records and logs to hand in."),
    ] = None,
    price: Price = None,
    machine: MachineType = None,
    json_: Json = False,
) -> None:
    """Explain runs: where time, bytes and money went, and what to do."""
    from echelon.commands import reporting

    reports = reporting.make_reports(runs, reporting.hourly_price(price, machine), reference)
    if (to is not None or bundle is not None) and len(reports) > 1:
        raise UserError("--to and --bundle take one run; `echelon compare` puts several into one file")
    chosen = "json" if json_ else reporting.choose_form(form, to)
    if bundle is not None:
        names = reporting.write_bundle(reports[0], bundle)
        messages().print(f"{bundle}: {len(names)} files", highlight=False)
    if to is not None:
        reporting.write_report(to, reporting.render_report(reports[0], chosen))
        messages().print(f"{to}: written", highlight=False)
        return
    if chosen == "json" and len(reports) > 1:
        show(True, [each.to_json() for each in reports], "")
        return
    write_out("\n".join(reporting.render_report(each, chosen) for each in reports))


def compare(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN RUN...", help="Run folders.")],
    *,
    to: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write it here: .md, .html, .json, or text.")
    ] = None,
    price: Price = None,
    machine: MachineType = None,
    json_: Json = False,
) -> None:
    """Put runs side by side: what differs, and what came of it."""
    from echelon.commands import reporting

    comparison = reporting.compare_runs(runs, reporting.hourly_price(price, machine))
    text = reporting.render_comparison(comparison, "json" if json_ else reporting.choose_form(None, to))
    if to is None:
        write_out(text)
        return
    reporting.write_report(to, text)
    messages().print(f"{to}: written", highlight=False)


def serve(
    model: Annotated[Path, typer.Argument(metavar="RUN", help="A run's folder or an exported model's.")],
    *,
    host: Annotated[
        str, typer.Option(help="Where to listen; any other than loopback needs a token.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="0: any free one.")] = 8000,
    token: Annotated[
        str | None,
        typer.Option(envvar="ECHELON_TOKEN", help="What requests must bring; made where one is needed."),
    ] = None,
    engine: Annotated[
        Literal["auto", "ctranslate2", "torch"], typer.Option(help="auto: CTranslate2 where it is installed.")
    ] = "auto",
    precision: Annotated[Literal["float32", "int8"], typer.Option(help="Of CTranslate2.")] = "float32",
    checkpoint: Which = None,
    threads: Annotated[
        int | None, typer.Option(min=1, help="Processor threads; all where not given.")
    ] = None,
    requests_per_second: Annotated[float, typer.Option(min=0.1, help="Of one client.")] = 50.0,
    proxy: Annotated[
        list[str] | None,
        typer.Option(
            metavar="ADDRESS", help="A proxy whose X-Forwarded-For is believed; then a token is needed."
        ),
    ] = None,
    json_: Json = False,
) -> None:
    """A server with a page: translate, or classify pictures, in a browser or over HTTP. Ctrl-C ends it."""
    from echelon.extras import require_extra

    for module in ("fastapi", "prometheus_client", "python_multipart", "uvicorn"):
        require_extra(module, "serve")
    from echelon.commands.wording import served_words
    from echelon.serve.limits import Limits
    from echelon.serve.server import ServeOptions
    from echelon.serve.server import serve as run_server

    def announce(server: dict[str, Any]) -> None:
        show(json_, server, served_words(server))
        sys.stdout.flush()

    limits = Limits(requests_per_second=requests_per_second, burst=max(1, int(4 * requests_per_second)))
    messages().print("loading ...", highlight=False)
    options = ServeOptions(
        model, checkpoint, host, port, token, engine, precision, threads, limits, tuple(proxy or ())
    )
    ended = run_server(options, announce)
    messages().print(f"stopped after {ended['requests']:,} requests", highlight=False)


def benchmark(
    recipe: RecipeFile,
    steps: Annotated[int, typer.Option(min=1, help="Steps to measure, after a few to warm up.")] = 30,
    workers: Workers = None,
    set_: Set = None,
    json_: Json = False,
) -> None:
    """Measure step time, and tokens or images per second."""
    from echelon.commands.benchmarking import benchmark as measure
    from echelon.commands.training import TrainOptions
    from echelon.commands.wording import benchmark_words

    result = measure(TrainOptions(recipe, None, workers, set_ or []), steps, messages())
    show(json_, result, benchmark_words(result))


def lab_up(
    *,
    hosts: Annotated[int, typer.Option(help="How many hosts: host1, host2, ...")] = 4,
    rate: Annotated[
        str, typer.Option(help="Line rate of each host in each direction, e.g. 100mbit.")
    ] = "1gbit",
    cpus: Annotated[
        float | None,
        typer.Option(
            help="CPUs' worth of time for each host; an equal share where not given.", show_default=False
        ),
    ] = None,
    folder: Annotated[
        Path | None,
        typer.Option(help="Where the lab's files go; ./NAME where not given.", show_default=False),
    ] = None,
    name: LabName = "lab",
    json_: Json = False,
) -> None:
    """Make hosts on this machine, and a network between them."""
    from echelon.commands.labs import bring_up, lab_words
    from echelon.lab.plan import LabSpec

    result = bring_up(LabSpec(name, folder, hosts, rate, cpus))
    show(json_, result, lab_words(result))


def lab_down(name: LabName = "lab", json_: Json = False) -> None:
    """Remove the hosts and all that was made for them; what is in the shared folder stays."""
    from echelon.commands.labs import removal_words, take_down

    result = take_down(name)
    show(json_, result, removal_words(result))


def lab_status(name: LabName = "lab", json_: Json = False) -> None:
    """How the hosts are."""
    from echelon.commands.labs import lab_words
    from echelon.lab.lab import Lab

    result = Lab.find(name).status()
    show(json_, result, lab_words(result))


def lab_rate(
    host: LabHost,
    rate: Annotated[str, typer.Argument(metavar="RATE", help="E.g. 100mbit.")],
    name: LabName = "lab",
    json_: Json = False,
) -> None:
    """Change a host's line rate, in both directions."""
    from echelon.commands.labs import host_words
    from echelon.lab.lab import Lab

    result = Lab.find(name).rate(host, rate)
    show(json_, result, host_words(result))


def _lab_verb(verb: HostVerb, summary: str) -> Callable[..., None]:
    def change(host: LabHost, name: LabName = "lab", json_: Json = False) -> None:
        from echelon.commands.labs import change_host, host_words

        result = change_host(name, verb, host)
        show(json_, result, host_words(result))

    change.__doc__ = summary
    return change


def doctor(
    *,
    hosts: Hosts = None,
    hostfile: Hostfile = None,
    ssh_config: SshConfig = None,
    run: Annotated[Path | None, typer.Option(help="Where the run will go; its disk is looked at.")] = None,
    python: HostPython = None,
    interface: Interface = None,
    container: Annotated[
        str | None, typer.Option(metavar="IMAGE", help="Look at the hosts from within a container.")
    ] = None,
    aws_address: AwsAddress = "private",
    json_: Json = False,
) -> None:
    """Is everything ready, here and on the hosts? Exit status 1 if something needs doing."""
    from echelon.commands.doctor import diagnose
    from echelon.commands.readiness import diagnosis_words
    from echelon.launch.findings import Needs
    from echelon.launch.ssh import find_config

    named = _name_hosts(hosts, hostfile, aws_address)
    needs = Needs(run.absolute() if run else None, python=python, interface=interface, container=container)
    messages().print(f"looking at {', '.join(['this machine', *map(str, named)])} ...", highlight=False)
    diagnosis = diagnose(named, find_config(ssh_config), needs)
    show(json_, diagnosis.to_json(), diagnosis_words(diagnosis))
    if not diagnosis.is_fit:
        raise typer.Exit(1)


LAB_VERBS: dict[str, Callable[..., None]] = {
    "up": lab_up,
    "down": lab_down,
    "status": lab_status,
    "cut": _lab_verb("cut", "Take the network and the shared folder away from a host."),
    "heal": _lab_verb("heal", "Give the network and the shared folder back."),
    "kill": _lab_verb("kill", "A power cut: all of a host's processes end at once."),
    "boot": _lab_verb("boot", "Switch a killed host on again."),
    "freeze": _lab_verb("freeze", "Stop all processes of a host."),
    "thaw": _lab_verb("thaw", "Let the processes of a frozen host go on."),
    "rate": lab_rate,
}


def status(run: Run, trust_hosts: TrustHosts = False, json_: Json = False) -> None:
    """How a run stands, here or on its hosts."""
    from echelon.commands.running import get_status
    from echelon.commands.wording import status_words

    result = get_status(_open_run(run, trust_hosts))
    show(json_, result, status_words(result))


def watch(
    run: Run,
    *,
    logs: Annotated[
        bool, typer.Option("--logs", help="Also what workers and agents print, with whose it is.")
    ] = False,
    web: Annotated[bool, typer.Option("--web", help="Serve its page, with charts, until Ctrl-C.")] = False,
    tensorboard: Annotated[
        bool, typer.Option("--tensorboard", help="Serve its curves on this machine meanwhile.")
    ] = False,
    address: Annotated[
        str, typer.Option(help="Where the page listens; beyond this machine it asks for a token.")
    ] = "127.0.0.1",
    port: Annotated[
        int | None,
        typer.Option(min=1024, max=65535, help="Of the page (6010) or of TensorBoard (6006)."),
    ] = None,
    price: Price = None,
    machine: MachineType = None,
    trust_hosts: TrustHosts = False,
    json_: Json = False,
) -> None:
    """Show a run that is going on; Ctrl-C leaves it alone."""
    folder = _open_run(run, trust_hosts)
    if web and tensorboard:
        raise UserError("--web and --tensorboard are two pages; start a second `echelon watch` for the other")
    if web:
        from echelon.commands.reporting import hourly_price
        from echelon.commands.running import watch_page

        result = watch_page(folder, messages(), (address, port or 6010), hourly_price(price, machine))
        show(json_, result, f"{result['run']}: {result['state']} at step {result['step']:,}")
    elif tensorboard:
        from echelon.commands.boards import open_board

        with open_board(folder, port or 6006) as board:
            messages().print(f"TensorBoard: {board}", highlight=False)
            _show_run(folder, json_, may_stop=False, with_logs=logs)
    else:
        _show_run(folder, json_, may_stop=False, with_logs=logs)


def tensorboard(
    run: Run,
    port: Annotated[int, typer.Option(min=1024, max=65535, help="Where it is served.")] = 6006,
    trust_hosts: TrustHosts = False,
    json_: Json = False,
) -> None:
    """Start TensorBoard on a run, until Ctrl-C."""
    from echelon.commands.boards import open_board
    from echelon.commands.running import wait_for_interrupt

    with open_board(_open_run(run, trust_hosts), port) as board:
        show(json_, {"address": board}, f"TensorBoard: {board} (Ctrl-C ends it)")
        sys.stdout.flush()
        wait_for_interrupt()


def attach(run: Run, trust_hosts: TrustHosts = False, json_: Json = False) -> None:
    """Show a run that is going on; Ctrl-C makes it save and leave."""
    _show_run(_open_run(run, trust_hosts), json_, may_stop=True)


def _open_run(run: Path, trust_hosts: bool) -> RunFolder:
    from echelon.cluster.roster import trust_roster
    from echelon.runfolder import RunFolder

    folder = RunFolder(run.absolute())
    if trust_hosts:
        trust_roster(folder)
    return folder


def _show_run(run: RunFolder, as_json: bool, *, may_stop: bool, with_logs: bool = False) -> None:
    from echelon.commands.running import watch as watch_run

    result = watch_run(run, messages(), may_stop=may_stop, with_logs=with_logs)
    show(as_json, result, f"{result['run']}: {result['state']} at step {result['step']:,}")


def stop(
    run: Run,
    now: Annotated[bool, typer.Option("--now", help="End it at once, without saving.")] = False,
    trust_hosts: TrustHosts = False,
    json_: Json = False,
) -> None:
    """Have a run save and leave, wherever it runs."""
    from echelon.commands.running import stop as stop_run
    from echelon.commands.wording import stopped_words

    result = stop_run(_open_run(run, trust_hosts), now=now)
    show(json_, result, stopped_words(result))


ClusterName = Annotated[str, typer.Argument(metavar="NAME", help="The cluster's name; or a job's FILE.TOML.")]
Region = Annotated[str | None, typer.Option(help="Where to look beyond the clusters that are known here.")]
Yes = Annotated[bool, typer.Option("--yes", help="Do not ask.")]


def cloud_up(
    file: Annotated[Path, typer.Argument(metavar="CLUSTER.TOML", help="Which machines; see docs/cloud.md.")],
    recipe: Annotated[Path | None, typer.Option(help="Vertex AI: what to train.")] = None,
    yes: Yes = False,
    json_: Json = False,
) -> None:
    """Rent machines: shows the bill and asks first. The same command again makes what is missing."""
    from echelon.cloud.spec import provider_of
    from echelon.commands.clouds import up, up_words
    from echelon.commands.vertexing import run_job

    if provider_of(file) == "gcp":
        job = run_job(file, recipe, lambda question: yes or _confirm(question, "submits"), messages())
        show(json_, job, f"{job['name']}: {job['state']}; its run is at {job['run']}")
        return
    result = up(file, lambda question: yes or _confirm(question, "rents"), messages())
    show(json_, result, up_words(result))


def cloud_list(region: Region = None, json_: Json = False) -> None:
    """All rented machines, with their age and cost, also those that nobody remembers."""
    from echelon.commands.clouds import list_clusters, list_words, listed_json

    listed = list_clusters(region)
    show(json_, listed_json(listed), list_words(listed))


def cloud_ssh(
    name: ClusterName,
    number: Annotated[int, typer.Argument(min=0, help="Which host, from 0.")] = 0,
    command: Annotated[
        list[str] | None, typer.Argument(help="What to run there; a shell where not given.")
    ] = None,
    forward: Annotated[
        int | None, typer.Option("-L", metavar="PORT", help="This port of the host's answers here too.")
    ] = None,
    json_: Json = False,
) -> None:
    """Log in to a host of a cluster."""
    from echelon.commands.clouds import ssh_command

    line = ssh_command(name, number, forward, command or [])
    if json_:
        show(True, {"command": line}, "")
        return
    try:
        os.execvp(line[0], line)
    except FileNotFoundError:
        raise UserError("there is no `ssh` on this machine; install the OpenSSH client") from None


def cloud_down(name: ClusterName, region: Region = None, yes: Yes = False, json_: Json = False) -> None:
    """End the machines of a cluster and remove all that was made for it; may be repeated."""
    from echelon.commands.clouds import down, down_words
    from echelon.commands.vertexing import cancel_jobs

    if name.endswith(".toml"):
        cancelled = cancel_jobs(Path(name))
        show(json_, {"cancelled": cancelled}, f"cancelled: {', '.join(cancelled) or 'no job was running'}")
        return
    removed = down(name, region, lambda question: yes or _confirm(question, "removes"), messages())
    show(json_, removed, down_words(removed))


def cloud_render(
    target: Annotated[
        Literal["vertex", "ibmcloud", "skypilot"], typer.Argument(metavar="vertex|ibmcloud|skypilot")
    ],
    file: Annotated[Path, typer.Argument(metavar="FILE.TOML", help="Which machines; see docs/cloud.md.")],
    recipe: Annotated[Path | None, typer.Option(help="What to train there.")] = None,
    json_: Json = False,
) -> None:
    """Print what another provider is to be told, and rent nothing."""
    from echelon.commands.rendering import render_for

    text = render_for(target, file, recipe)
    show(json_, {"target": target, "text": text}, text.rstrip("\n"))


def cloud_prices(
    refresh: Annotated[bool, typer.Option("--refresh", help="Ask AWS for today's prices first.")] = False,
    json_: Json = False,
) -> None:
    """The prices that bills and plans count with, and how old they are."""
    import datetime

    from echelon.commands.price_lists import listed_prices, prices_words, refresh_prices, refreshed_words

    today = datetime.date.today()
    if refresh:
        result = refresh_prices(today, messages())
        show(json_, result, refreshed_words(result))
        return
    lists = listed_prices(today)
    show(json_, lists, prices_words(lists))


CLOUD_VERBS: dict[str, Callable[..., None]] = {
    "up": cloud_up,
    "list": cloud_list,
    "ssh": cloud_ssh,
    "down": cloud_down,
    "render": cloud_render,
    "prices": cloud_prices,
}


def convert(
    kind: Annotated[
        Literal["openseq2seq", "ai-platform"],
        typer.Argument(metavar="openseq2seq|ai-platform", help="What FILE is."),
    ],
    file: Annotated[
        Path, typer.Argument(metavar="FILE", help="The old configuration: read, never executed.")
    ],
    to: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write it there; to stdout where not given.")
    ] = None,
    workers: Annotated[
        int | None, typer.Option(min=1, help="openseq2seq: processes or GPUs that it was used with.")
    ] = None,
    json_: Json = False,
) -> None:
    """The configuration of another system as one of ours."""
    if kind == "openseq2seq":
        from echelon.commands.converting import convert_openseq2seq

        converted = convert_openseq2seq(file, workers)
        text, notes = converted.text, converted.notes
    else:
        from echelon.commands.rendering import convert_ai_platform

        if workers is not None:
            raise UserError("--workers is for openseq2seq; an AI Platform configuration says it itself")
        text, notes = convert_ai_platform(file)
    for note in notes:
        messages().print(f"note: {note}", markup=False, highlight=False, soft_wrap=True)
    if to is not None:
        from echelon.runfolder import write_atomically

        write_atomically(to, text)
        messages().print(f"{to}: written", markup=False, highlight=False)
    show(json_, {"text": text, "notes": notes}, "" if to is not None else text.rstrip("\n"))


VERBS: dict[str, Callable[..., None]] = {
    "demo": demo,
    "prepare": prepare,
    "describe": describe,
    "plan": plan,
    "train": train,
    "runs": runs,
    "status": status,
    "watch": watch,
    "attach": attach,
    "tensorboard": tensorboard,
    "stop": stop,
    "evaluate": evaluate,
    "translate": translate,
    "classify": classify,
    "experiment": experiment,
    "report": report,
    "compare": compare,
    "export": export,
    "serve": serve,
    "benchmark": benchmark,
    "doctor": doctor,
    "convert": convert,
}


def _options(
    version: Annotated[
        bool, typer.Option("--version", "-V", help="Show the version and exit.", is_eager=True)
    ] = False,
) -> None:
    """From one recipe file to a trained, evaluated and explained model."""
    if version:
        typer.echo(f"echelon {echelon.__version__}")
        raise typer.Exit


def build_app() -> typer.Typer:
    app = typer.Typer(
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
        context_settings={"help_option_names": ["-h", "--help"]},
        invoke_without_command=True,
    )
    app.callback()(_options)
    for verb, function in VERBS.items():
        app.command(verb)(function)
    lab = typer.Typer(help="A cluster in a box: hosts with their own network and sshd, on one Linux machine.")
    for verb, function in LAB_VERBS.items():
        lab.command(verb)(function)
    app.add_typer(lab, name="lab")
    cloud = typer.Typer(help="Rented machines: up, train, down, with the bill known and nothing left behind.")
    for verb, function in CLOUD_VERBS.items():
        cloud.command(verb)(function)
    app.add_typer(cloud, name="cloud")
    return app


def _confirm(question: str, deed: str = "removes") -> bool:
    """Ask on stderr; UserError where nobody is there to answer."""
    try:
        return typer.confirm(printable(question), err=True)
    except typer.Abort:
        raise UserError(f"nobody answered; --yes {deed} without asking") from None


def _leave_if_interrupted(result: dict[str, Any]) -> None:
    if not result["finished"]:
        raise typer.Exit(1)


def main() -> None:
    """Run a verb. Exit status 0: done; 1: the work failed; 2: the user's mistake."""
    # Before torch is imported: verbs such as translate compute in this process.
    os.environ.update(thread_waiting(os.environ))
    try:
        words = [*sys.argv[2:], "--help"] if sys.argv[1:2] in ([], ["help"]) else sys.argv[1:]
        status = build_app()(words, prog_name="echelon", standalone_mode=False)
        sys.stdout.flush()
    except EchelonError as error:
        fail(str(error), error.exit_status)
    except typer.TyperException as error:
        fail(f"{error.format_message().rstrip('.')}; {_where_help_is()}", 2)
    except BrokenPipeError:
        # The reader of our output has gone; nobody is there to be told, not even by the interpreter at its end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except Exception:
        fail(f"this is a bug in Echelon:\n{traceback.format_exc()}", 1)
    if status == _KEYBOARD_INTERRUPT:
        fail("interrupted", status)
    sys.exit(status or 0)


def _where_help_is() -> str:
    words = [word for word in sys.argv[1:] if not word.startswith("-")]
    groups = {"lab": LAB_VERBS, "cloud": CLOUD_VERBS}
    if words and words[0] in groups:
        verbs = [words[0], *(word for word in words[1:2] if word in groups[words[0]])]
    else:
        verbs = [word for word in words if word in VERBS][:1]
    return f"see `{' '.join(['echelon', *verbs])} --help`"


def fail(message: str, status: int) -> NoReturn:
    """Say what went wrong, on stderr and, under --json, as the document on stdout."""
    if "--json" in sys.argv:
        write_out(to_json({"error": message}) + "\n")
    messages().print(Text.assemble(("error:", "bold red"), f" {message}"), soft_wrap=True)
    sys.exit(status)
