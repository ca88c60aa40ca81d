"""What the programs are given: a photograph, drawn text, sound made here, and two small models."""

from __future__ import annotations

import sys
import wave
from pathlib import Path

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper
from PIL import Image, ImageDraw, ImageFont
from skimage import data

RATE = 16000
VOWELS = ((730, 1090, 2440), (270, 2290, 3010), (300, 870, 2240), (530, 1840, 2480))
"""Resonances of a voice in Hz: Peterson and Barney 1952."""
LINES = ("Neural networks", "read this exactly", "12,345.67 is a number")


def write(folder: Path) -> None:
    """All inputs into `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    Image.fromarray(data.astronaut()).resize((320, 320)).save(folder / "face.png")
    drawn(LINES, (420, 200)).save(folder / "page.png")
    drawn(("glnn",), (90, 48), 6).save(folder / "word.png")
    np.save(folder / "speech.npy", speech())
    samples = (tones() * 32767).astype("<i2")
    with wave.open(str(folder / "tones.wav"), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(22050)
        file.writeframes(samples.tobytes())
    models = {"mask": mask(), "arcface": arcface(), "scrfd": scrfd()}
    for name, model in models.items():
        onnx.checker.check_model(model)
        onnx.save(model, folder / f"{name}.onnx")


def drawn(lines: tuple[str, ...], size: tuple[int, int], at: int = 16) -> Image.Image:
    """Lines of black text on white."""
    page = Image.new("RGB", size, "white")
    draw = ImageDraw.Draw(page)
    for i, line in enumerate(lines):
        draw.text((at + 8, at + 56 * i), line, "black", ImageFont.load_default(28))
    return page


def speech() -> NDArray[np.float32]:
    """Three seconds: hiss, and vowels from 1 s to 2.2 s."""
    generator = np.random.default_rng(0)
    sound = 0.002 * generator.standard_normal(3 * RATE)
    time = np.arange(4800) / RATE
    pulses = (np.sin(2 * np.pi * 120 * time) > 0.97).astype(float)
    for i, resonances in enumerate(VOWELS):
        voice = np.zeros_like(time)
        for hertz in resonances:
            ring = np.exp(-500 * time[:800]) * np.sin(2 * np.pi * hertz * time[:800])
            voice += np.convolve(pulses, ring)[: len(time)]
        start = RATE + i * len(time)
        sound[start : start + len(time)] += 0.3 * voice / np.abs(voice).max()
    return sound.astype(np.float32)


def tones() -> NDArray[np.float64]:
    """Four notes of half a second, 22,050 samples a second, with overtones that fade."""
    time = np.arange(11025) / 22050
    parts = []
    for hertz in (261.63, 329.63, 392.0, 523.25):
        waves = [np.sin(2 * np.pi * k * hertz * time) / k**2 for k in (1, 2, 3)]
        parts.append(0.4 * np.exp(-3 * time) * np.sum(waves, axis=0))
    return np.concatenate(parts)


class Net:
    """An ONNX model of convolutions with seeded weights, node by node."""

    def __init__(self) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.weights: list[onnx.TensorProto] = []
        self._generator = np.random.default_rng(0)

    def node(self, kind: str, *inputs: str, name: str = "", **attributes: object) -> str:
        name = name or f"{kind.lower()}{len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, inputs, [name], name=name, **attributes))
        return name

    def constant(self, array: NDArray[np.generic]) -> str:
        name = f"w{len(self.weights)}"
        self.weights.append(numpy_helper.from_array(np.asarray(array), name))
        return name

    def conv(self, x: str, before: int, after: int, stride: int = 1, size: int = 3) -> str:
        """A convolution and its bias."""
        shape = (after, before, size, size)
        scale = np.sqrt(2 / (before * size * size))
        weight = scale * self._generator.standard_normal(shape)
        bias = 0.1 * self._generator.standard_normal(after)
        names = [self.constant(array.astype(np.float32)) for array in (weight, bias)]
        pads = [size // 2] * 4
        return self.node("Conv", x, *names, strides=[stride] * 2, pads=pads)

    def model(self, shape: list[int | str], outputs: dict[str, list[int | str]]) -> onnx.ModelProto:
        def info(name: str, dims: list[int | str]) -> onnx.ValueInfoProto:
            return helper.make_tensor_value_info(name, TensorProto.FLOAT, dims)

        graph = helper.make_graph(
            self.nodes,
            "net",
            [info("input.1", shape)],
            [info(name, dims) for name, dims in outputs.items()],
            self.weights,
        )
        opset = helper.make_opsetid("", 13)
        return helper.make_model(graph, opset_imports=[opset], ir_version=8)


def mask() -> onnx.ModelProto:
    """A mask of an image, down to an eighth and up again, as U^2-Net has it in much larger."""
    net = Net()
    x = "input.1"
    for before, after in ((3, 8), (8, 16), (16, 16)):
        x = net.node("Relu", net.conv(x, before, after, 2))
    for _ in range(3):
        scales = net.constant(np.array([1, 1, 2, 2], np.float32))
        x = net.node(
            "Resize", x, "", scales, mode="linear", coordinate_transformation_mode="half_pixel"
        )
        x = net.node("Relu", net.conv(x, 16, 16))
    net.node("Sigmoid", net.conv(x, 16, 1), name="mask")
    return net.model(["n", 3, "h", "w"], {"mask": ["n", 1, "h", "w"]})


def arcface() -> onnx.ModelProto:
    """A face's 64 numbers, of PReLUs and a dense layer behind them, as ArcFace has it."""
    net = Net()
    x = "input.1"
    for before, after in ((3, 8), (8, 16), (16, 16), (16, 16)):
        slope = net.constant(np.full((after, 1, 1), 0.25, np.float32))
        x = net.node("PRelu", net.conv(x, before, after, 2), slope)
    x = net.node("Flatten", x)
    weight = np.random.default_rng(1).standard_normal((64, 16 * 49)) / 28
    net.node("Gemm", x, net.constant(weight.astype(np.float32)), transB=1, name="embedding")
    return net.model(["None", 3, 112, 112], {"embedding": ["None", 64]})


def scrfd() -> onnx.ModelProto:
    """A detector's nine results: scores, boxes and points at strides of 8, 16 and 32."""
    net = Net()
    x = net.node("Relu", net.conv("input.1", 3, 8, 2))
    x = net.node("Relu", net.conv(x, 8, 16, 2))
    outputs: dict[str, list[int | str]] = {}
    levels = []
    for _ in range(3):
        x = net.node("Relu", net.conv(x, 16, 16, 2))
        levels.append(x)
    for kind, numbers in (("score", 1), ("bbox", 4), ("kps", 10)):
        for stride, level in zip((8, 16, 32), levels):
            rows = net.conv(level, 16, 2 * numbers, size=1)
            rows = net.node("Transpose", rows, perm=[2, 3, 0, 1])
            shape = net.constant(np.array([-1, numbers]))
            name = f"{kind}_{stride}"
            if kind == "score":
                net.node("Sigmoid", net.node("Reshape", rows, shape), name=name)
            else:
                net.node("Reshape", rows, shape, name=name)
            outputs[name] = [f"rows_{stride}", numbers]
    return net.model([1, 3, "?", "?"], outputs)


if __name__ == "__main__":
    write(Path(sys.argv[1]))
