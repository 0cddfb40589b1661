"""Trains a small network and keeps a number of every step, with all that computed it."""

import torch
from torch import nn


class Block(nn.Module):
    def __init__(self, width: int = 256):
        super().__init__()
        self.inner = nn.Linear(width, 8 * width)
        self.outer = nn.Linear(8 * width, width)

    def forward(self, x):
        hidden = torch.relu(self.inner(x))
        return x + self.outer(hidden)


def main() -> None:
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    model = nn.Sequential(*[Block() for _ in range(4)]).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    energies = []
    for _ in range(100):
        x = torch.randn(512, 256).to(device)
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(x), x.roll(1, 0))
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        energies.append(model(x).square().mean())
    print(f"mean energy {torch.stack(energies).mean():.3f}")


if __name__ == "__main__":
    main()
