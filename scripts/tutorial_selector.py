"""Tutorial: a Keras model with a hard choice in its middle, trained by policy gradients and by a relaxation.

A sensor turns x into y = 0.5 * f(x) + 1, where f is one of eight functions, and which one depends on x. The model does
not know where which function is right, nor the scale and the offset. Run it, then look at the pictures it writes.

    uv run scripts/tutorial_selector.py
"""

from __future__ import annotations

import pathlib
import sys
from typing import Any

import matplotlib
import numpy as np

import opselect
from opselect._tensorflow import keras
from opselect_envs import OPERATIONS

NAMES = ("neg", "exp", "square", "cos", "sin", "inv", "log", "sqrt")  # right in this order, from left to right
LOW, HIGH = -3.0, 3.0
ROWS, BATCH = 20_000, 256


def data(seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """x [N, 1], y [N, 1], and which operation made each row [N]."""
    x = np.random.default_rng(seed).uniform(LOW, HIGH, (ROWS, 1)).astype(np.float32)
    right = ((x[:, 0] - LOW) / (HIGH - LOW) * len(NAMES)).astype(int)
    values = np.stack([OPERATIONS[name](x[:, 0]) for name in NAMES], -1)
    return x, 0.5 * np.take_along_axis(values, right[:, None], 1) + 1.0, right


def build(estimator: str, epochs: int) -> Any:
    """A trunk that sees x, the selector, and what comes after it: ordinary layers, trained together."""
    steps = epochs * -(-ROWS // BATCH)
    inputs = keras.Input((1,), name="x")
    # Sines of x at random frequencies let a small network draw sharp borders between regions.
    waves = keras.layers.Dense(64, kernel_initializer=keras.initializers.RandomNormal(stddev=2.0, seed=1))(inputs)
    features = keras.layers.Dense(64, "tanh")(keras.ops.sin(waves))
    selector = opselect.layers.OperationSelector(
        NAMES,
        estimator,
        hidden=(64,),
        # Without a bonus for staying undecided a policy becomes certain before it is right: with 0.1 one region of the
        # eight may stay wrong.
        entropy=keras.optimizers.schedules.PolynomialDecay(0.3, int(0.7 * steps), 0.0),
        temperature=keras.optimizers.schedules.ExponentialDecay(1.0, steps, 0.3) if "gumbel" in estimator else None,
        row_clip=None if "reinforce" in estimator else 1.0,
        seed=0,
        name="selector",
    )
    chosen = selector(inputs, features=features)
    outputs = keras.layers.Dense(1, kernel_initializer="ones", name="scale_and_offset")(chosen)
    model = opselect.SelectorModel(inputs, outputs)
    model.compile(keras.optimizers.Adam(keras.optimizers.schedules.CosineDecay(1e-2, steps)), loss="mae")
    return model


def score(model: Any, x: np.ndarray, y: np.ndarray) -> float:
    """1 for the oracle, 0 for choosing uniformly at random, of the mean of exp(-abs(error))."""
    values = np.stack([OPERATIONS[name](x[:, 0]) for name in NAMES], -1)
    random = np.exp(-np.abs(0.5 * values + 1.0 - y)).mean()
    return float((np.exp(-np.abs(model.predict(x, verbose=0) - y)).mean() - random) / (1.0 - random))


def train(estimator: str, epochs: int = 20, verbose: int = 2) -> tuple[Any, dict[str, list[float]], float]:
    """The trained model, its history and its score on rows it has not seen."""
    keras.utils.set_random_seed(0)
    x, y, _ = data()
    model = build(estimator, epochs)
    history = model.fit(x, y, batch_size=BATCH, epochs=epochs, verbose=verbose).history
    unseen, truth, _ = data(seed=1)
    return model, history, score(model, unseen, truth)


def draw(results: dict[str, Any], path: pathlib.Path) -> None:
    """Which operation each model applies where, and its hard and soft losses over training."""
    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    x = np.linspace(LOW, HIGH, 1500, dtype=np.float32)[:, None]
    figure, axes = plt.subplots(2, len(results), figsize=(6 * len(results), 7), squeeze=False, layout="constrained")
    colours = plt.get_cmap("tab10")
    for column, (name, (model, history, reached)) in enumerate(results.items()):
        chosen, y = model.choices(x)["selector"][:, 0], model.predict(x, verbose=0)[:, 0]
        top, bottom = axes[0, column], axes[1, column]
        for i, operation in enumerate(NAMES):
            where = chosen == operation
            top.plot(x[where, 0], y[where], ".", ms=3, color=colours(i), label=operation)
        for border in np.linspace(LOW, HIGH, len(NAMES) + 1):
            top.axvline(border, color="0.85", lw=0.8, zorder=0)
        top.set(title=f"{name}: score {reached:.3f}", xlabel="x", ylabel="prediction", ylim=(0.8, 3.2))
        top.legend(ncols=4, fontsize=8, markerscale=3, loc="upper center")
        bottom.semilogy(history["soft_loss"], label="soft loss: what is trained")
        bottom.semilogy(history["hard_loss"], label="hard loss: what is shipped")
        bottom.set(xlabel="epoch", ylabel="mean absolute error")
        bottom.legend(fontsize=8)
    figure.savefig(path, dpi=120)


def main(folder: str = "runs/tutorial", epochs: int = 20) -> dict[str, float]:
    """Trains both, prints what they reach, draws, and exports the better one."""
    out = pathlib.Path(folder)
    out.mkdir(parents=True, exist_ok=True)
    results = {name: train(name, epochs) for name in ("reinforce-rloo", "gumbel-softmax")}
    for name, (_, history, reached) in results.items():
        print(f"{name}: score {reached:.4f} of the oracle's, gap {history['gap'][-1]:+.4f}")
    draw(results, out / "selector.png")
    best = max(results, key=lambda name: results[name][2])
    results[best][0].export(out / "exported", verbose=False)
    print(f"Wrote {out / 'selector.png'}, and {out / 'exported'}, which runs only the selected operation of each row")
    return {name: reached for name, (_, _, reached) in results.items()}


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "runs/tutorial")
