"""The ``portfolio`` sub-command: what a user types, and how results and errors look."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from rich.table import Table

from linsat_studies.console import err, one_line_errors, out, progress_bar

if TYPE_CHECKING:
    from linsat_studies.portfolio.config import Periods, PortfolioConfig, Rules
    from linsat_studies.portfolio.data import Prices
    from linsat_studies.portfolio.measurements import Study

app = typer.Typer(no_args_is_help=True, help="Portfolio allocation: preferred assets hold at least a given share.")

Predictor = Literal["lstm", "stemgnn", "both"]
Technique = Literal["softmax", "two-stage", "layer", "slack-free", "euclidean", "all"]
PricesOption = Annotated[
    Path | None,
    typer.Option("--prices", help="CSV: date,TICKER,...; by default LINSAT_DATA's, else 20 stocks of skfolio."),
]
DataOption = Annotated[Path | None, typer.Option("--data", help="Folder with prices/*.csv; or LINSAT_DATA.")]
PreferOption = Annotated[str | None, typer.Option(help="Preferred tickers, as AAPL,MSFT; by default the paper's six.")]
AtLeastOption = Annotated[float, typer.Option(min=0, max=1, help="Their least share together.")]
SectorsOption = Annotated[Path | None, typer.Option(help="CSV: ticker,sector; without it, clusters by correlation.")]
TrainOption = Annotated[str, typer.Option("--train", help="Training period, FROM:TO.")]
TestOption = Annotated[str, typer.Option("--test", help="Test period, FROM:TO.")]
FolderOption = Annotated[Path, typer.Option("--out", help="Of the study: runs/, results/, index.html.")]
ThreadsOption = Annotated[int, typer.Option(min=1, help="Threads.")]

AT_LEAST, TRAIN, TEST, OUT = 0.5, "2018-01-01:2020-12-30", "2021-03-01:2021-12-30", Path("out/portfolio")


def read_periods(train: str, test: str) -> Periods:
    """The periods that two texts FROM:TO name."""
    from linsat_studies.portfolio.config import Periods

    ends = [*train.split(":"), *test.split(":")]
    if len(ends) != 4:
        raise ValueError(f"periods are {train!r} and {test!r}; expected FROM:TO each, as {TEST}.")
    return Periods(train_from=ends[0], train_to=ends[1], test_from=ends[2], test_to=ends[3])


def read_rules(prefer: str | None, at_least: float) -> Rules:
    """The preference."""
    from linsat_studies.portfolio.config import Rules

    return Rules(tuple(name.strip() for name in (prefer or "").split(",") if name.strip()), at_least)


def read_sector_file(path: Path | None, prices: Prices) -> list[str] | None:
    """Sectors, or None without a file."""
    from linsat_studies.portfolio.constraints import read_sectors

    return None if path is None else read_sectors(path, prices.tickers)


@dataclass(frozen=True)
class Asked:
    """What the options say that commands on training and test periods share."""

    prices: Prices
    rules: Rules
    periods: Periods
    folder: Path


def read_asked(
    prices: PricesOption = None,
    data: DataOption = None,
    prefer: PreferOption = None,
    at_least: AtLeastOption = AT_LEAST,
    train_period: TrainOption = TRAIN,
    test_period: TestOption = TEST,
    folder: FolderOption = OUT,
    threads: ThreadsOption = 1,
) -> Asked:
    """Prices, preference, periods and folder; torch gets the threads."""
    import torch

    from linsat_studies.portfolio.data import find_prices

    torch.set_num_threads(threads)
    return Asked(
        find_prices(prices, data), read_rules(prefer, at_least), read_periods(train_period, test_period), folder
    )


def asking(command: Callable[..., None]) -> Callable[..., None]:
    """A command whose first argument is read from the options of `read_asked`, which come before its own."""
    shared = inspect.signature(read_asked, eval_str=True).parameters
    _, *own = inspect.signature(command, eval_str=True).parameters.values()

    @functools.wraps(command)
    def run(**given: Any) -> None:
        command(read_asked(**{name: given.pop(name) for name in shared}), **given)

    run.__signature__ = inspect.Signature([*shared.values(), *own])  # type: ignore[attr-defined]
    return run


@app.command()
@one_line_errors
@asking
def train(
    asked: Asked,
    predictor: Annotated[Predictor, typer.Option(help="Which network.")] = "both",
    technique: Annotated[Technique, typer.Option(help="What it is trained for.")] = "all",
    seeds: Annotated[int, typer.Option(min=1, help="How many runs of each, seeds counted from 0.")] = 5,
    sectors: SectorsOption = None,
    steps: Annotated[int | None, typer.Option(min=1, help="Steps of each run, in place of the study's.")] = None,
    config: Annotated[
        Path | None, typer.Option(help="JSON file with other settings; predictor, technique and seed stay as above.")
    ] = None,
) -> None:
    """Train networks. Stop it with Ctrl-C and call it again to continue; finished runs are skipped."""
    from dataclasses import replace

    import torch

    from linsat_studies.portfolio.config import PREDICTORS, TRAINED, default_config, read_config
    from linsat_studies.portfolio.train import run_name
    from linsat_studies.portfolio.train import train as train_run
    from linsat_studies.training import process_group, processes

    torch.set_flush_denormal(True)
    labels = read_sector_file(sectors, asked.prices)
    given = None if config is None else read_config(config)
    if given is not None and (asked.rules, asked.periods) != (read_rules(None, AT_LEAST), read_periods(TRAIN, TEST)):
        raise ValueError(
            f"--config {config} states rules and periods, and so do --prefer, --at-least, --train or --test. "
            "Fix: write them in the file, or leave --config out."
        )
    asked.prices.preferred((asked.rules if given is None else given.rules).prefer)

    def settings(kind: str, goal: str, seed: int) -> PortfolioConfig:
        made = default_config(kind, goal, seed)
        if given is not None:
            network, plan = replace(given.network, kind=kind), replace(given.plan, seed=seed)
            made = replace(given, technique=goal, network=network, plan=plan)
        else:
            made = replace(made, rules=asked.rules, periods=asked.periods)
        return made if steps is None else replace(made, plan=replace(made.plan, minutes=None, steps=steps))

    with process_group():  # once for all runs: processes that torchrun started cannot join a second time
        for seed in range(seeds):
            for kind in PREDICTORS if predictor == "both" else (predictor,):
                for goal in TRAINED if technique == "all" else (technique,):
                    place = asked.folder / "runs" / run_name(kind, goal, seed)
                    path = train_run(settings(kind, goal, seed), asked.prices, place, sectors=labels)
                    if processes()[0] == 0:  # of several processes one speaks
                        out.print(f"trained: {path}", highlight=False, soft_wrap=True)


@app.command()
@one_line_errors
@asking
def search(
    asked: Asked,
    predictor: Annotated[Predictor, typer.Option(help="Which network.")] = "both",
    technique: Annotated[Technique, typer.Option(help="What it is trained for.")] = "all",
    fold: Annotated[
        list[str] | None, typer.Option(help="Day that parts learning from validation; give it several times.")
    ] = None,
    seeds: Annotated[int, typer.Option(min=1, help="Runs of each candidate, seeds counted from 0.")] = 3,
    steps: Annotated[
        list[int] | None, typer.Option(min=1, help="Lengths to try at the study's rate, in place of its candidates.")
    ] = None,
) -> None:
    """Try lengths and rates of training on windows held out of the training period; the test period is not read."""
    import torch

    from linsat_studies.portfolio.config import PREDICTORS, TRAINED, default_config
    from linsat_studies.portfolio.search import FOLDS, Candidate
    from linsat_studies.portfolio.search import search as try_candidates

    torch.set_flush_denormal(True)
    shown = Table("predictor", "technique", "candidate", "validation Sharpe", "")
    for kind in PREDICTORS if predictor == "both" else (predictor,):
        for goal in TRAINED if technique == "all" else (technique,):
            rate = default_config(kind, goal).plan.rate
            found = try_candidates(
                asked.prices,
                asked.folder / "search",
                predictor=kind,
                technique=goal,
                rules=asked.rules,
                periods=asked.periods,
                candidates=tuple(Candidate(rate, count) for count in steps) if steps else None,
                folds=tuple(fold) if fold else FOLDS,
                seeds=seeds,
                note=lambda text: err.print(text, highlight=False, soft_wrap=True),
            )
            for name, tried in found["candidates"].items():
                shown.add_row(kind, goal, name, f"{tried['mean']:.3f}", "chosen" if name == found["chosen"] else "")
    out.print(shown)


def open_study(asked: Asked, sectors: list[str] | None = None) -> Study:
    """The study of a folder."""
    from linsat_studies.portfolio.measurements import Study

    return Study(asked.folder, asked.prices, asked.rules, asked.periods, sectors)


@app.command()
@one_line_errors
@asking
def evaluate(
    asked: Asked,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write the table to this file.")] = None,
) -> None:
    """Evaluate all trained networks of a folder in the test period; print table 3 and differences with intervals."""
    from linsat_studies.files import prepare, write_json
    from linsat_studies.portfolio.findings import year_findings
    from linsat_studies.portfolio.report import measure_runs, summary
    from linsat_studies.portfolio.walk_forward import PLAIN

    prepare(json_file)
    study = open_study(asked)
    table = summary(measure_runs(study, bar=progress_bar))
    for name, preferred in PLAIN.values():
        study.baseline(name, preferred)
    found = year_findings(study)
    if json_file is not None:
        write_json(json_file, {"scope": study.scope, "table": table, "daily": found})
    print_table(table)
    for predictor, daily in found.items():
        print_differences(f"{predictor}, one daily series", daily["differences"])


def print_table(table: dict[str, Any]) -> None:
    """Table 3 with ours beside the paper's."""
    from linsat_studies.portfolio.charts import NAMES
    from linsat_studies.portfolio.paper import TABLE_3

    shown = Table("predictor", "technique", "paper", "ours", "std. error", "seeds", "worst violation")
    for predictor, rows in table.items():
        for technique, row in rows.items():
            stated = TABLE_3.get((predictor, technique))
            violation = row["simplex_violation" if technique == "softmax" else "violation"]
            figures = (f"{row['mean']:.3f}", f"{row['error']:.3f}", f"{row['seeds']:.0f}", f"{violation:.1e}")
            shown.add_row(NAMES[predictor], technique, "" if stated is None else f"{stated:.2f}", *figures)
    out.print(shown)


def print_differences(title: str, rows: list[dict[str, Any]]) -> None:
    """Differences of Sharpe ratios with their intervals."""
    shown = Table("Sharpe ratio of", "less that of", "difference", "95 % interval", title=title)
    for row in rows:
        shown.add_row(row["of"], row["less"], f"{row['value']:+.2f}", f"{row['low']:+.2f} to {row['high']:+.2f}")
    out.print(shown)


@app.command()
@one_line_errors
def walk_forward(
    prices: PricesOption = None,
    data: DataOption = None,
    prefer: PreferOption = None,
    at_least: AtLeastOption = AT_LEAST,
    cuts: Annotated[int, typer.Option(min=1, help="How often networks are trained anew.")] = 6,
    first: Annotated[int, typer.Option(min=1, help="Trading days before the first cut.")] = 300,
    until: Annotated[str, typer.Option(help="Last day held; later prices are not read.")] = "2020-12-30",
    seeds: Annotated[int, typer.Option(min=1, help="Networks of an ensemble.")] = 2,
    batch: Annotated[int | None, typer.Option(min=1, help="Windows a step, in place of the study's.")] = None,
    steps: Annotated[int | None, typer.Option(min=1, help="Steps of each run, in place of the study's.")] = None,
    predictor: Annotated[Literal["stemgnn", "lstm"], typer.Option(help="Which network.")] = "stemgnn",
    softmax_weight: Annotated[
        float, typer.Option(min=0, help="Of a softmax's loss in those of the layers; 1 is the paper's sum.")
    ] = 0.0,
    sets: Annotated[int, typer.Option(min=1, help="Random preferred sets of the placebo.")] = 200,
    folder: FolderOption = OUT / "walk_forward",
    record: Annotated[Path | None, typer.Option(help="Write the record here; by default record.json in --out.")] = None,
    threads: ThreadsOption = 1,
) -> None:
    """Train networks at several cuts of the training period; print paired differences with intervals, and the placebo.

    Stop it with Ctrl-C and call it again to continue.
    """
    import torch

    from linsat_studies.files import prepare, write_json
    from linsat_studies.portfolio.data import find_prices
    from linsat_studies.portfolio.findings import findings
    from linsat_studies.portfolio.walk_forward import Protocol, WalkForward

    path = folder / "record.json" if record is None else record
    prepare(path)
    torch.set_num_threads(threads)
    torch.set_flush_denormal(True)
    protocol = Protocol(
        cuts=cuts,
        first=first,
        until=until,
        seeds=seeds,
        batch=batch,
        steps=steps,
        predictor=predictor,
        softmax_weight=softmax_weight,
    )
    walk = WalkForward(folder, find_prices(prices, data), read_rules(prefer, at_least), protocol)
    walk.run(note=lambda text: err.print(text, highlight=False, soft_wrap=True))
    with progress_bar("placebo") as update:
        found = findings(walk, sets=sets, progress=update)
    write_json(path, found)
    print_differences(f"{found['scope']['days'][0]} to {found['scope']['days'][1]}", found["differences"])
    print_differences(f"mean of {found['placebo']['sets']} random preferred sets", found["placebo"]["differences"])
    out.print(f"written: {path}", highlight=False, soft_wrap=True)


@app.command()
@one_line_errors
@asking
def report(
    asked: Asked,
    sectors: SectorsOption = None,
    record: Annotated[Path | None, typer.Option(help="Write further rules and times to this file, too.")] = None,
) -> None:
    """Measure what is missing and write table 3 with ours beside it, times, baselines, rules and charts to a page."""
    from linsat_studies.files import prepare
    from linsat_studies.portfolio.report import write_report

    prepare(record)
    study = open_study(asked, read_sector_file(sectors, asked.prices))
    path = write_report(
        study, record=record, bar=progress_bar, note=lambda text: err.print(text, style="yellow", markup=False)
    )
    out.print(f"written: {path}", highlight=False, soft_wrap=True)


@app.command()
@one_line_errors
def allocate(
    run: Annotated[
        Path, typer.Argument(help="A trained network's last.pt, of the layer or softmax.", show_default=False)
    ],
    prices: PricesOption = None,
    data: DataOption = None,
    show: Annotated[int, typer.Option(min=1, help="How many of the largest weights to print.")] = 15,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write all weights to this file.")] = None,
) -> None:
    """Weights for the days after the last price, from a trained network and the prices it was trained on."""
    from linsat_studies.files import prepare, write_json
    from linsat_studies.portfolio.data import find_prices
    from linsat_studies.portfolio.evaluate import newest_weights

    prepare(json_file)
    table = find_prices(prices, data)
    weights = newest_weights(run, table)
    if json_file is not None:
        write_json(json_file, {"after": str(table.dates[-1]), "weights": weights})
    shown = Table("asset", "weight")
    for name, weight in list(weights.items())[:show]:
        shown.add_row(name, f"{weight:.2%}")
    out.print(shown)
