"""Trains a small image classifier on random data, with five faults that oomlint finds."""

import argparse

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

ACCUMULATION_STEPS = 4


class Classifier(nn.Module):
    def __init__(self, classes: int = 10, width: int = 16):
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(3, width, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(width, 2 * width, 3, padding=1),
            nn.ReLU(),
            nn.AdaptiveAvgPool2d(4),
        )
        self.head = nn.Linear(2 * width * 16, classes)

    def forward(self, images):
        return self.head(self.features(images).flatten(1))


def random_loader(samples: int, batch_size: int) -> DataLoader:
    images = torch.randn(samples, 3, 32, 32)
    labels = torch.randint(0, 10, (samples,))
    return DataLoader(TensorDataset(images, labels), batch_size=batch_size)


def train_epoch(model, loader, optimizer, scaler, device):
    model.train()
    running_loss = 0.0
    for step, (images, labels) in enumerate(loader):
        images, labels = images.to(device), labels.to(device)
        with torch.autocast(device.type, enabled=scaler.is_enabled()):
            loss = F.cross_entropy(model(images), labels)
        scaler.scale(loss).backward()
        running_loss += loss
        if (step + 1) % ACCUMULATION_STEPS == 0:
            torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm=1.0)
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
    return running_loss / len(loader)


def evaluate(model, loader, device):
    model.eval()
    total_loss = 0.0
    correct = 0
    for images, labels in loader:
        images, labels = images.to(device), labels.to(device)
        logits = model(images)
        total_loss += F.cross_entropy(logits, labels)
        correct += (logits.argmax(1) == labels).sum().item()
    return total_loss / len(loader), correct / len(loader.dataset)


def calibrate(model, loader, device):
    """Fits the temperature that the logits are divided by; the model stays as it is."""
    model.eval()
    temperature = nn.Parameter(torch.ones(1, device=device))
    optimizer = torch.optim.SGD([temperature], lr=0.1)
    for images, labels in loader:
        with torch.no_grad():
            logits = model(images.to(device))
        loss = F.cross_entropy(logits / temperature, labels.to(device))
        loss.backward()
        optimizer.zero_grad()
        optimizer.step()
    return temperature.item()


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=2)
    arguments = parser.parse_args()

    torch.manual_seed(0)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    model = Classifier().to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    scaler = torch.amp.GradScaler(device.type, enabled=device.type == "cuda")
    train_loader = random_loader(samples=256, batch_size=32)
    validation_loader = random_loader(samples=128, batch_size=32)

    for epoch in range(arguments.epochs):
        training_loss = train_epoch(model, train_loader, optimizer, scaler, device)
        validation_loss, accuracy = evaluate(model, validation_loader, device)
        print(
            f"epoch {epoch}: training loss {training_loss:.3f}, "
            f"validation loss {validation_loss:.3f}, accuracy {accuracy:.2f}"
        )
    print(f"temperature {calibrate(model, validation_loader, device):.3f}")


if __name__ == "__main__":
    main()
