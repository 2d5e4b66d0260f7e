"""A torch module as a teacher. Training, seeds, saving and loading are the framework's."""

from torch import Tensor, nn


class Network(nn.Module):
    """Two layers with BatchNorm; finds the number of features by itself."""

    def __init__(self, classes: int, hidden: int = 32) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Flatten(),
            nn.LazyLinear(hidden),
            nn.BatchNorm1d(hidden),
            nn.ReLU(),
            nn.Dropout(0.1),
            nn.Linear(hidden, classes),
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x)
