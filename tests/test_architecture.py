"""What the design promises about imports, names and docstrings."""

from __future__ import annotations

import ast
import importlib
import inspect
import pathlib
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).parents[1]
# Each layer may import those before it. Siblings in one set don't import each other.
LAYERS = [
    {"opselect_envs.naming"},
    {"opselect_envs.operations"},
    {"opselect_envs.dynamics", "opselect_envs.references", "opselect_envs.tasks"},  # the last knows the others
    {"opselect_envs.challenges"},
    {"opselect_envs.lookup"},
    {"opselect_envs", "opselect._tensorflow", "opselect.experiments.results", "opselect.experiments.machine"},
    {"opselect.namespace"},
    {"opselect.numerics", "opselect.random"},
    {"opselect.estimators", "opselect.masks"},
    {"opselect.gradients"},
    {"opselect.policy"},
    {"opselect.learners", "opselect.layers"},
    {"opselect.experiments", "opselect.models"},
    {"opselect.comparison"},
    {"opselect.report", "opselect.doctor"},
    {"opselect.cli", "opselect.__main__"},
]
WITHOUT_TENSORFLOW = ("opselect_envs", "opselect.comparison", "opselect.report", "opselect.experiments.results")


def layer_of(module):
    """The index of the most specific layer entry that is the module or a package around it."""
    matches = [
        (len(entry), i)
        for i, layer in enumerate(LAYERS)
        for entry in layer
        if module == entry or module.startswith(entry + ".")
    ]
    return max(matches)[1] if matches else None


def modules():
    for base in (ROOT / "opselect", ROOT / "envs" / "opselect_envs"):
        for path in sorted(base.rglob("*.py")):
            parts = path.relative_to(base.parent).with_suffix("").parts
            yield ".".join(p for p in parts if p != "__init__"), path


def imported(path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                yield node.module, f"{node.module}.{alias.name}"
        elif isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.name, alias.name


def test_imports_run_one_way():
    seen = 0
    for module, path in modules():
        here = layer_of(module)
        if module == "opselect":
            continue
        assert here is not None, f"{module} has no place in the layers"
        for source, full in imported(path):
            if not source.startswith("opselect"):
                continue
            known = full if layer_of(full) != layer_of(source) else source
            if source == "opselect":  # the version
                continue
            seen += 1
            assert layer_of(known) <= here, f"{module} imports {known}, which is above it"
    assert seen > 50


@pytest.mark.parametrize("module", WITHOUT_TENSORFLOW)
def test_no_tensorflow_behind(module):
    code = f"import sys, {module}; print([m for m in ('tensorflow', 'keras', 'tf_keras') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_every_guarded_function_is_a_name_of_the_package():
    """`opselect.<name>` lists them without importing TensorFlow, so the list stands twice."""
    import opselect
    from opselect import numerics

    shared = {"InvalidShapeError", "check_temperature", "is_known", "straight_through"}
    assert set(opselect._HOMES["numerics"]) == set(numerics.__all__) - shared


def test_help_starts_without_tensorflow():
    code = (
        "import sys; sys.argv = ['opselect', '--help']\n"
        "from opselect.cli import main\n"
        "try: main()\n"
        "except SystemExit: pass\n"
        "print('tensorflow' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "compare" in done.stdout
    assert done.stdout.strip().endswith("False")


def test_tensorflow_starts_quietly():
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            "from opselect._tensorflow import tf; tf.function(lambda: tf.ones(2), jit_compile=True)()",
        ],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stderr == ""
    assert done.stdout == ""


@pytest.mark.parametrize("module", [m for m, _ in modules()])
def test_public_names_exist_and_are_documented(module):
    if module == "opselect_envs.sb3":  # `.ci/consumers` has it
        pytest.importorskip("stable_baselines3", exc_type=ImportError)
    loaded = importlib.import_module(module)
    assert loaded.__doc__, f"{module} has no docstring"
    for name in getattr(loaded, "__all__", ()):
        value = getattr(loaded, name)
        if inspect.isclass(value) or inspect.isfunction(value):
            assert inspect.getdoc(value), f"{module}.{name} has no docstring"
            if not inspect.isclass(value) or value.__module__ != module:
                continue
            for method, function in vars(value).items():
                if inspect.isfunction(function) and not method.startswith("_"):
                    assert inspect.getdoc(function), f"{module}.{name}.{method} has no docstring"
