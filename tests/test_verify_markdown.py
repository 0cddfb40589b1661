"""`oomlint verify` on Markdown: its blocks run as one script, and their rows are the document's."""

from __future__ import annotations

import json
from pathlib import Path

from shell import call

DOCUMENT = """\
# Keep the losses

```python
import torch

model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
losses = []
```

1. Then train:

   ```python
   for _ in range(4):
       optimizer.zero_grad()
       loss = torch.nn.functional.mse_loss(model(torch.randn(8, 4)), torch.zeros(8, 1))
       loss.backward()
       optimizer.step()
       losses.append(loss)
   ```
"""


def test_the_blocks_are_run(project: Path) -> None:
    (project / "a.md").write_text(DOCUMENT)
    answer = call("verify", "-q", "--device", "emulated", "--steps", "4", "--json", "a.md")
    assert answer.code == 0, answer.err
    (result,) = json.loads(answer.out)["results"]
    (finding,) = result["findings"]
    assert (finding["code"], finding["location"]["row"], result["verdict"]) == (
        "OOM102",
        19,
        "confirmed",
    )
    assert (project / "a.md").read_text() == DOCUMENT
