"""Imports TensorFlow, Keras and TensorFlow Probability without their start-up noise. Import them from here."""

from __future__ import annotations

import contextlib
import os
import sys
import warnings
from collections.abc import Iterator
from typing import Any

__all__ = ["in_xla", "keras", "quiet_stderr", "tf", "tfp"]


@contextlib.contextmanager
def quiet_stderr() -> Iterator[None]:
    """Keeps C++ log lines off the user's terminal; they are written to file descriptor 2 before any Python hook.

    If the block fails, what was kept is written after all, since it may say why.
    """
    try:
        descriptor = sys.__stderr__.fileno() if sys.__stderr__ is not None else 2
        saved = os.dup(descriptor)
    except (OSError, ValueError):  # no real stderr (a notebook, a service): nothing to silence
        yield
        return
    import tempfile

    with tempfile.TemporaryFile() as kept:
        sys.stderr.flush()
        os.dup2(kept.fileno(), descriptor)
        failed = True
        try:
            yield
            failed = False
        finally:
            sys.stderr.flush()
            os.dup2(saved, descriptor)
            os.close(saved)
            if failed:
                kept.seek(0)
                os.write(descriptor, kept.read())


os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("KERAS_BACKEND", "tensorflow")
with quiet_stderr(), warnings.catch_warnings():
    warnings.simplefilter("ignore")
    try:
        import keras as _keras
        import tensorflow as _tensorflow
        import tensorflow_probability as _tensorflow_probability
    except ImportError as error:
        raise ImportError(
            f"opselect needs TensorFlow and TensorFlow Probability ({error}); install them with:"
            " pip install 'opselect[tf]'"
        ) from error

# None of the three ships usable types; shapes are checked at run time instead.
keras: Any = _keras
tf: Any = _tensorflow
tfp: Any = _tensorflow_probability


def in_xla() -> bool:
    """Whether the function being traced will be compiled by XLA, where shapes are fixed and nothing can be raised."""
    if tf.executing_eagerly():
        return False
    from tensorflow.python.ops import control_flow_util  # there is no public way to ask

    util: Any = control_flow_util
    return bool(util.GraphOrParentsInXlaContext(tf.compat.v1.get_default_graph()))
