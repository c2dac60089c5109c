"""Spreads runs over a Ray cluster: the engine behind ``--engine ray``. Imports Ray and TensorFlow only when it runs.

Each configuration is one Ray task that calls `opselect.experiments.run.run`, so a result has the same bits as on the
driver's machine. Three things would change them, and are pinned or checked in the worker: how many threads TensorFlow
uses within an operation (sums are split among them), environment variables that change its kernels, and the versions of
the packages that compute. Kinds of processors that round differently can't be reconciled.

A worker that finds the driver's folder works in it; then what a dead worker left off is continued from its
checkpoint. Where file systems are not shared, a worker uses a temporary folder, the result's files travel back through
Ray, and what a dead worker was doing begins again. Both end with the same bits.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import importlib
import importlib.util
import logging
import os
import pathlib
import secrets
import shutil
import socket
import sys
import tempfile
import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from opselect.experiments.machine import versions
from opselect.experiments.results import RESULT, RunResult, write_atomically

if TYPE_CHECKING:  # TensorFlow comes with these
    from opselect.experiments.config import RunConfig
    from opselect.experiments.many import Failures
    from opselect.experiments.watching import Watcher

__all__ = ["ClusterError", "check_available", "connected", "run_on_ray"]

_LOG = logging.getLogger("opselect")
_ATTEMPTS = 4
_POLL_SECONDS = 0.2
# What decides bits; the machine itself and packages that only analyse results are left out.
_COMPUTING = ("opselect", "tensorflow", "tensorflow-probability", "keras", "numpy")
_KERNELS = ("TF_ENABLE_ONEDNN_OPTS", "TF_XLA_FLAGS", "TF_DETERMINISTIC_OPS", "XLA_FLAGS")


class ClusterError(RuntimeError):
    """There is no Ray, or no cluster where one was said to be."""


@dataclasses.dataclass(frozen=True)
class _Answer:
    """What comes back from a cell."""

    files: dict[str, bytes]
    """The contents of the files in the run's folder by name."""
    diverged: str
    """Why there are none: training it again would end in the same way."""
    notes: list[str]
    """What the package's log said."""


@dataclasses.dataclass(frozen=True)
class _Place:
    """What a worker is told beside the configuration."""

    folder: str
    name: str
    """Of the run's own folder."""
    marker: str
    """A file in `folder` by which a worker knows that it is the driver's."""
    threads: int
    variables: dict[str, str]
    versions: dict[str, str]


def check_available() -> None:
    """Looks whether Ray is installed.

    Raises:
        ClusterError: it is not; the message says what to install.
    """
    if importlib.util.find_spec("ray") is None:
        raise ClusterError("Ray is not installed; run: pip install 'opselect[ray]'")


def run_on_ray(
    runs: Sequence[RunConfig],
    folder: pathlib.Path,
    watcher: Watcher | None = None,
    *,
    address: str | None = None,
    workers: int | None = None,
    cpus_per_cell: float = 1.0,
    shared: bool | None = None,
) -> tuple[list[RunResult], Failures]:
    """Runs each configuration in a folder of its own below `folder`, on the workers of a Ray cluster.

    A cell whose worker dies (killed, out of memory, its machine lost), or which raises, is tried again, four times in
    all; the others go on meanwhile. What is complete is not run again, whichever engine ran it.

    Args:
        runs: what to run; the nodes of the cluster must have the same versions of the packages installed.
        folder: where results are kept and continued, on the driver's machine.
        watcher: is told how the runs get on, in this thread.
        address: of a running cluster, as ``"host:6379"`` or ``"auto"``. None: the one that the environment variable
            RAY_ADDRESS names, or else a cluster on this machine alone, which ends with the call. A Ray that this
            process is connected to already is used as it is.
        workers: the most cells at once; None: as many as the cluster has room for.
        cpus_per_cell: how many CPUs a cell is given. The loop's operations are small: with a second CPU a cell takes
            nine tenths of the time, but two cells side by side do twice the work.
        shared: whether workers see `folder`; None finds out.

    Returns:
        The results in the order of `runs`, and for each (task, learner) that failed the reason.

    Raises:
        ClusterError: Ray is not installed, or there is no cluster at `address`.
        Interrupted: Ctrl-C; it holds what was finished, and run again this continues.
        ValueError: `workers` or `cpus_per_cell` is out of range.
    """
    from opselect.experiments.many import Interrupted
    from opselect.experiments.run import finished
    from opselect.experiments.watching import Silent

    if workers is not None and workers < 1:
        raise ValueError(f"workers must be at least 1, got {workers!r}; the nearest is 1")
    if not cpus_per_cell > 0:
        raise ValueError(f"cpus_per_cell must be above 0, got {cpus_per_cell!r}; the default is 1")
    watcher = Silent() if watcher is None else watcher
    folder = folder.resolve()
    results: dict[str, RunResult] = {}
    failures: Failures = {}
    watcher.planned(runs)
    try:
        to_do = []
        for config in runs:
            result = finished(folder / config.folder, config.to_dict())
            if result is None:
                to_do.append(config)
            else:
                results[config.folder] = result
                watcher.started(config)
                watcher.finished(config, result)
        if to_do:
            with connected(address, workers) as ray, _marked(folder, shared) as marker:
                _Spread(ray, folder, marker, watcher, cpus_per_cell, results, failures).run(to_do, workers)
    except KeyboardInterrupt as error:
        raise Interrupted(_in_order(runs, results), failures) from error
    finally:
        watcher.close()
    return _in_order(runs, results), failures


def _in_order(runs: Sequence[RunConfig], results: Mapping[str, RunResult]) -> list[RunResult]:
    return [results[config.folder] for config in runs if config.folder in results]


class _Spread:
    """Cells under way: hands them out, passes news on to the watcher, takes results in, tries again."""

    def __init__(
        self,
        ray: Any,
        folder: pathlib.Path,
        marker: str,
        watcher: Watcher,
        cpus: float,
        results: dict[str, RunResult],
        failures: Failures,
    ) -> None:
        self._results, self._failures = results, failures
        self._ray, self._folder, self._marker, self._watcher = ray, folder, marker, watcher
        self._cell, self._cpus = ray.remote(_cell), cpus
        # Restarted if its process dies: only news is lost with it.
        self._board = ray.remote(_Board).options(num_cpus=0, max_restarts=-1).remote()
        self._threads = _threads()
        self._under_way: dict[Any, RunConfig] = {}
        self._attempts: dict[str, int] = {}
        self._started: set[str] = set()

    def run(self, to_do: Sequence[RunConfig], most: int | None) -> None:
        waiting = list(reversed(to_do))
        most = len(waiting) if most is None else most
        try:
            while waiting or self._under_way:
                while waiting and len(self._under_way) < most:
                    self._submit(waiting.pop())
                ready, _ = self._ray.wait(list(self._under_way), num_returns=1, timeout=_POLL_SECONDS)
                self._pass_on()
                for reference in ready:
                    self._take_in(reference)
        finally:
            for reference in self._under_way:
                with contextlib.suppress(Exception):
                    self._ray.cancel(reference, force=True)
            with contextlib.suppress(Exception):
                self._ray.kill(self._board)

    def _submit(self, config: RunConfig) -> None:
        attempt = self._attempts[config.folder] = self._attempts.get(config.folder, 0) + 1
        place = _Place(
            str(self._folder),
            config.folder,
            self._marker,
            self._threads,
            {name: os.environ[name] for name in _KERNELS if name in os.environ},
            _computing(),
        )
        name = f"opselect {config.folder}"  # how the process and Ray's own tools show it
        cell = self._cell.options(name=name, num_cpus=self._cpus, max_retries=0)
        self._under_way[cell.remote(_packed(config), place, self._board, attempt)] = config

    def _pass_on(self) -> None:
        """Tells the watcher what workers have said since."""
        try:
            news = self._ray.get(self._board.take.remote(), timeout=5)
        except Exception:  # the board is being restarted, or slow: there will be news another time
            return
        current = {config.folder: config for config in self._under_way.values()}
        for name, attempt, done, hard in news:
            config = current.get(name)
            if config is None or attempt != self._attempts[name]:  # a dead worker's last words
                continue
            self._start(config)
            if done:
                self._watcher.progress(config, done, hard)

    def _take_in(self, reference: Any) -> None:
        config = self._under_way.pop(reference)
        try:
            answer = self._ray.get(reference)
        except Exception as error:
            if self._attempts[config.folder] < _ATTEMPTS:
                self._submit(config)
            else:
                self._fail(config, f"given up after {_ATTEMPTS} attempts: {_reason(error)}")
            return
        for note in answer.notes:
            _LOG.warning("%s", note)
        if answer.diverged:
            self._fail(config, answer.diverged)
            return
        own = self._folder / config.folder
        for name in sorted(answer.files, key=RESULT.__eq__):  # the result last: with it the run counts as complete
            if not (own / name).exists():
                write_atomically(own / name, lambda file, name=name: file.write(answer.files[name]))
        result = self._results[config.folder] = RunResult.load(own)
        self._start(config)
        self._watcher.finished(config, result)

    def _fail(self, config: RunConfig, reason: str) -> None:
        self._start(config)
        self._failures[config.name, config.learner.name] = f"{config.name}: {reason}"
        self._watcher.failed(config, reason)

    def _start(self, config: RunConfig) -> None:
        if config.folder not in self._started:
            self._started.add(config.folder)
            self._watcher.started(config)


# --- in a worker ---


class _Board:
    """Where workers leave news for the driver."""

    def __init__(self) -> None:
        self._news: list[tuple[str, int, int, float]] = []

    def tell(self, name: str, attempt: int, done: int, hard: float) -> None:
        self._news.append((name, attempt, done, hard))

    def take(self) -> list[tuple[str, int, int, float]]:
        news, self._news = self._news, []
        return news


def _cell(packed: bytes, place: _Place, board: Any, attempt: int) -> _Answer:
    """Runs one configuration."""
    for name, value in place.variables.items():
        os.environ[name] = value  # read when TensorFlow is imported, which is next
    if _computing() != place.versions:
        raise RuntimeError(f"the driver has {place.versions}, but the worker {_computing()}: the results would differ")
    from opselect._tensorflow import tf

    tf.config.threading.set_intra_op_parallelism_threads(place.threads)
    from opselect.experiments.run import POLICY, run
    from opselect.learners.base import TrainingDivergedError

    def tell(done: int, hard: float) -> None:
        board.tell.remote(place.name, attempt, done, hard)

    tell(0, 0.0)
    config = importlib.import_module("ray.cloudpickle").loads(packed)
    with contextlib.ExitStack() as stack:
        notes = stack.enter_context(_noted())
        folder = pathlib.Path(place.folder)
        if not (place.marker and (folder / place.marker).exists()):
            folder = pathlib.Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="opselect-")))
        own = folder / place.name
        try:
            run(config, own, tell)
        except TrainingDivergedError as error:
            return _Answer({}, str(error), notes)
        return _Answer({name: (own / name).read_bytes() for name in ("config.json", POLICY, RESULT)}, "", notes)


@contextlib.contextmanager
def _noted() -> Iterator[list[str]]:
    notes: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: notes.append(record.getMessage())
    _LOG.addHandler(handler)
    try:
        yield notes
    finally:
        _LOG.removeHandler(handler)


# --- what travels ---


def _packed(config: RunConfig) -> bytes:
    """The configuration as bytes. Formulas and estimators of the user's own modules travel as code."""
    from opselect_envs.operations import catalogued

    pickle = importlib.import_module("ray.cloudpickle")

    own = [f for op in config.task.ops if catalogued(op.name) is not op for f in (op.apply, op.domain)]
    names = {getattr(thing, "__module__", None) for thing in (*own, type(config.learner.estimator))}
    modules = [
        module
        for module in (sys.modules.get(name) for name in names if name)
        if module is not None and not _installed(module)
    ]
    for module in modules:
        pickle.register_pickle_by_value(module)
    try:
        return pickle.dumps(config)
    finally:
        for module in modules:
            pickle.unregister_pickle_by_value(module)


def _installed(module: Any) -> bool:
    """Whether workers have the module too: it is ours, Python's or of an installed package."""
    file = getattr(module, "__file__", None)
    ours = module.__name__.partition(".")[0] in ("opselect", "opselect_envs", "__main__")
    return ours or file is None or any(part in ("site-packages", "dist-packages") for part in pathlib.Path(file).parts)


def _computing() -> dict[str, str]:
    installed = versions()
    return {name: installed[name] for name in _COMPUTING if name in installed}


def _threads() -> int:
    """How many threads TensorFlow uses within an operation in this process."""
    from opselect._tensorflow import tf

    said = tf.config.threading.get_intra_op_parallelism_threads() or int(os.environ.get("TF_NUM_INTRAOP_THREADS", 0))
    if said:
        return said
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _reason(error: BaseException) -> str:
    """An error of Ray's in one line: what the cell raised, or how its worker died."""
    cause = getattr(error, "cause", None) or error
    lines = [line.strip() for line in str(cause).splitlines() if line.strip()]
    return f"{type(cause).__name__}: {lines[0] if lines else 'no more is known'}"


# --- the cluster ---


@contextlib.contextmanager
def _marked(folder: pathlib.Path, shared: bool | None) -> Iterator[str]:
    """The name of a file in `folder` by which workers know it; empty if they are not to."""
    if shared is False:
        yield ""
        return
    marker = folder / f".cluster-{secrets.token_hex(8)}"
    folder.mkdir(parents=True, exist_ok=True)
    marker.touch()
    try:
        yield marker.name
    finally:
        marker.unlink(missing_ok=True)


@contextlib.contextmanager
def connected(address: str | None = None, workers: int | None = None) -> Iterator[Any]:
    """Connects to a cluster for several calls of `run_on_ray`; yields the module `ray`.

    Args:
        address: see `run_on_ray`. What is started here is ended here; a connection that was there before stays.
        workers: how many CPUs a cluster that is started here has; None: all of this machine's.

    Raises:
        ClusterError: Ray is not installed, or there is no cluster at `address`.
    """
    check_available()
    address = address or os.environ.get("RAY_ADDRESS") or None
    local = address in (None, "local")
    with contextlib.ExitStack() as stack:
        stack.enter_context(_environment({"RAY_USAGE_STATS_ENABLED": "0", **(_token() if local else {})}))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Ray's are about what its next version will do
            ray: Any = importlib.import_module("ray")  # not everybody has it, type checkers among them
        if ray.is_initialized():
            yield ray
            return
        options: dict[str, Any] = {"logging_level": logging.CRITICAL, "log_to_driver": False}
        if local:
            # A folder of its own: Ray's usual one, /tmp/ray, keeps all sessions' logs and belongs to whoever was first.
            kept = tempfile.mkdtemp(prefix="ray-", dir=_short_folder())
            stack.callback(shutil.rmtree, kept, ignore_errors=True)
            options |= {"address": "local", "include_dashboard": False, "num_cpus": workers, "_temp_dir": kept}
            options |= {"object_store_memory": 2**27}  # results are small; Ray would ask for a third of the memory
        else:
            _answers(str(address))
            options |= {"address": address}
        from opselect._tensorflow import quiet_stderr

        try:
            with quiet_stderr(), warnings.catch_warnings():
                warnings.simplefilter("ignore")
                ray.init(**options)
        except Exception as error:
            where = "here" if local else f"at {address!r}"
            raise ClusterError(f"no Ray cluster {where} ({_reason(error)})") from error
        stack.callback(ray.shutdown)
        stack.enter_context(_hushed())
        yield ray


@contextlib.contextmanager
def _hushed() -> Iterator[None]:
    """Keeps Ray from writing to standard output that a worker or a machine has died; there is no public switch."""
    worker = importlib.import_module("ray._private.worker")
    switch = "_worker_logs_enabled"
    before = getattr(worker, switch, None)
    if before is None:
        yield
        return
    setattr(worker, switch, False)
    try:
        yield
    finally:
        setattr(worker, switch, before)


def _token() -> dict[str, str | None]:
    """A secret for this machine's cluster, handed on in the environment: else Ray writes one to ~/.ray."""
    if any(name in os.environ for name in ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH")):
        return {}
    # The mode is left to Ray: it asks for tokens unless told otherwise, and notices when it was imported before this.
    return {"RAY_AUTH_TOKEN": _secret(), "RAY_AUTH_MODE": None}


@functools.cache  # Ray reads it once in a process
def _secret() -> str:
    return secrets.token_hex(32)


@contextlib.contextmanager
def _environment(variables: Mapping[str, str | None]) -> Iterator[None]:
    """Sets variables of the environment (None: leaves them), and puts all of them back in the end."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update({name: value for name, value in variables.items() if value is not None})
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def _short_folder() -> str | None:
    """Where Ray's sockets fit: their paths may have 100 characters at most."""
    return None if len(tempfile.gettempdir()) <= 20 or not os.path.isdir("/tmp") else "/tmp"


def _answers(address: str) -> None:
    """Looks whether anything listens at host:port; Ray itself would try for minutes, and may end the process."""
    host, _, port = address.rpartition("//")[2].rpartition(":")
    if not port.isdigit():
        if address != "auto":
            raise ClusterError(f"address must be 'host:port', 'auto' or 'local', got {address!r}; try '{address}:6379'")
        return
    try:
        with socket.create_connection((host, int(port)), timeout=5):
            pass
    except (OSError, OverflowError) as error:
        raise ClusterError(f"no Ray cluster answers at {address!r} ({error})") from error
