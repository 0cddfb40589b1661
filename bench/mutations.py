"""The faults that can be planted: which rule must find each, and where a text has room for it.

Each operator yields a site only where the text itself shows that the edit makes the fault: what is
planted must be a fault. Where the text does not show it, the site is left out.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from mutate_graphs import (
    copy_dropped,
    detach_dropped,
    graph_retained,
    map_location_dropped,
    no_grad_deleted,
    no_grad_unused,
    state_detach_dropped,
)
from mutate_networks import (
    amp_renamed,
    freeze_assigned,
    schedule_hurried,
    sigmoid_inserted,
    softmax_inserted,
    teacher_recorded,
)
from mutate_ranks import (
    copy_repeated,
    epoch_untold,
    loader_rebuilt,
    no_sync_deleted,
    reads_added,
    sampler_dropped,
)
from mutate_scaling import (
    scaler_bypassed,
    unscale_deleted,
    unscale_doubled,
    update_deleted,
    update_hurried,
)
from mutate_steps import (
    cache_emptied,
    clip_delayed,
    clip_hurried,
    counter_shifted,
    division_dropped,
    gradients_kept,
    scheduler_hurried,
    train_mode_deleted,
    zero_deleted,
    zero_moved,
)
from planting import Code, Site


@dataclass(frozen=True, slots=True)
class Operator:
    name: str
    code: str
    what: str
    sites: Callable[[Code], Iterator[Site]]


OPERATORS = (
    Operator(
        "no-grad-deleted", "OOM101", "`no_grad` around an evaluation deleted", no_grad_deleted
    ),
    Operator("no-grad-unused", "OOM112", "`with no_grad():` becomes a bare call", no_grad_unused),
    Operator("detach-dropped", "OOM102", "`total += loss.item()` keeps `loss`", detach_dropped),
    Operator("state-detach-dropped", "OOM105", "`h = h.detach()` deleted", state_detach_dropped),
    Operator("graph-retained", "OOM106", "`retain_graph=True` in a lone backward", graph_retained),
    Operator("teacher-recorded", "OOM108", "`no_grad` around a teacher deleted", teacher_recorded),
    Operator("division-dropped", "OOM201", "`loss / n` becomes `loss`", division_dropped),
    Operator("zero-before-step", "OOM202", "`zero_grad` between backward and step", zero_moved),
    Operator("zero-deleted", "OOM203", "the only `zero_grad` deleted", zero_deleted),
    Operator("clip-after-step", "OOM204", "the clip behind the step", clip_delayed),
    Operator("clip-before-backward", "OOM204", "the clip before the backward", clip_hurried),
    Operator("counter-shifted", "OOM206", "`(i + 1) % n` becomes `i % n`", counter_shifted),
    Operator("scheduler-first", "OOM208", "the scheduler before the optimizer", scheduler_hurried),
    Operator("schedule-hurried", "OOM209", "the scheduler on every micro-batch", schedule_hurried),
    Operator("copy-dropped", "OOM210", "`deepcopy(state_dict())` without the copy", copy_dropped),
    Operator("train-deleted", "OOM211", "`model.train()` of an epoch deleted", train_mode_deleted),
    Operator("freeze-assigned", "OOM213", "`net.requires_grad = False`", freeze_assigned),
    Operator("gradients-kept", "OOM214", "`zero_grad(set_to_none=False)`", gradients_kept),
    Operator("softmax-inserted", "OOM215", "`softmax` before cross entropy", softmax_inserted),
    Operator("sigmoid-inserted", "OOM216", "`sigmoid` before a loss of logits", sigmoid_inserted),
    Operator("unscale-deleted", "OOM301", "`unscale_` before a clip deleted", unscale_deleted),
    Operator("update-deleted", "OOM302", "`scaler.update()` deleted", update_deleted),
    Operator("scaler-bypassed", "OOM303", "`scaler.step(o)` becomes `o.step()`", scaler_bypassed),
    Operator("unscale-doubled", "OOM304", "`unscale_` twice", unscale_doubled),
    Operator("update-hurried", "OOM305", "`update` between two steps", update_hurried),
    Operator("amp-renamed", "OOM308", "`torch.amp` becomes `torch.cuda.amp`", amp_renamed),
    Operator("cache-emptied", "OOM401", "`empty_cache()` behind the step", cache_emptied),
    Operator("map-location-dropped", "OOM406", "`map_location` dropped", map_location_dropped),
    Operator("loader-rebuilt", "OOM411", "the loader built in every epoch", loader_rebuilt),
    Operator("reads-added", "OOM415", "three reads behind the step", reads_added),
    Operator("copy-repeated", "OOM416", "`w = table.to(device)` into the loop", copy_repeated),
    Operator("no-sync-deleted", "OOM601", "`no_sync` deleted", no_sync_deleted),
    Operator("epoch-untold", "OOM608", "`sampler.set_epoch(epoch)` deleted", epoch_untold),
    Operator("sampler-dropped", "OOM608", "`sampler=` becomes `shuffle=True`", sampler_dropped),
)


def planted(code: Code, operator: Operator) -> Iterator[tuple[Site, str]]:
    """Every site of an operator with the text that has the fault; it parses and is another text."""
    for site in operator.sites(code):
        text = code.apply(site.edits)
        try:
            changed = ast.dump(ast.parse(text)) != ast.dump(code.tree)
        except SyntaxError:
            continue
        if changed:
            yield site, text
