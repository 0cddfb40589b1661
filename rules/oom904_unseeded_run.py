"""OOM904: a training script that draws random numbers and sets no seed."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from oomlint.analysis import Model, cadence, knowledge, loaders, sites
from oomlint.analysis.answers import finding
from oomlint.analysis.knowledge import Role
from oomlint.analysis.modules import Class, Function, Module, written
from oomlint.analysis.sites import Site
from oomlint.analysis.state import World
from oomlint.rule import Claim, Finding, Rule, Severity

SEED = re.compile(r"seed|set_deterministic|reproduc|rng_state|Generator\(", re.IGNORECASE)
DRAWS = re.compile(
    r"torch\.(rand|randn|randint|randperm|normal|bernoulli|multinomial)"
    r"|random\.(random|randint|shuffle|sample|choice|choices|uniform|gauss|randrange)"
    r"|numpy\.random\.(rand|randn|randint|permutation|shuffle|choice|normal|uniform|random)"
    r"|torch\.utils\.data\.(dataset\.)?random_split"
)
DATA = re.compile(
    r"torch\.(randperm|utils\.data\.(dataset\.)?random_split)|random\.\w+|numpy\.random\.\w+"
)
# Parts of torch.nn whose constructor draws no weights.
WEIGHTLESS = re.compile(
    r"torch\.nn\.(\w*Loss|Sequential|Module\w*|Parameter\w*|Dropout\w*|Identity)"
)


class UnseededRun(Rule):
    """
    ## What it does
    Checks for training scripts that draw random numbers, for weights, for shuffling or for data,
    while neither the script nor what it imports from the project sets a seed.

    ## Why is this bad?
    Two runs differ from the first step on: a better result may be luck, and a run that diverges
    cannot be repeated. This is advice and off by default.

    ## Example
    ```python
    import torch

    def main():
        model = torch.nn.Linear(8, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(100):
            optimizer.zero_grad()
            model(torch.ones(4, 8)).square().mean().backward()
            optimizer.step()

    if __name__ == "__main__":
        main()
    ```

    Use instead:
    ```python
    import torch

    def main():
        torch.manual_seed(0)
        model = torch.nn.Linear(8, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(100):
            optimizer.zero_grad()
            model(torch.ones(4, 8)).square().mean().backward()
            optimizer.step()

    if __name__ == "__main__":
        main()
    ```

    ## Measured
    Two runs that begin with different random generators differ before, and agree after.

    ## References
    - [PyTorch: reproducibility](https://docs.pytorch.org/docs/stable/notes/randomness.html)
    """

    code = "OOM904"
    name = "unseeded-run"
    severity = Severity.ADVICE
    tokens = ((".backward(",), (".step(",), ("torch",))
    # A guard or a loop of the script; all of a block in a list of Markdown is indented.
    token_pattern = re.compile(rb"^[ \t]*(?:if __name__\b|for |while )", re.MULTILINE)
    claims = (Claim.RUNS_AGREE,)
    default = False

    def check(self, model: Model) -> Iterator[Finding]:
        module = model.module
        if SEED.search(module.source.text) or not trains(module):
            return
        first = first_draw(model) if has_guard(module) or shuffles(module) else None
        if first is None or seeds_elsewhere(model):
            return
        message = "random numbers are drawn and no seed is set: no two runs are the same"
        yield finding(model, self, first.node, message)


def trains(module: Module) -> bool:
    """Whether running the file trains: a loop of updates in it, reached from its end."""
    for statement in module.tree.body:
        if isinstance(statement, ast.If) and "__main__" in written(statement.test):
            return any(has_loop(module, function) for function in [None, *module.all_functions])
        if isinstance(statement, sites.LOOPS) and cadence.trains(module, statement, None):
            return True
    return False


def has_guard(module: Module) -> bool:
    body = module.tree.body
    return any(isinstance(s, ast.If) and "__main__" in written(s.test) for s in body)


def shuffles(module: Module) -> bool:
    """Whether a script without a guard, which may be a sketch, draws which data it trains on."""
    return any(is_shuffled(s) or DATA.fullmatch(s.qualified) for s in sites.sites(module))


def has_loop(module: Module, function: Function | None) -> bool:
    nodes = sites.own_nodes(module.tree if function is None else function.node)
    return any(
        isinstance(node, sites.LOOPS) and cadence.trains(module, node, function) for node in nodes
    )


def first_draw(model: Model) -> Site | None:
    """The first call outside of classes that draws: of weights, an order or data."""
    module = model.module
    found = [
        site
        for site in sites.sites(module)
        if sites.class_of(site.function) is None and draws(model, site)
    ]
    return min(found, key=lambda site: site.node.lineno, default=None)


def draws(model: Model, site: Site) -> bool:
    if DRAWS.fullmatch(site.qualified):
        return True
    if loaders.LOADER.fullmatch(site.qualified):
        return is_shuffled(site)
    if knowledge.role_of_constructor(site.qualified) is Role.MODEL:
        is_part = site.qualified.startswith("torch.nn.") and WEIGHTLESS.match(site.qualified)
        return not is_part and site.method not in ("from_pretrained", "load")
    return sites.role_of_class(World(model.project, model.module), site.node.func) is Role.MODEL


def is_shuffled(site: Site) -> bool:
    shuffled = site.argument(2, "shuffle")
    return (
        loaders.LOADER.fullmatch(site.qualified) is not None
        and isinstance(shuffled, ast.Constant)
        and shuffled.value is True
    )


def seeds_elsewhere(model: Model) -> bool:
    """Whether a file of the project that this one imports speaks of seeds."""
    module = model.module
    for qualified in {*module.imports.values(), *module.stars}:
        found = model.project.find(qualified, module)
        home = found.module if isinstance(found, Class | Function) else found
        if home is not None and home is not module and SEED.search(home.source.text):
            return True
    return False
