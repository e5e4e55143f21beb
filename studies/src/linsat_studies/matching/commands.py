"""The ``matching`` sub-command: what a user types, and how results and errors look."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from rich.table import Table

from linsat_studies.console import err, one_line_errors, out, progress_bar

if TYPE_CHECKING:
    from linsat_studies.matching.config import MatchingConfig
    from linsat_studies.matching.measurements import Study
    from linsat_studies.matching.source import Source

app = typer.Typer(
    no_args_is_help=True, help="Partial graph matching: keypoints of two objects, outliers on both sides."
)

Network = Literal["pca-gm", "bbgm", "ngm", "all"]
Technique = Literal["sinkhorn", "black-box", "black-box-partial", "layer", "slack-free", "kl", "sinkhorn-layer", "all"]
Backbone = Literal["efficientnet-lite0", "vgg16"]
DataOption = Annotated[
    Path | None,
    typer.Option("--data", help="Folder with prepared keypoints; or LINSAT_DATA. Without, synthetic point sets."),
]
FeaturesOption = Annotated[
    Path | None, typer.Option("--features", help="Folder of the image features; by default features/ in --out.")
]
FolderOption = Annotated[Path, typer.Option("--out", help="Of the study: features/, runs/, results/, index.html.")]
PairsOption = Annotated[
    int, typer.Option("--pairs", min=1, help="Test pairs of each class; all where there are fewer.")
]
ThreadsOption = Annotated[int, typer.Option(min=1, help="Threads.")]

OUT = Path("out/matching")


@app.command()
@one_line_errors
def prepare(
    data: DataOption = None,
    original: Annotated[
        Path | None,
        typer.Option(help="Your copy of VOC 2011 with the Berkeley keypoints: makes --data from it first."),
    ] = None,
    split: Annotated[Path | None, typer.Option(help="With --original: the .npz list of training and test.")] = None,
    features: FeaturesOption = None,
    backbone: Annotated[Backbone, typer.Option(help="Whose features; vgg16 needs torchvision.")] = "efficientnet-lite0",
    folder: FolderOption = OUT,
    threads: ThreadsOption = 1,
) -> None:
    """Compute image features at all keypoints, once. Stop it with Ctrl-C and call it again to continue."""
    import torch

    from linsat_studies.matching.data import load_collection
    from linsat_studies.matching.features import extract

    torch.set_num_threads(threads)
    if original is not None:
        from linsat_studies.matching.original import load_original

        target = folder / "data" if data is None else data
        with progress_bar("crops") as update:
            collection = load_original(original, target, split=split, progress=update)
        out.print(f"prepared: {target}", highlight=False, soft_wrap=True)
    else:
        collection = load_collection(data)
    place = folder / "features" if features is None else features
    with progress_bar("features") as update:
        store = extract(collection, place, backbone=backbone, progress=update)
    out.print(
        f"features of {len(store.rows):,} objects, {store.width} at a keypoint: {place}",
        highlight=False,
        soft_wrap=True,
    )


@app.command()
@one_line_errors
def finetune(
    data: DataOption = None,
    features: FeaturesOption = None,
    steps: Annotated[int | None, typer.Option(min=1, help="Steps of the training, in place of the study's.")] = None,
    folder: FolderOption = OUT,
    threads: ThreadsOption = 1,
) -> None:
    """Train the backbone's upper blocks and compute features from them, in place of prepare. Continues when stopped."""
    from dataclasses import replace

    import torch

    from linsat_studies.matching.cached_maps import cache_maps
    from linsat_studies.matching.data import load_collection
    from linsat_studies.matching.finetune import FinetuneConfig, extract_tuned
    from linsat_studies.matching.finetune import finetune as tune
    from linsat_studies.matching.mirror import with_mirrored
    from linsat_studies.matching.report import BACKBONE

    torch.set_num_threads(threads)
    collection = with_mirrored(load_collection(data))
    with progress_bar("maps of the frozen blocks") as update:
        maps = cache_maps(collection, folder / "maps", progress=update)
    config = FinetuneConfig()
    if steps is not None:
        config = replace(config, plan=replace(config.plan, steps=steps, minutes=None))
    run = tune(config, collection, maps, folder / BACKBONE)
    place = folder / "features" if features is None else features
    with progress_bar("features") as update:
        store = extract_tuned(collection, maps, run, place, progress=update)
    out.print(
        f"features of {len(store.rows):,} objects, {store.name}: {place}",
        highlight=False,
        soft_wrap=True,
    )


@app.command()
@one_line_errors
def train(
    network: Annotated[Network, typer.Option(help="Which network.")] = "all",
    technique: Annotated[Technique, typer.Option(help="What it is trained with.")] = "all",
    seeds: Annotated[
        int | None, typer.Option(min=1, help="How many runs of each, seeds counted from 0; 3, synthetic 1.")
    ] = None,
    data: DataOption = None,
    features: FeaturesOption = None,
    steps: Annotated[int | None, typer.Option(min=1, help="Steps of each run, in place of the study's.")] = None,
    config: Annotated[
        Path | None, typer.Option(help="JSON file with other settings; network, technique and seed stay as above.")
    ] = None,
    heads: Annotated[bool, typer.Option("--phi", help="Beside NGMv2 with the layer, heads that estimate phi.")] = False,
    folder: FolderOption = OUT,
    threads: ThreadsOption = 1,
) -> None:
    """Train networks. Stop it with Ctrl-C and call it again to continue; finished runs are skipped."""
    from dataclasses import replace

    import torch

    from linsat_studies.matching.config import CONTINUED, default_config, read_config
    from linsat_studies.matching.source import demo_config, open_source
    from linsat_studies.matching.train import run_name
    from linsat_studies.matching.train import train as train_run

    torch.set_num_threads(threads)
    source = open_source(data, folder / "features" if features is None else features)
    given = None if config is None else read_config(config)

    def settings(kind: str, goal: str, seed: int) -> MatchingConfig:
        made = (demo_config if source.synthetic else default_config)(kind, goal, seed)
        if given is not None:
            changed, plan = replace(given.network, kind=kind), replace(given.plan, seed=seed)
            made = replace(given, technique=goal, network=changed, plan=plan)
        return made if steps is None else replace(made, plan=replace(made.plan, minutes=None, steps=steps))

    count = seeds if seeds is not None else 1 if source.synthetic else 3
    for seed in range(count):
        for kind, goal in chosen_runs(network, technique):
            initial: Path | None = None
            for name in ("sinkhorn", goal) if goal in CONTINUED else (goal,):
                path = folder / "runs" / run_name(kind, name, seed)
                made = settings(kind, CONTINUED.get(name, name), seed)
                done = train_run(made, source.collection, path, features=source.features, initial=initial)
                initial = done
            if os.environ.get("RANK", "0") == "0":  # torchrun starts several processes; one speaks
                out.print(f"trained: {done}", highlight=False, soft_wrap=True)
            if (kind, goal) == ("ngm", "layer") and heads:
                train_heads(done, source, folder, seed, steps)


def train_heads(run: Path, source: Source, folder: Path, seed: int, steps: int | None) -> None:
    """Train the heads that estimate phi beside a network."""
    from dataclasses import replace

    from linsat_studies.matching.measurements import phi_folder
    from linsat_studies.matching.phi import SIGNALS, PhiConfig, train_phi

    for signal in SIGNALS:
        made = PhiConfig(signal=signal)
        plan = replace(made.plan, seed=seed, steps=made.plan.steps if steps is None else steps)
        place = phi_folder(folder, signal, seed)
        path = train_phi(replace(made, plan=plan), run, source.collection, place, features=source.features)
        if os.environ.get("RANK", "0") == "0":
            out.print(f"trained: {path}", highlight=False, soft_wrap=True)


def chosen_runs(network: str, technique: str) -> list[tuple[str, str]]:
    """Networks and techniques to train: those of table 2, or one combination of a user's own."""
    from linsat_studies.matching.measurements import ROWS

    if network != "all" and technique != "all":
        return [(network, technique)]
    listed = dict.fromkeys((row.network, row.trained) for row in ROWS.values())
    return [one for one in listed if network in ("all", one[0]) and technique in ("all", one[1])]


def open_study(folder: Path, data: Path | None, features: Path | None, pairs: int) -> Study:
    """The study of a folder."""
    from linsat_studies.matching.data import test_pairs
    from linsat_studies.matching.measurements import Study
    from linsat_studies.matching.source import open_source

    source = open_source(data, folder / "features" if features is None else features)
    chosen = test_pairs(source.collection, per_class=pairs)
    return Study(folder, chosen, source.features, source.name, source.image, synthetic=source.synthetic)


@app.command()
@one_line_errors
def evaluate(
    data: DataOption = None,
    features: FeaturesOption = None,
    pairs: PairsOption = 200,
    folder: FolderOption = OUT,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write the table to this file.")] = None,
    threads: ThreadsOption = 1,
) -> None:
    """Evaluate all trained networks of a folder on the test pairs; print table 2."""
    import torch

    from linsat_studies.files import prepare as prepare_files
    from linsat_studies.files import write_json
    from linsat_studies.matching.report import measure_rows, summary

    prepare_files(json_file)
    torch.set_num_threads(threads)
    study = open_study(folder, data, features, pairs)
    table = summary(measure_rows(study, bar=progress_bar))
    if json_file is not None:
        write_json(json_file, {"scope": study.scope, "source": study.source, "table": table})
    print_table(table, study)


def print_table(table: dict[str, Any], study: Study) -> None:
    """Table 2 with ours beside the paper's."""
    from linsat_studies.matching.paper import TABLE_2

    title = f"mean F1, %: {len(study.pairs):,} pairs of {study.source}"
    shown = Table("", "paper (VOC)", "ours", "std. error", "seeds", "worst violation", title=title)
    for name, row in table.items():
        error = "" if row["seeds"] == 1 else f"{100 * row['error']:.2f}"
        stated = f"{TABLE_2[name]:.1f}" if name in TABLE_2 else ""
        shown.add_row(name, stated, f"{100 * row['f1']:.2f}", error, str(row["seeds"]), f"{row['violation']:.1e}")
    out.print(shown)


@app.command()
@one_line_errors
def show(
    left: Annotated[
        str | None, typer.Argument(help="Id of an object; without, a test pair.", show_default=False)
    ] = None,
    right: Annotated[str | None, typer.Argument(help="Id of an object of the same class.", show_default=False)] = None,
    data: DataOption = None,
    features: FeaturesOption = None,
    run: Annotated[
        Path | None, typer.Option(help="A trained network; by default the folder's first layer run.")
    ] = None,
    picture: Annotated[Path, typer.Option("--picture", help="Draw to this .png, .svg or .pdf.")] = OUT / "matching.png",
    folder: FolderOption = OUT,
) -> None:
    """Match the keypoints of two objects and draw them: right matches green, wrong ones red, rejected grey."""
    from linsat_studies.files import prepare as prepare_files
    from linsat_studies.files import write_whole
    from linsat_studies.matching.examples import chosen_pair, drawn, loaded_method, matches_of
    from linsat_studies.matching.pictures import one_matching, picture_kind
    from linsat_studies.matching.source import open_source

    kind = picture_kind(picture)
    prepare_files(picture)
    source = open_source(data, folder / "features" if features is None else features)
    pair = chosen_pair(source.collection, left, right)
    method = loaded_method(folder, run, synthetic=source.synthetic)
    matches = matches_of(method, pair, source.features)
    shown = drawn(source.image, pair, matches)
    figure = one_matching(shown)
    write_whole(picture, lambda file: figure.savefig(file, format=kind, dpi=130))
    out.print(f"{pair.left.id} and {pair.right.id}, {shown.title}", highlight=False, soft_wrap=True)
    for i, j in matches:
        first, second = pair.left.names[i], pair.right.names[j]
        out.print(f"  {first} - {second}{'' if first == second else '  wrong'}", highlight=False, markup=False)
    out.print(f"drawn to {picture}", highlight=False, soft_wrap=True)


@app.command()
@one_line_errors
def report(
    data: DataOption = None,
    features: FeaturesOption = None,
    pairs: PairsOption = 200,
    folder: FolderOption = OUT,
    record: Annotated[Path | None, typer.Option(help="Write the tables' figures here, too.")] = None,
    threads: ThreadsOption = 1,
) -> None:
    """Measure what is missing and write tables 2, 5 and 8 with ours beside them, charts and matchings to a page."""
    import torch

    from linsat_studies.files import prepare as prepare_files
    from linsat_studies.matching.report import write_report

    prepare_files(record)
    torch.set_num_threads(threads)
    study = open_study(folder, data, features, pairs)
    path = write_report(
        study, record=record, bar=progress_bar, note=lambda text: err.print(text, style="yellow", markup=False)
    )
    out.print(f"written: {path}", highlight=False, soft_wrap=True)
