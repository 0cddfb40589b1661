"""What each layer may import, and what a run may load."""

from __future__ import annotations

import ast
import os
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from shell import PLUGIN, spawn, write

import oomlint

PACKAGE = Path(oomlint.__file__).parent
HEAVY = tuple("torch numpy libcst pygls lsprotocol rich pathspec ahocorasick_rs watchfiles".split())

# Layers from the ground up; each may import itself, what stands before it, and what it names.
LAYERS = {
    "errors": set(),
    "patterns": set(),
    "magics": set(),
    "notebook": {"magics"},
    "markdown": set(),
    "source": {"markdown", "notebook"},
    "rule": set(),
    "effects": set(),
    "keys": {"effects", "errors"},
    "key_help": {"keys"},
    "settings": {"effects", "errors", "keys", "patterns"},
    "analysis": {"effects", "source", "rule", "errors"},
    "registry": {"errors", "rule"},
    "pages": {"rule"},
    "syntax": {"analysis"},
    "fingerprints": {"source"},
    "gate": {"rule"},
    "suppressions": {"rule", "source"},
    "unused": {"rule", "source", "suppressions"},
    "selection": {"errors", "registry", "rule", "settings"},
    "files": {"errors", "settings"},
    "linter": {
        "analysis",
        "gate",
        "rule",
        "selection",
        "settings",
        "source",
        "suppressions",
        "syntax",
        "unused",
    },
    "fixer": {"analysis", "errors", "linter", "rule", "settings", "source", "syntax"},
    "cache": {"linter", "registry", "rule", "settings"},
    "workers": {"settings"},
    "tree": {"cache", "fixer", "linter", "selection", "settings", "source", "workers"},
    "api": {
        "analysis",
        "errors",
        "files",
        "fixer",
        "keys",
        "linter",
        "rule",
        "settings",
        "source",
        "tree",
    },
    "flake8": {"errors", "linter", "settings", "source"},
    "baseline": {"errors", "fingerprints", "keys", "linter", "source"},
    "reports": {
        "fingerprints",
        "keys",
        "linter",
        "registry",
        "rule",
        "settings",
        "source",
        "suppressions",
    },
}
# The outer layers may use all of the above, but never each other.
OUTER = {"cli", "guard", "lsp", "verify"}


def imports(path: Path) -> set[str]:
    """The parts of oomlint that a module imports anywhere, and foreign modules at its top."""
    found = set()
    tree = ast.parse(path.read_text())
    for block in ast.walk(tree):
        if isinstance(block, ast.If) and ast.unparse(block.test) == "TYPE_CHECKING":
            block.body = []
    for node in ast.walk(tree):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            names = [node.module]
            if node.module == "oomlint":
                names = [f"oomlint.{alias.name}" for alias in node.names]
        found |= {name.split(".")[1] for name in names if name.startswith("oomlint.")}
    return found


def heavy_at_the_top(path: Path) -> set[str]:
    found = set()
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.Import):
            found |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found.add((node.module or "").partition(".")[0])
    return found & set(HEAVY)


def modules(layer: str) -> list[Path]:
    folder = PACKAGE / layer
    return sorted(folder.rglob("*.py")) if folder.is_dir() else [PACKAGE / f"{layer}.py"]


@pytest.mark.parametrize("layer", LAYERS)
def test_layer_imports_only_what_it_stands_on(layer: str) -> None:
    for path in modules(layer):
        assert imports(path) <= LAYERS[layer] | {layer}, path.name


@pytest.mark.parametrize("layer", [*LAYERS, "cli"])
def test_nothing_heavy_at_the_top_of_what_a_check_loads(layer: str) -> None:
    tops = {path.name: heavy_at_the_top(path) for path in modules(layer)}
    allowed = {"newer.py": {"libcst"}}  # itself imported only for syntax newer than the Python
    assert {name: top for name, top in tops.items() if top - allowed.get(name, set())} == {}


def test_measuring_and_serving_do_not_know_each_other() -> None:
    for layer in sorted(OUTER & {path.name for path in PACKAGE.iterdir()}):
        others = OUTER - {layer} if layer != "cli" else set()
        for path in modules(layer):
            assert not imports(path) & others, path


def test_only_verify_imports_torch() -> None:
    importers = {
        path.relative_to(PACKAGE).parts[0]
        for path in PACKAGE.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if (
            isinstance(node, ast.Import)
            and any(a.name.split(".")[0] == "torch" for a in node.names)
        )
        or (isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "torch")
    }
    assert importers <= {"verify", "guard"}


def loaded(*arguments: str) -> set[str]:
    """The top-level modules in a process after a command."""
    code = (
        "import sys, atexit, os\n"
        "from oomlint.cli import main\n"
        "try: main(sys.argv[1:])\n"
        "finally: os.write(2, ('\\0' + ' '.join(sys.modules)).encode())\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments],
        env={**os.environ, "PYTHONPATH": str(PLUGIN)},
        capture_output=True,
        text=True,
    )
    return set(done.stderr.rpartition("\0")[2].split())


def test_version_loads_next_to_nothing() -> None:
    names = loaded("--version")
    assert "oomlint.cli" in names
    assert not names & {*HEAVY, "oomlint.settings", "oomlint.rule", "oomlint.cli.check", "json"}


def test_warm_check_loads_neither_rules_nor_libcst(project: Path) -> None:
    write(project, {"a.py": "kept += a\n", "b.py": "x = 1\n"})
    cold = loaded("check", str(project))
    assert "shell_rules" in cold
    warm = loaded("check", str(project))
    assert "oomlint.cli.check" in warm
    assert not warm & {*HEAVY, "shell_rules", "oomlint.rules.oom301_clip_before_unscale"}


def test_cold_check_of_files_without_training_code_loads_no_libcst(project: Path) -> None:
    write(project, {"a.py": "x = 1\n"})
    assert not loaded("check", str(project)) & set(HEAVY)


def cpu_seconds(*command: str) -> float:
    """The least processor time of a few runs, which is what the program itself needs."""
    seconds = []
    for _ in range(7):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run(command, check=True, capture_output=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        seconds.append(used)
    return min(seconds)


def test_version_is_cheap() -> None:
    bare = cpu_seconds(sys.executable, "-c", "pass")
    assert cpu_seconds(sys.executable, "-m", "oomlint", "--version") - bare < 0.1


def interrupted(process: subprocess.Popen[bytes]) -> tuple[int, bytes, bytes]:
    """What a process ends with after Ctrl-C at its terminal; shells say 130 of both statuses."""
    try:
        os.killpg(process.pid, signal.SIGINT)
        out, err = process.communicate(timeout=60)
    finally:
        process.kill()
    return 130 if process.returncode == -signal.SIGINT else process.returncode, out, err.strip()


def start_apart(*arguments: str, path: Path = PLUGIN) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-m", "oomlint", *arguments],
        env={**os.environ, "PYTHONPATH": str(path)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
        # Who runs the tests in the background of a shell ignores it, and so would this process.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )


@pytest.mark.skipif(sys.platform != "linux", reason="asks /proc for the worker processes")
def test_interrupt_ends_with_130_and_no_traceback(project: Path) -> None:
    write(project, {f"m{n}.py": "kept += a\n" * 2000 for n in range(400)})
    process = start_apart("check", "--no-cache", str(project))
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    while not children.read_text():  # at work; the end of the process is an error here
        time.sleep(0.01)
    assert interrupted(process) == (130, b"", b"")


def test_interrupt_while_the_command_line_is_loaded_is_quiet(tmp_path: Path) -> None:
    slow = "import time\nprint('loading', flush=True)\ntime.sleep(60)\n"
    write(tmp_path, {"click.py": slow})
    process = start_apart("--version", path=tmp_path)
    assert process.stdout is not None and process.stdout.readline() == b"loading\n"
    assert interrupted(process) == (130, b"", b"")


def test_closed_pipe_is_quiet(project: Path) -> None:
    write(project, {"a.py": "kept += a\n" * 20_000})
    process = subprocess.Popen(
        [sys.executable, "-m", "oomlint", "check", "--output-format", "concise", str(project)],
        env={**os.environ, "PYTHONPATH": str(PLUGIN)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stdout is not None and process.stderr is not None
    assert process.stdout.readline().endswith(b"FAK101 [*] kept is flagged\n")
    process.stdout.close()
    assert process.stderr.read() == b""
    assert process.wait(20) in (1, 141)


def test_piped_stderr_is_empty_on_success(project: Path) -> None:
    write(project, {"a.py": "x = 1\n"})
    answer = spawn("check", str(project))
    assert (answer.code, answer.out, answer.err) == (0, "All checks passed!\n", "")
