"""Pictures of an episode, as text and as pixels. Drawn with NumPy alone: the environments need no plotting library."""

from __future__ import annotations

import colorsys
import functools
from dataclasses import dataclass, field

import numpy as np

from opselect_envs.dynamics import options
from opselect_envs.tasks import Task

__all__ = ["HEIGHT", "WIDTH", "Trail", "ansi", "rgb_array"]

HEIGHT, WIDTH = 360, 560
_LEFT, _RIGHT, _TOP, _BOTTOM = 40, 440, 34, 336  # the axes, in pixels; the legend is to their right
_WHITE, _BLACK, _GREY, _PALE = (255, 255, 255), (20, 20, 20), (150, 150, 150), (222, 222, 222)
_GOOD, _BAD, _TARGET = (20, 150, 60), (215, 40, 40), (30, 60, 220)
_CLOSE = 1e-3  # an error below this is drawn as a hit

# Each glyph is 5 rows of 3 pixels; an octal digit is a row.
_FONT = {
    "0": "75557", "1": "26227", "2": "71747", "3": "71717", "4": "55711", "5": "74717", "6": "74757", "7": "71222",
    "8": "75757", "9": "75717", "a": "25755", "b": "65656", "c": "34443", "d": "65556", "e": "74647", "f": "74644",
    "g": "34553", "h": "55755", "i": "72227", "j": "11152", "k": "55655", "l": "44447", "m": "57755", "n": "65555",
    "o": "25552", "p": "65644", "q": "25563", "r": "65655", "s": "34216", "t": "72222", "u": "55557", "v": "55552",
    "w": "55775", "x": "55255", "y": "55222", "z": "71247", ".": "00002", "-": "00700", "+": "02720", "=": "07070",
    "/": "11244", "(": "12221", ")": "42224", ",": "00024", ":": "02020", "_": "00007", "?": "71302", ">": "42124",
    " ": "00000",
}  # fmt: skip


@dataclass
class Trail:
    """What an episode has done so far: all that a picture needs."""

    values: list[float]
    """The input x, then the value after each decision."""
    target: float
    picks: list[int] = field(default_factory=list)
    """The operation of each decision."""
    alive: bool = True
    """False after an operation was picked that was not available."""

    @property
    def error(self) -> float:
        return abs(self.values[-1] - self.target)

    def add(self, pick: int, value: float, alive: bool) -> None:
        """One decision more."""
        self.picks.append(pick)
        self.values.append(value)
        self.alive = alive


def ansi(task: Task, trail: Trail | None) -> str:
    """The episode as a line of text, such as ``x = 0.5 | log -> -0.69315 | target -0.69315 | error 0``."""
    if trail is None:
        return "not started"
    parts = [f"x = {trail.values[0]:.5g}"]
    for pick, value in zip(trail.picks, trail.values[1:], strict=True):
        parts.append(f"{task.names[pick]} -> {value:.5g}")
    if not trail.alive:
        parts[-1] = f"{task.names[trail.picks[-1]]} is not available at {trail.values[-1]:.5g}"
    return " | ".join([*parts, f"target {trail.target:.5g}", f"error {trail.error:.5g}"])


def rgb_array(task: Task, trail: Trail | None) -> np.ndarray:
    """The episode as an image [HEIGHT, WIDTH, 3] uint8.

    One decision: x against the operations' values, over the rule (a pale band); a dashed cross marks x and the target,
    a disc the pick. A chain: the values decision by decision, with what each operation would have made of them. The
    vertical axis is asinh(value), which shows small and large values together. Green is a hit, red a miss.
    """
    image = _background(task).copy()
    if trail is None:
        return image
    draw = _draw_choice if task.horizon == 1 else _draw_chain
    draw(task, trail, image)
    title = f"x={trail.values[0]:.4g}  target={trail.target:.4g}"
    if trail.picks:
        title += f"  pick={task.names[trail.picks[-1]]}"
        title += f"  error={trail.error:.3g}" if trail.alive else "  not available"
    _text(image, title, _LEFT, 12)
    return image


# --- the two pictures -------------------------------------------------------------------------------------------------


def _draw_choice(task: Task, trail: Trail, image: np.ndarray) -> None:
    x, target = float(_column(task, trail.values[0])), float(_row(task, trail.target))
    _dashes(image, x, x, _TOP, _BOTTOM, _TARGET)
    _dashes(image, _LEFT, _RIGHT, target, target, _TARGET)
    _ring(image, x, target, _TARGET)
    if trail.picks:
        _disc(image, x, float(_row(task, trail.values[-1])), _outcome(trail))
        _frame_legend(task, trail.picks[-1], image, _outcome(trail))


def _draw_chain(task: Task, trail: Trail, image: np.ndarray) -> None:
    target = float(_row(task, trail.target))
    _dashes(image, _LEFT, _RIGHT, target, target, _TARGET)
    _ring(image, float(_decision_column(task, task.horizon)), target, _TARGET)
    colours = _colours(task)
    rows = [float(r) for r in _row(task, np.array(trail.values))]
    choices = options(np, task, task.data(), np.array(trail.values, np.float32))
    for t in range(min(len(rows), task.horizon)):
        here, there = (float(_decision_column(task, t + n)) for n in (0, 1))
        for k, colour in enumerate(colours):
            if choices.available[t, k]:
                end = float(_row(task, choices.values[t, k]))
                _line(image, np.array([here, there]), np.array([rows[t], end]), colour)
    columns = _decision_column(task, np.arange(len(rows)))
    _line(image, columns, np.array(rows), _BLACK, width=3)
    for t, row in enumerate(rows):
        _disc(image, float(columns[t]), row, _BLACK, radius=3)
    if trail.picks:
        over = len(trail.picks) == task.horizon or not trail.alive
        colour = _outcome(trail) if over else _BLACK
        _disc(image, float(columns[-1]), rows[-1], colour)
        _frame_legend(task, trail.picks[-1], image, colour)


def _outcome(trail: Trail) -> tuple[int, int, int]:
    return _GOOD if trail.alive and trail.error <= _CLOSE * (1.0 + abs(trail.target)) else _BAD


@functools.lru_cache(maxsize=16)
def _background(task: Task) -> np.ndarray:
    """What stays from step to step: axes, legend and, for one decision, the operations' curves and the rule."""
    image = np.full((HEIGHT, WIDTH, 3), _WHITE, np.uint8)
    limit = _limit(task)
    ticks = [t for t in (0.0, 1.0, 3.0, 10.0, 30.0, 100.0, 1e3, 1e4, 1e6, 1e9, 1e12, 1e18, 1e24, 1e30) if t <= limit]
    for tick in dict.fromkeys([*ticks, *(-t for t in ticks)]):
        row = round(float(_row(task, tick)))
        image[row, _LEFT:_RIGHT] = _PALE
        label = f"{tick:.0f}" if abs(tick) < 1e4 else f"{tick:.0e}".replace("e+", "e")
        _text(image, label, _LEFT - 4 - 4 * len(label), row - 2, scale=1)
    colours = _colours(task)
    if task.horizon == 1:
        columns = np.arange(_LEFT, _RIGHT + 1, dtype=np.float64)
        x = np.linspace(task.low, task.high, len(columns))
        choices = options(np, task, task.data(), x.astype(np.float32))
        rows = np.where(choices.available != 0, _row(task, choices.values), np.nan)
        rule = task.rule_indices()
        if rule is not None:
            region = np.clip(np.searchsorted(task.edges, x, side="right") - 1, 0, task.regions - 1)
            right = rows[np.arange(len(x)), rule[region]]
            for r in range(task.regions):
                _line(image, columns, np.where(region == r, right, np.nan), _PALE, width=9)
        for k, colour in enumerate(colours):
            _line(image, columns, rows[:, k], colour)
        for mark in np.linspace(task.low, task.high, 5):
            label = f"{mark:.3g}"
            _text(image, label, round(float(_column(task, mark))) - 2 * len(label), _BOTTOM + 8, scale=1)
    else:
        for t in range(task.horizon + 1):
            column = round(float(_decision_column(task, t)))
            image[_TOP:_BOTTOM, column] = _PALE
            _text(image, str(t), column - 2, _BOTTOM + 8, scale=1)
    for edge in (_TOP, _BOTTOM):
        image[edge, _LEFT : _RIGHT + 1] = _GREY
    for edge in (_LEFT, _RIGHT):
        image[_TOP : _BOTTOM + 1, edge] = _GREY
    shown = _legend_rows(task)
    for k in range(shown):
        row = _legend_row(k)
        image[row : row + 10, _RIGHT + 14 : _RIGHT + 26] = colours[k]
        name = task.names[k]
        small = len(name) > 11  # what is left of the width
        _text(image, name[:22], _RIGHT + 32, row + 3 * small, scale=1 if small else 2)
    if shown < len(task.names):
        _text(image, f"+{len(task.names) - shown} more", _RIGHT + 32, _legend_row(shown))
    return image


# --- scales and legend ------------------------------------------------------------------------------------------------


@functools.lru_cache(maxsize=16)
def _limit(task: Task) -> float:
    """The largest |value| on the vertical axis: what the operations reach from the inputs, within the task's limit."""
    if task.horizon > 1:
        return float(task.value_limit)
    choices = options(np, task, task.data(), np.linspace(task.low, task.high, 400, dtype=np.float32))
    return float(max(np.abs(choices.values).max(), 1e-3))


def _column(task: Task, x: float | np.ndarray) -> np.ndarray:
    part = (np.asarray(x, np.float64) - task.low) / (task.high - task.low)
    return _LEFT + (_RIGHT - _LEFT) * np.clip(part, 0.0, 1.0)


def _decision_column(task: Task, decision: int | np.ndarray) -> np.ndarray:
    return _LEFT + 20 + (_RIGHT - _LEFT - 40) * np.asarray(decision, np.float64) / task.horizon


def _row(task: Task, value: float | np.ndarray) -> np.ndarray:
    part = np.arcsinh(np.asarray(value, np.float64)) / np.arcsinh(1.05 * _limit(task))
    return (_TOP + _BOTTOM) / 2 - (_BOTTOM - _TOP) / 2 * np.clip(part, -1.0, 1.0)


def _colours(task: Task) -> list[tuple[int, int, int]]:
    hues = [k / len(task.names) for k in range(len(task.names))]
    rgb = [colorsys.hsv_to_rgb(h, 0.9, 0.85 if k % 2 else 0.6) for k, h in enumerate(hues)]
    return [(int(255 * r), int(255 * g), int(255 * b)) for r, g, b in rgb]


def _legend_rows(task: Task) -> int:
    room = (_BOTTOM - _TOP) // 16
    return len(task.names) if len(task.names) <= room else room - 1


def _legend_row(k: int) -> int:
    return _TOP + 4 + 16 * k


def _frame_legend(task: Task, k: int, image: np.ndarray, colour: tuple[int, int, int]) -> None:
    if k < _legend_rows(task):
        top, bottom, left, right = _legend_row(k) - 4, _legend_row(k) + 13, _RIGHT + 9, WIDTH - 4
        for row in (top, bottom):
            image[row : row + 2, left : right + 2] = colour
        for column in (left, right):
            image[top : bottom + 2, column : column + 2] = colour


# --- drawing ----------------------------------------------------------------------------------------------------------


def _line(
    image: np.ndarray, columns: np.ndarray, rows: np.ndarray, colour: tuple[int, int, int], width: int = 1
) -> None:
    """A polyline through N points [N]; it is broken at NaN and between points half the picture apart (a pole)."""
    steps = np.maximum(np.abs(np.diff(columns)), np.abs(np.diff(rows)))
    drawn = np.isfinite(steps) & ((np.abs(np.diff(rows)) < (_BOTTOM - _TOP) / 2) | (np.abs(np.diff(columns)) > 1.5))
    for i in np.flatnonzero(drawn):
        part = np.linspace(0.0, 1.0, int(steps[i]) + 2)
        _stamp(
            image,
            columns[i] + part * (columns[i + 1] - columns[i]),
            rows[i] + part * (rows[i + 1] - rows[i]),
            colour,
            width,
        )


def _stamp(image: np.ndarray, columns: np.ndarray, rows: np.ndarray, colour: tuple[int, int, int], width: int) -> None:
    reach = np.arange(width) - width // 2
    c = np.clip(np.rint(columns)[:, None, None].astype(int) + reach[:, None], 0, WIDTH - 1)
    r = np.clip(np.rint(rows)[:, None, None].astype(int) + reach, 0, HEIGHT - 1)
    image[r, c] = colour


def _dashes(image: np.ndarray, c0: float, c1: float, r0: float, r1: float, colour: tuple[int, int, int]) -> None:
    part = np.arange(int(max(abs(c1 - c0), abs(r1 - r0)))) + 0.0
    part = part[part % 8 < 4] / max(len(part), 1)
    _stamp(image, c0 + part * (c1 - c0), r0 + part * (r1 - r0), colour, 1)


def _disc(image: np.ndarray, column: float, row: float, colour: tuple[int, int, int], radius: int = 5) -> None:
    y, x = np.ogrid[:HEIGHT, :WIDTH]
    image[(x - column) ** 2 + (y - row) ** 2 <= radius**2] = colour


def _ring(image: np.ndarray, column: float, row: float, colour: tuple[int, int, int], radius: int = 9) -> None:
    y, x = np.ogrid[:HEIGHT, :WIDTH]
    distance = np.hypot(x - column, y - row)
    image[(distance <= radius) & (distance >= radius - 2)] = colour


def _text(image: np.ndarray, text: str, column: int, row: int, scale: int = 2) -> None:
    for i, character in enumerate(text.lower()):
        glyph = _FONT.get(character, _FONT["?"])
        bits = np.array([[int(digit) >> shift & 1 for shift in (2, 1, 0)] for digit in glyph], bool)
        bits = bits.repeat(scale, 0).repeat(scale, 1)
        left = column + 4 * scale * i
        if left < 0 or row < 0 or left + bits.shape[1] > WIDTH or row + bits.shape[0] > HEIGHT:
            continue
        image[row : row + bits.shape[0], left : left + bits.shape[1]][bits] = _BLACK
