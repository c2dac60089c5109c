"""The command line. Thin: it reads arguments, calls the package, and turns mistakes into one clear line."""

from __future__ import annotations

import contextlib
import errno
import functools
import os
import pathlib
import re
import shlex
import shutil
import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import Annotated, Any, NamedTuple

import typer

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # help pages need no rich, which takes longer to load than all the rest
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Train networks that choose an operation, and see which method really selects the right one.",
)

_LISTS = (
    "--tasks",
    "--axes",
    "--learners",
    "--problem",
    "--problems",
    "--estimators",
)  # options that take several values


# What the disk says, rather than a mistake of ours.
_DISK = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EROFS, errno.EACCES)


_COMPARISON = "summary.json, summary.md, curves.csv and report.html"  # what `compare` and `report` write


class Mistake(Exception):
    """Something the user can put right; shown as one line, exit status 2."""


def _known(option: str, names: Iterable[str] | None, valid: Iterable[str]) -> list[str] | None:
    """Splits at commas and checks names; None stays None."""
    from opselect_envs.naming import nearest  # the package brings gymnasium, which --help need not wait for

    if names is None:
        return None
    valid, found = list(valid), [n for part in names for n in part.split(",") if n]
    for name in found:
        if name not in valid:
            folded = {v.lower(): v for v in valid}
            near = nearest(name.lower(), folded)
            raise Mistake(f"{option}: unknown name {name!r}; did you mean {folded[near]!r}? Known: {', '.join(valid)}")
    if not found:
        raise Mistake(f"{option}: needs at least one name; known: {', '.join(valid)}")
    return list(dict.fromkeys(found))


def _one(option: str, name: str, valid: Iterable[str]) -> None:
    """Checks the name of an option that takes one."""
    if "," in name:
        raise Mistake(f"{option}: takes one name, got {name!r}")
    _known(option, [name], valid)


def _within(option: str, value: int | None, least: int = 1, most: int = 2**31 - 1) -> None:
    if value is not None and not least <= value <= most:
        nearest = min(max(value, least), most)
        raise Mistake(f"{option}: must be from {least} to {most}, got {value}; the nearest valid value is {nearest}")


def _load_tensorflow(console: Any) -> None:
    with console.status("starting TensorFlow (a few seconds)"):
        try:
            import opselect._tensorflow  # noqa: F401
        except ImportError as error:
            raise Mistake(str(error)) from error


def _console(quiet: bool = False) -> Any:
    from rich.console import Console

    return Console(quiet=quiet)


# How a command that takes long is watched.
_Quiet = Annotated[bool, typer.Option("--quiet", help="Print nothing but what went wrong.")]
_JsonLines = Annotated[bool, typer.Option("--json-lines", help="Print a line of JSON for whatever happens, for logs.")]
_TensorBoard = Annotated[bool, typer.Option("--tensorboard", help="Write event files to OUT/tensorboard too.")]

# Where the runs of a command are run.
_EngineName = Annotated[
    str, typer.Option("--engine", help="`local`, or `ray`: spread over a Ray cluster, or this machine's cores.")
]
_Address = Annotated[
    str | None, typer.Option(help="A running Ray cluster, as `host:6379` or `auto`; default: one on this machine.")
]
_SeedsPerCell = Annotated[
    int | None, typer.Option(help="Train so many seeds side by side, in cells of their own; default: all.")
]


def _engine(name: str, address: str | None, seeds_per_cell: int | None = None) -> Any:
    """What `_run` runs configurations with: a function like `run_all`."""
    _one("--engine", name, ("local", "ray"))
    _within("--seeds-per-cell", seeds_per_cell, most=1000)
    if name == "local" and address is not None:
        raise Mistake(f"--address: {address!r} needs --engine ray")
    if name == "ray":
        from opselect.experiments.cluster import ClusterError, check_available

        try:
            check_available()  # before TensorFlow is waited for
        except ClusterError as error:
            raise Mistake(f"--engine ray: {error}") from error

    def engine(*arguments: Any) -> Any:
        from opselect.experiments.blocks import run_in_blocks
        from opselect.experiments.cluster import ClusterError, run_on_ray
        from opselect.experiments.many import run_all

        chosen = functools.partial(run_on_ray, address=address) if name == "ray" else run_all
        try:
            return run_in_blocks(*arguments, seeds_per_cell=seeds_per_cell, engine=chosen)
        except ClusterError as error:
            raise Mistake(f"--engine ray: {error}") from error

    return engine


def _watcher(console: Any, quiet: bool, json_lines: bool) -> Any:
    """What shows how runs get on."""
    from opselect.experiments.watching import Bars, Lines, Silent

    return Lines() if json_lines else Silent() if quiet else Bars(console)


class _Outcome(NamedTuple):
    results: Sequence[Any]
    failures: dict[tuple[str, str], str]
    problems: list[str]
    """A sentence for each thing that went wrong."""
    interrupted: bool


def _run(
    console: Any,
    runs: Sequence[Any],
    out: pathlib.Path,
    quiet: bool,
    json_lines: bool,
    tensorboard: bool,
    engine: Any,
) -> _Outcome:
    """Runs what is not done yet; Ctrl-C ends it with what is."""
    from opselect.experiments.many import Interrupted
    from opselect.experiments.watching import Several, TensorBoard

    shown = _watcher(console, quiet, json_lines)
    watcher = Several([shown, TensorBoard(out / "tensorboard")]) if tensorboard else shown
    with _noted(console) as notes:
        try:
            results, failures = engine(runs, out / "cells", watcher)
        except Interrupted as error:
            return _Outcome(error.results, error.failures, [*error.failures.values(), *notes], True)
    return _Outcome(results, failures, [*failures.values(), *notes], False)


@contextlib.contextmanager
def _noted(console: Any) -> Iterator[list[str]]:
    """What the package's log says, shown at once and collected."""
    import logging

    notes: list[str] = []

    class Handler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            notes.append(record.getMessage())
            if console.quiet:
                print(f"note: {notes[-1]}", file=sys.stderr)
            else:
                console.print(f"note: {notes[-1]}", highlight=False, markup=False, soft_wrap=True)

    log, handler = logging.getLogger("opselect"), Handler()
    log.addHandler(handler)
    try:
        yield notes
    finally:
        log.removeHandler(handler)


def _tell_failures(console: Any, outcome: _Outcome) -> None:
    for reason in outcome.failures.values():
        console.print(f"note: {reason}", highlight=False, markup=False, soft_wrap=True)


def _interrupted(console: Any, done: int, runs: int) -> None:
    """The last word after Ctrl-C, below the table of what is done."""
    console.print(f"interrupted: {done} of {runs} runs are done; run the same command again to continue")
    raise typer.Exit(130)


@app.command()
def compare(
    tasks: Annotated[list[str] | None, typer.Option(help="Tasks by name (see `opselect tasks`); default: all.")] = None,
    learners: Annotated[
        list[str] | None, typer.Option(help="Learners by name (see `opselect learners`); default: the headline seven.")
    ] = None,
    seeds: Annotated[int | None, typer.Option(help="How many seeds train side by side.")] = None,
    steps: Annotated[int | None, typer.Option(help="Optimiser steps, instead of the preset's.")] = None,
    seed: Annotated[int, typer.Option(help="The first seed; the others follow it.")] = 0,
    quick: Annotated[bool, typer.Option("--quick", help="Four learners, 2 seeds, at most a minute.")] = False,
    full: Annotated[bool, typer.Option("--full", help="Every learner, 10 seeds, to convergence; an hour.")] = False,
    out: Annotated[pathlib.Path, typer.Option(help="Where results are kept and continued.")] = pathlib.Path(
        "runs/compare"
    ),
    quiet: _Quiet = False,
    json_lines: _JsonLines = False,
    tensorboard: _TensorBoard = False,
    engine: _EngineName = "local",
    address: _Address = None,
    seeds_per_cell: _SeedsPerCell = None,
) -> None:
    """Train learners on the same tasks and compare their choices.

    Prints tables and a verdict, and writes summary.json, summary.md, curves.csv and report.html. Run it again to
    continue what was cut off; what is complete is not run again.
    """
    from opselect_envs.tasks import TASKS

    if quick and full:
        raise Mistake("--quick and --full exclude each other")
    _within("--seeds", seeds, most=1000)
    _within("--steps", steps)
    _within("--seed", seed, least=0)
    task_names = _known("--tasks", tasks, TASKS)
    _writable(out)
    chosen_engine = _engine(engine, address, seeds_per_cell)
    console = _console(quiet or json_lines)
    _load_tensorflow(console)
    from opselect.comparison import summarise
    from opselect.experiments.config import PRESETS, cells
    from opselect.experiments.machine import versions
    from opselect.learners import LEARNERS
    from opselect.report import print_table, write_files

    preset = PRESETS["quick" if quick else "full" if full else "default"]
    runs, inapplicable = cells(
        task_names, _known("--learners", learners, LEARNERS), preset, seeds=seeds, first_seed=seed, steps=steps
    )
    outcome = _run(console, runs, out, quiet, json_lines, tensorboard, chosen_engine)
    if outcome.interrupted:
        if outcome.results:
            print_table(summarise(outcome.results), console)
        _interrupted(console, len(outcome.results), len(runs))
    command = shlex.join(["opselect", *sys.argv[1:]])
    reasons = inapplicable | outcome.failures
    summary = write_files(out, outcome.results, reasons, command, versions(), outcome.problems)
    print_table(summary, console)
    _tell_failures(console, outcome)
    console.print(f"Wrote {_COMPARISON} to {out}", highlight=False, soft_wrap=True)


@app.command()
def report(
    directories: Annotated[
        list[pathlib.Path], typer.Argument(metavar="DIR", help="What `opselect compare --out DIR` wrote to.")
    ],
    out: Annotated[
        pathlib.Path | None, typer.Option(help="Where the files go; default: DIR, or runs/report for several.")
    ] = None,
) -> None:
    """Write a comparison's files anew from its results, or merge several comparisons.

    Trains nothing and starts no TensorFlow. Results of the same task and learner with other seeds are put together; the
    report shows a gradients.json that lies in one of the directories. What is damaged or foreign is named and skipped.
    """
    from opselect.report import print_table, rebuild

    if out is None:
        out = directories[0] if len(directories) == 1 else pathlib.Path("runs/report")
    _writable(out)
    console = _console()
    try:
        summary, found = rebuild(directories, out, shlex.join(["opselect", *sys.argv[1:]]))
    except FileNotFoundError as error:
        raise Mistake(f"DIR: {error}") from error
    print_table(summary, console)
    for note in [*found.problems, *found.notes]:
        console.print(f"note: {note}", highlight=False, markup=False, soft_wrap=True)
    console.print(f"Wrote {_COMPARISON} to {out}", highlight=False, soft_wrap=True)


@app.command()
def suite(
    learners: Annotated[
        list[str] | None, typer.Option(help="Learners by name (see `opselect learners`); default: five, or three.")
    ] = None,
    axes: Annotated[list[str] | None, typer.Option(help="Axes of difficulty by name; default: all.")] = None,
    seeds: Annotated[int | None, typer.Option(help="How many seeds train side by side.")] = None,
    steps: Annotated[int | None, typer.Option(help="Optimiser steps, instead of the preset's.")] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="One challenge per axis, three learners; at most three minutes.")
    ] = False,
    beside: Annotated[
        list[pathlib.Path] | None,
        typer.Option(
            help="Other agents' scores beside: lines of JSON with agent, challenge, score, low, high; repeatable."
        ),
    ] = None,
    out: Annotated[pathlib.Path, typer.Option(help="Where results are kept and continued.")] = pathlib.Path(
        "runs/suite"
    ),
    quiet: _Quiet = False,
    json_lines: _JsonLines = False,
    tensorboard: _TensorBoard = False,
    engine: _EngineName = "local",
    address: _Address = None,
    seeds_per_cell: _SeedsPerCell = None,
) -> None:
    """Find out what a learner can't do: the capability suite.

    Prints a table and what it shows, and writes suite.json and suite.html with a radar plot. Run it again to continue
    what was cut off.
    """
    from opselect_envs.challenges import AXES

    _within("--seeds", seeds, most=1000)
    _within("--steps", steps)
    chosen = _known("--axes", axes, AXES)
    _writable(out)
    chosen_engine = _engine(engine, address, seeds_per_cell)
    from opselect.comparison.suite import AgentFileError, read_agents, summarise_suite

    console = _console(quiet or json_lines)
    _load_tensorflow(console)
    from opselect.experiments.machine import versions
    from opselect.experiments.suite import relaxed, suite_cells
    from opselect.learners import LEARNERS

    try:
        agents = read_agents(*(beside or ()), taken=LEARNERS)
    except AgentFileError as error:
        raise Mistake(f"--beside: {error}") from error
    from opselect.report.suite import print_suite, write_suite

    runs, inapplicable = suite_cells(
        chosen, _known("--learners", learners, LEARNERS), quick=quick, seeds=seeds, steps=steps
    )
    outcome = _run(console, runs, out, quiet, json_lines, tensorboard, chosen_engine)
    reasons = inapplicable | outcome.failures
    kinds = relaxed(list(dict.fromkeys([*(run.learner.name for run in runs), *(learner for _, learner in reasons)])))
    summary = summarise_suite(outcome.results, reasons, kinds, agents)
    if outcome.interrupted:
        print_suite(summary, console)
        _interrupted(console, len(outcome.results), len(runs))
    write_suite(out, summary, shlex.join(["opselect", *sys.argv[1:]]), versions(), outcome.problems)
    print_suite(summary, console)
    _tell_failures(console, outcome)
    console.print(f"Wrote suite.json and suite.html to {out}", highlight=False, soft_wrap=True)


@app.command()
def tune(
    task: Annotated[str, typer.Argument(metavar="TASK", help="A task by name (see `opselect tasks`).")],
    learner: Annotated[str, typer.Argument(metavar="LEARNER", help="A learner by name (see `opselect learners`).")],
    trials: Annotated[int, typer.Option(help="How many settings are tried; the first are the learner's own.")] = 20,
    seeds: Annotated[int, typer.Option(help="How many seeds each is trained with.")] = 3,
    steps: Annotated[int | None, typer.Option(help="Optimiser steps; default: those of `opselect compare`.")] = None,
    seed: Annotated[int, typer.Option(help="The search's own seed.")] = 0,
    out: Annotated[
        pathlib.Path | None, typer.Option(help="Where results are kept and continued; default: runs/tune/TASK-LEARNER.")
    ] = None,
    quiet: _Quiet = False,
    json_lines: _JsonLines = False,
    engine: _EngineName = "local",
    address: _Address = None,
) -> None:
    """Search a learner's settings on a task.

    Learning rate, entropy bonus, temperature, clipping, samples and the network's size, as far as the learner has
    them, for the best hard score at the end; all trials may evaluate the reward equally often. Prints the best settings
    beside the learner's own, both judged on fresh seeds, and writes tune.json. Run it again to continue what was cut
    off, or with more trials.
    """
    from opselect_envs.tasks import TASKS

    _one("TASK", task, TASKS)
    for option, value, most in (("--trials", trials, 10_000), ("--seeds", seeds, 1000), ("--steps", steps, 2**31 - 1)):
        _within(option, value, most=most)
    _within("--seed", seed, least=0)
    out = pathlib.Path("runs/tune") / f"{task}-{learner}" if out is None else out
    _writable(out)
    chosen_engine = _engine(engine, address)
    console = _console(quiet or json_lines)
    _load_tensorflow(console)
    from opselect.experiments.cluster import ClusterError, connected
    from opselect.experiments.many import Interrupted
    from opselect.experiments.tuning import TuneError, check_available, tune
    from opselect.learners import LEARNERS

    _one("LEARNER", learner, LEARNERS)
    why_not = LEARNERS[learner].why_not(TASKS[task])
    if why_not is not None:
        raise Mistake(f"LEARNER: {learner!r} does not apply to {task}: {why_not}")
    try:
        check_available()
        with contextlib.ExitStack() as stack:
            stack.enter_context(_noted(console))
            if engine == "ray":
                stack.enter_context(connected(address))
            tuning = tune(
                task,
                TASKS[task],
                LEARNERS[learner],
                out,
                trials=trials,
                seeds=seeds,
                steps=steps,
                seed=seed,
                engine=chosen_engine,
                watcher=functools.partial(_watcher, console, quiet, json_lines),
            )
    except (TuneError, ClusterError) as error:
        raise Mistake(str(error)) from error
    except Interrupted:
        console.print("interrupted; run the same command again to continue")
        raise typer.Exit(130) from None
    _print_tuning(console, tuning)
    console.print(f"Wrote tune.json to {out}", highlight=False, soft_wrap=True)


def _print_tuning(console: Any, tuning: Any) -> None:
    from rich.table import Table

    table = Table("setting", "default", "best", box=None, header_style="bold")
    for name, value in tuning.default.settings.items():
        table.add_row(name, f"{value:g}", f"{tuning.best.settings[name]:g}")
    table.add_row("steps", str(tuning.default.steps), str(tuning.best.steps), end_section=True)
    for what, default, best in tuning.scores():
        table.add_row(what, *("-" if score is None else f"{score:.4f}" for score in (default, best)))
    console.print(table)
    console.print(
        f"note: the best of {len(tuning.trials)} trials looks better than it is on the seeds it was chosen on; the"
        " fresh seeds are the fair judge",
        highlight=False,
        soft_wrap=True,
    )
    console.print(tuning.verdict(), highlight=False, soft_wrap=True)
    console.print(tuning.code, highlight=False, markup=False, soft_wrap=True, end="")


@app.command()
def train(
    task: Annotated[str | None, typer.Option(help="One of the package's tasks (see `opselect tasks`).")] = None,
    env: Annotated[
        str | None, typer.Option(help="Any gymnasium environment with a Discrete action space, as `id` or `module:id`.")
    ] = None,
    learner: Annotated[str, typer.Option(help="A learner by name (see `opselect learners`).")] = "reinforce-rloo",
    steps: Annotated[
        int | None, typer.Option(help="Optimiser steps (task), or environment steps (environment).")
    ] = None,
    seed: Annotated[int, typer.Option(help="The seed.")] = 0,
    out: Annotated[pathlib.Path | None, typer.Option(help="Save the trained policy as a .keras file.")] = None,
) -> None:
    """Train one learner on a task or on a gymnasium environment.

    The last line says how well the greedy policy does: `score` (0 random, 1 oracle) on a task, or `return`, the mean
    over 100 evaluation episodes, on an environment.
    """
    if (task is None) == (env is None):
        raise Mistake("give either --task or --env")
    _within("--steps", steps)
    _within("--seed", seed, least=0)
    if out is not None:
        if out.suffix != ".keras":
            raise Mistake(f"--out: must end in .keras, got {out.name!r}; the nearest is {out.stem + '.keras'!r}")
        if out.is_dir():
            raise Mistake(f"--out: {out} is a folder")
        _writable(out.parent)
    if task is not None:
        from opselect_envs.tasks import TASKS

        _one("--task", task, TASKS)
    console = _console()
    _load_tensorflow(console)
    from opselect.learners import LEARNERS

    _one("--learner", learner, LEARNERS)
    if task is not None:
        _train_task(console, task, learner, steps, seed, out)
    else:
        _train_environment(console, str(env), learner, steps, seed, out)


def _train_task(console: Any, task: str, learner: str, steps: int | None, seed: int, out: pathlib.Path | None) -> None:
    import tempfile

    from opselect.experiments.config import PRESETS, cells
    from opselect.experiments.many import run_all
    from opselect.experiments.run import POLICY
    from opselect.experiments.watching import Bars

    runs, inapplicable = cells([task], [learner], PRESETS["default"], seeds=1, first_seed=seed, steps=steps)
    for reason in inapplicable.values():
        raise Mistake(f"--learner: {learner!r} does not apply to {task}: {reason}")
    with tempfile.TemporaryDirectory() as folder:
        results, failures = run_all(runs, pathlib.Path(folder), Bars(console))
        for reason in failures.values():
            raise Mistake(reason)
        if out is not None:
            out.parent.mkdir(parents=True, exist_ok=True)
            shutil.move(pathlib.Path(folder) / runs[0].folder / POLICY, out)
    (result,) = results
    console.print(f"optimal {100 * result.optimal[0, -1]:.1f}% of held-out episodes", highlight=False)
    console.print(f"score {result.hard[0, -1]:.4f}", highlight=False)


def _train_environment(
    console: Any, env: str, learner: str, steps: int | None, seed: int, out: pathlib.Path | None
) -> None:
    from opselect.learners.base import TrainingDivergedError
    from opselect.learners.environment import train_environment
    from opselect.learners.episodes import EnvironmentMismatchError

    try:
        trained = train_environment(env, learner, seed=seed, steps=steps, console=console)
    except (EnvironmentMismatchError, TrainingDivergedError) as error:
        raise Mistake(str(error)) from error
    if out is not None:
        out.parent.mkdir(parents=True, exist_ok=True)
        trained.policy.save(out)
    console.print(f"return {trained.evaluate(episodes=100, seed=seed + 10_000):.1f}", highlight=False)


@app.command()
def tasks() -> None:
    """List the standard tasks."""
    from rich.table import Table

    from opselect_envs.tasks import TASKS

    table = Table("task", "operations", "decisions", "oracle", "random", "rule", box=None, header_style="bold")
    for name, task in TASKS.items():
        expected = task.expected_rewards()
        indices = task.rule_indices()
        rule = "the target is shown" if indices is None else " ".join(task.names[i] for i in indices)
        table.add_row(
            name,
            " ".join(task.names),
            str(task.horizon),
            f"{expected['oracle']:.3f}",
            f"{expected['random']:.3f}",
            rule,
        )
    _console().print(table)


@app.command()
def learners() -> None:
    """List the learners."""
    console = _console()
    _load_tensorflow(console)
    from rich.table import Table

    from opselect.learners import LEARNERS

    table = Table("learner", "what it does", "needs a gradient of the reward", box=None, header_style="bold")
    for name, learner in LEARNERS.items():
        table.add_row(name, learner.summary, "yes" if learner.estimator.needs_relaxation else "no")
    console.print(table)


@app.command()
def envs() -> None:
    """List the gymnasium environments."""
    from rich.table import Table

    from opselect_envs.challenges import AXES, CHALLENGES
    from opselect_envs.tasks import TASKS

    posed = {f"opselect/{name}-v0": (task, "a standard task") for name, task in TASKS.items()}
    posed |= {c.id: (c.task, f"{c.level} {AXES[c.axis].level}") for c in CHALLENGES.values()}
    table = Table(box=None, header_style="bold", padding=(0, 2, 0, 0))
    table.add_column("id", no_wrap=True)
    for heading in ("observation", "actions", "what"):
        table.add_column(heading)
    for env_id, (task, what) in posed.items():
        table.add_row(env_id, f"({task.observation_size},)", f"Discrete({len(task.ops)})", what)
    console = _console()
    console.print('Make them as gymnasium.make("opselect_envs:opselect/ScalarOpGoal-v0"):', highlight=False)
    console.print(table)


@app.command()
def gradients(
    problem: Annotated[
        list[str] | None, typer.Option("--problem", "--problems", help="Problems by name; default: all.")
    ] = None,
    estimators: Annotated[list[str] | None, typer.Option(help="Estimators by name; default: all.")] = None,
    samples: Annotated[int, typer.Option(help="Estimates per estimator and problem.")] = 20_000,
    seed: Annotated[int, typer.Option(help="The seed.")] = 0,
    quick: Annotated[bool, typer.Option("--quick", help="The problems only, with 2,000 estimates.")] = False,
    out: Annotated[pathlib.Path, typer.Option(help="Where gradients.json and gradients.png go.")] = pathlib.Path(
        "runs/gradients"
    ),
) -> None:
    """Measure bias, variance and cost of gradient estimators.

    Prints a table per problem and which estimator suits it, and writes gradients.json and a picture: variance against
    bias, and against the number of operations and decisions and the temperature.
    """
    _within("--samples", samples, least=2, most=10_000_000)
    _within("--seed", seed, least=0)
    _writable(out)
    console = _console()
    _load_tensorflow(console)
    from opselect.estimators import ESTIMATORS
    from opselect.gradients.problems import PROBLEMS
    from opselect.gradients.study import study
    from opselect.report.gradients import write_gradients

    chosen = _known("--problem", problem, PROBLEMS), _known("--estimators", estimators, ESTIMATORS)
    with console.status("measuring") as status:
        reports, rows = study(
            *chosen,
            samples=min(samples, 2000) if quick else samples,
            seed=seed,
            vary=not quick,
            watch=lambda name: status.update(f"measuring {name}"),
        )
    for name, report in reports.items():
        console.print(f"{name}: {PROBLEMS[name].summary}", style="bold", highlight=False)
        console.print(report)
        console.print()
    write_gradients(out, rows)
    console.print(f"Wrote gradients.json and gradients.png to {out}", highlight=False, soft_wrap=True)


@app.command()
def doctor(
    target: Annotated[str, typer.Argument(metavar="FILE:FUNCTION", help="A function of tensors in a Python file.")],
    inputs: Annotated[
        list[str] | None,
        typer.Option("--input", help="A value for each parameter in order, such as '[0.0, -1.0]'; give it repeatedly."),
    ] = None,
) -> None:
    """Find out which operation spoils a gradient.

    The function is run eagerly, in a tf.function and under XLA. A parameter without --input keeps its default, or else
    is probed at -2, -1, -0.5, 0, 0.5, 1 and 2. Exit status 0: healthy; 1: something is wrong.
    """
    path, separator, name = target.rpartition(":")
    if not separator or not path or not name:
        raise Mistake(f"FILE:FUNCTION: got {target!r}; the nearest valid form is {(path or name) + ':FUNCTION'!r}")
    file = pathlib.Path(path)
    if not file.is_file():
        raise Mistake(_no_file(file))
    given = [_literal(text) for text in inputs or ()]
    console = _console()
    _load_tensorflow(console)
    from opselect.doctor import GradientCheckError, check_gradients
    from opselect.doctor.target import PROBES, TargetError, choose_inputs, load_function

    try:
        fn = load_function(file, name)
        values, probed = choose_inputs(fn, given)
        report = check_gradients(fn, *values)
    except TargetError as error:
        raise Mistake(str(error)) from error
    except GradientCheckError as error:
        raise Mistake(f"{name}: {error}") from error
    if not report.checked:
        told = "; ".join(report.notes) or "the function has no input to differentiate"
        raise Mistake(f"{name}: nothing to differentiate; {told}")
    console.print(report)
    if probed:
        points = ("every combination of " if len(probed) > 1 else "") + ", ".join(f"{p:g}" for p in PROBES)
        note = f"note: {', '.join(probed)} probed at {points}; --input gives other values"
        console.print(note, highlight=False, style="dim")
    if not report.ok:
        raise typer.Exit(1)


def _no_file(file: pathlib.Path) -> str:
    from opselect_envs.naming import nearest

    beside = [p.name for p in file.parent.glob("*.py")] if file.parent.is_dir() else []
    hint = f"; did you mean {str(file.parent / nearest(file.name, beside))!r}?" if beside else ""
    return f"FILE:FUNCTION: there is no file {str(file)!r}{hint}"


def _literal(text: str) -> Any:
    """The value of an --input."""
    import ast

    def parse(candidate: str) -> Any:
        value = ast.literal_eval(candidate.strip())
        return list(value) if isinstance(value, tuple) else value

    try:
        return parse(text)
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        pass
    # The commonest slips: a bracket left open, numbers without commas, and an infinity.
    spelled = re.sub(r"\binf(inity)?\b", "1e999", re.sub(r"\w+\.inf\b", "inf", text))
    opened = [c for c in spelled if c in "[({"]
    closers = "".join({"[": "]", "(": ")", "{": "}"}[c] for c in opened[sum(c in "])}" for c in spelled) :][::-1])
    numbers = re.findall(r"[-+]?(?:\d+\.?\d*|\.\d+)(?:e[-+]?\d+)?", spelled)
    for candidate in (spelled, spelled + closers, str([float(n) for n in numbers]), "[0.0, 1.0]"):
        try:
            parse(candidate)
        except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
            continue
        if candidate != "[]":
            raise Mistake(f"--input: {text!r} is no Python literal; the nearest valid form is {candidate!r}")
    raise AssertionError("the last candidate is valid")


def _writable(out: pathlib.Path) -> None:
    existing = next(p for p in (out, *out.parents) if p.exists())
    if not existing.is_dir():
        raise Mistake(f"--out: {existing} is a file, not a folder")
    if not os.access(existing, os.W_OK | os.X_OK):
        raise Mistake(f"--out: {existing} can't be written to")


def _gather_lists(arguments: Sequence[str]) -> list[str]:
    """Lets list options take several words: ``--tasks A B`` is ``--tasks A,B``."""
    gathered: list[str] = []
    collecting = False
    for word in arguments:
        if collecting and not word.startswith("-"):
            first = gathered[-1] in _LISTS
            gathered = [*gathered, word] if first else [*gathered[:-1], f"{gathered[-1]},{word}"]
        else:
            collecting = word in _LISTS
            gathered.append(word)
    return gathered


def main() -> None:
    """The entry point of the `opselect` command."""
    try:
        app(_gather_lists(sys.argv[1:]), prog_name="opselect")
    except Mistake as mistake:
        print(f"opselect: {mistake}", file=sys.stderr)
        raise SystemExit(2) from None
    except OSError as error:
        if error.errno not in _DISK:
            raise
        where = f" {error.filename}" if error.filename else ""
        print(f"opselect: can't write{where}: {error.strerror}. What was done before is kept;", file=sys.stderr)
        print("run the same command again to continue.", file=sys.stderr)
        raise SystemExit(1) from None
