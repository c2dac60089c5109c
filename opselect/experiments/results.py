"""What a run leaves behind: plain arrays and numbers, in files that need no TensorFlow to read.

Shapes: R seeds, E evaluations along training, N held-out episodes, T decisions.
"""

from __future__ import annotations

import hashlib
import json
import os
import pathlib
import secrets
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any

import numpy as np

__all__ = ["RESULT", "DamagedFileError", "Picture", "RunResult", "config_hash", "folder_of", "write_atomically"]

RESULT = "result.npz"


class DamagedFileError(ValueError):
    """A file that is cut off, foreign, or not what its name says."""


def folder_of(task: str, learner: str, config: Mapping[str, Any]) -> str:
    """The name of a run's folder: readable, and unique by the configuration's hash."""
    return f"{task}-{learner}-{config_hash(config)}"


def config_hash(config: Mapping[str, Any]) -> str:
    """Twelve hex digits that name a configuration of plain JSON values."""
    text = json.dumps(config, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def write_atomically(path: pathlib.Path, write: Any, *, durable: bool = True) -> None:
    """Calls ``write(file)`` on a new file beside `path` and moves it there in one step: readers see all or nothing.

    With `durable` it also survives a power cut; without, only the end of the process. It costs a wait for the disk.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    name = path.with_name(f".{path.name}.{os.getpid()}.{secrets.token_hex(4)}")
    handle = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)  # the user's umask applies
    try:
        with os.fdopen(handle, "wb") as file:
            write(file)
            if durable:
                file.flush()
                os.fsync(file.fileno())
        os.replace(name, path)
    except BaseException:
        name.unlink(missing_ok=True)
        raise


@dataclass(frozen=True)
class Picture:
    """What one trained policy (the first seed's) chose on the held-out episodes."""

    x: np.ndarray
    """[N] float32, the inputs."""
    target: np.ndarray
    """[N] float32."""
    choice: np.ndarray
    """[N, T] int, the indices of the operations that the argmax policy picked."""
    right: np.ndarray
    """[N, T] int, the indices of the first operations that reach the target; others may reach it too."""
    reward: np.ndarray
    """[N] float32, noise-free, before normalisation."""


@dataclass(frozen=True)
class RunResult:
    """One learner on one task: R seeds trained side by side.

    Scores are normalised: 0 is the uniform-random agent, 1 the oracle.
    """

    task: str
    learner: str
    config: dict[str, Any]
    operations: list[str]
    seeds: list[int]
    step: np.ndarray
    """[E] int, the training steps done at each evaluation."""
    evaluations: np.ndarray
    """[E] int, how often the reward function had been evaluated by then, per seed."""
    hard: np.ndarray
    """[R, E], the argmax policy on the held-out episodes."""
    soft: np.ndarray
    """[R, E], what the learner trains: the sampled policy, or the mixture."""
    optimal: np.ndarray
    """[R, E], the share of held-out episodes in which the argmax policy loses nothing to the oracle."""
    seconds: float
    """Wall time of training and evaluation of all seeds, compilation included."""
    picture: Picture = field(repr=False)

    def save(self, folder: pathlib.Path) -> pathlib.Path:
        """Writes the result into a run's folder, atomically."""
        arrays = {f"picture/{name}": value for name, value in asdict(self.picture).items()}
        facts = {}
        for f in fields(self):
            value = getattr(self, f.name)
            if isinstance(value, np.ndarray):
                arrays[f.name] = value
            elif f.name != "picture":
                facts[f.name] = value
        arrays["facts"] = np.array(json.dumps(facts, sort_keys=True))
        path = folder / RESULT
        write_atomically(path, lambda file: np.savez_compressed(file, **arrays))
        return path

    @classmethod
    def load(cls, folder: pathlib.Path) -> RunResult:
        """Reads what `save` wrote.

        Raises:
            FileNotFoundError: there is no result yet.
            DamagedFileError: the file is not a whole result; the message names it.
        """
        path = folder / RESULT
        if not path.exists():
            raise FileNotFoundError(f"no finished run in {folder}")
        try:
            with np.load(path, allow_pickle=False) as stored:
                arrays = {name: stored[name] for name in stored.files}
            facts = json.loads(str(arrays.pop("facts")))
            picture = Picture(**{f.name: arrays.pop(f"picture/{f.name}") for f in fields(Picture)})
            return cls(**facts, **arrays, picture=picture)
        except Exception as error:  # a zip, JSON, key or type error: all mean the same to the caller
            raise DamagedFileError(f"{path} is not a whole result ({error}); remove it to run this again") from error
