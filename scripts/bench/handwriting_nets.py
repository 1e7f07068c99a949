"""Two more nets to search with on the rows of `handwriting.py`, pretrained on scikit-learn's digits.

.venv/bin/python scripts/bench/handwriting_nets.py FOLDER      # mlp.keras, bottlenecks.keras
"""

from __future__ import annotations

from pathlib import Path

from examples.data.digits import augmented, load
from scripts.arguments import parser

import keras  # isort: skip  after examples, which choose its backend
from keras import layers

EPOCHS, LEARNING_RATE, COPIES, NEGATIVES = 4, 2e-3, 7, 0.01


def mlp() -> keras.Model:
    """Three dense layers of 64."""
    image = keras.Input((8, 8, 1))
    x = layers.Flatten()(image)
    for n in (1, 2, 3):
        x = layers.Dense(64, activation="relu", name=f"dense_{n}")(x)
    return keras.Model(image, layers.Dense(10, name="classifier")(x), name="mlp")


def bottlenecks() -> keras.Model:
    """Return a stem and four inverted bottlenecks of 16 channels, as in MobileNetV2."""
    image = keras.Input((8, 8, 1))
    x = layers.Conv2D(16, 3, padding="same", activation="relu", name="stem")(image)
    for n in (1, 2, 3, 4):
        y = layers.Conv2D(48, 1, use_bias=False, name=f"block_{n}_expand")(x)
        y = layers.ReLU(6.0)(layers.BatchNormalization(name=f"block_{n}_expand_BN")(y))
        y = layers.DepthwiseConv2D(3, padding="same", use_bias=False, name=f"block_{n}_depthwise")(y)
        y = layers.ReLU(6.0)(layers.BatchNormalization(name=f"block_{n}_depthwise_BN")(y))
        y = layers.Conv2D(16, 1, use_bias=False, name=f"block_{n}_project")(y)
        x = layers.Add()([x, layers.BatchNormalization(name=f"block_{n}_project_BN")(y)])
    pooled = layers.GlobalAveragePooling2D()(x)
    return keras.Model(image, layers.Dense(10, name="classifier")(pooled), name="bottlenecks")


def main() -> None:
    """Trains both and writes them."""
    options = parser(__doc__)
    options.add_argument("folder", type=Path, metavar="FOLDER", help="where the two files go")
    folder = options.parse_args().folder
    folder.mkdir(parents=True, exist_ok=True)
    digits = augmented(load()[0], COPIES, NEGATIVES, 0)
    keras.utils.set_random_seed(0)
    for make in (mlp, bottlenecks):
        model = make()
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(keras.optimizers.Adam(LEARNING_RATE), loss)
        model.fit(digits.x, digits.y, batch_size=32, epochs=EPOCHS, verbose=0)
        model.compile()
        model.save(folder / f"{model.name}.keras")


if __name__ == "__main__":
    main()
