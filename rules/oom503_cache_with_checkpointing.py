"""OOM503: a key-value cache that is asked for while a checkpointed model trains."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from oomlint.analysis import Model, edits, knowledge, sites
from oomlint.analysis.answers import finding, make_fix
from oomlint.analysis.modules import Module, written
from oomlint.analysis.sites import Site
from oomlint.rule import Claim, Finding, Rule, Safety, Severity


class CacheWithCheckpointing(Rule):
    """
    ## What it does
    Checks for `use_cache=True` in the forward of a model whose gradient checkpointing is on.

    ## Why is this bad?
    A training step feeds whole sequences and needs no cache. Checkpointing drops what the layers
    computed to save memory, and the cache keeps the keys and values of all of them. Models of
    transformers notice, warn and drop the cache; others hold both.

    ## Example
    ```python
    def train(model, loader, optimizer):
        model.gradient_checkpointing_enable()
        for batch in loader:
            optimizer.zero_grad()
            model(**batch, use_cache=True).loss.backward()
            optimizer.step()
    ```

    Use instead:
    ```python
    def train(model, loader, optimizer):
        model.gradient_checkpointing_enable()
        for batch in loader:
            optimizer.zero_grad()
            model(**batch, use_cache=False).loss.backward()
            optimizer.step()
    ```

    ## Fix safety
    Safe: the cache changes nothing in a forward that starts without one.

    ## Measured
    Eight checkpointed layers: the peak of the device bytes of a step falls by more than a third.

    ## References
    - [Hugging Face: gradient checkpointing](https://huggingface.co/docs/transformers/perf_train_gpu_one#gradient-checkpointing)
    """

    code = "OOM503"
    name = "cache-with-checkpointing"
    severity = Severity.WARNING
    tokens = (("gradient_checkpointing_enable(",), ("use_cache",))
    claims = (Claim.PEAK_FALLS,)

    def check(self, model: Model) -> Iterator[Finding]:
        module = model.module
        switched = {site.method: site for site in sites.sites(module) if site.method in (ON, OFF)}
        if ON not in switched or OFF in switched:
            return
        for site in sites.sites(module):
            keyword = asked_for(module, site)
            if keyword is None:
                continue
            message = (
                "training with checkpointed layers keeps the keys and values of all of them: "
                "it needs no cache"
            )
            edit = edits.replace(module, keyword.value, "False")
            fix = make_fix("Pass `use_cache=False`", [edit], Safety.SAFE)
            path = [(switched[ON].node, "gradient checkpointing is switched on")]
            yield finding(model, self, site.node, message, fix, path)


TRAINING = re.compile(r"backward|loss|entropy|criterion|optimi[sz]er")
ON, OFF = "gradient_checkpointing_enable", "gradient_checkpointing_disable"


def asked_for(module: Module, site: Site) -> ast.keyword | None:
    """The `use_cache=True` of a forward in training, or of the model that is built for it."""
    keyword = next((k for k in site.node.keywords if k.arg == "use_cache"), None)
    if keyword is None or not isinstance(keyword.value, ast.Constant) or not keyword.value.value:
        return None
    checkpointed = {
        written(other.receiver)
        for other in sites.sites(module)
        if other.method == ON and other.receiver is not None
    }
    if written(site.node.func) in checkpointed:
        return None if is_evaluation(module, site) else keyword
    statement = module.statement_of(site.node)
    if site.method != "from_pretrained" or not isinstance(statement, ast.Assign):
        return None
    return keyword if written(statement.targets[0]) in checkpointed else None


def is_evaluation(module: Module, site: Site) -> bool:
    """Whether the forward may be one of inference, where a cache has its use."""
    around = [written(context) for context in sites.contexts_around(module, site.node)]
    function = site.function
    while function is not None:
        around += [written(decorator) for decorator in function.decorators]
        if knowledge.EVALUATION_NAME.search(function.name) or "generat" in function.name:
            return True
        if not TRAINING.search(f"{function.name} {function.code}"):
            return True
        function = function.parent
    return any(
        knowledge.NO_GRAD_NAME.search(text.split("(")[0].rsplit(".", 1)[-1]) for text in around
    )
