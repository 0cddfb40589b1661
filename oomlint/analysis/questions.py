"""What rules ask of the worlds: every question in one place, answered in its subject's module."""

from __future__ import annotations

from oomlint.analysis.accumulation import (
    carries_over,
    divided,
    divides_elsewhere,
    is_accumulation,
    only_backward,
)
from oomlint.analysis.order import (
    STEPS,
    Test,
    after,
    before,
    depth,
    fed,
    first_after,
    gradients_touched,
    last_before,
    opaque_between,
    same_function,
    steps,
    way,
)
from oomlint.analysis.ownership import (
    concerns,
    is_lasting,
    is_optimizer,
    key_of,
    may_touch,
    models_of,
    related,
    same,
    text_of,
)
from oomlint.analysis.precision import AMP, amp_tests, clip_before, disagree, steps_elsewhere
from oomlint.analysis.windows import Window, is_window, same_test, windowed, windows

__all__ = [
    "AMP",
    "STEPS",
    "Test",
    "Window",
    "after",
    "amp_tests",
    "before",
    "carries_over",
    "clip_before",
    "concerns",
    "depth",
    "disagree",
    "divided",
    "divides_elsewhere",
    "fed",
    "first_after",
    "gradients_touched",
    "is_accumulation",
    "is_lasting",
    "is_optimizer",
    "is_window",
    "key_of",
    "last_before",
    "may_touch",
    "models_of",
    "only_backward",
    "opaque_between",
    "related",
    "same",
    "same_function",
    "same_test",
    "steps",
    "steps_elsewhere",
    "text_of",
    "way",
    "windowed",
    "windows",
]
