"""Recordings: files of WAV, samples in arrays, other rates."""

from __future__ import annotations

import struct
import sys
import wave
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from glnn.errors import ModelError, ShapeError
from glnn.generation.speech.recordings import BLOCK, read_recording, resample


def write(path: Path, raw: bytes, width: int, channels: int = 1, rate: int = 16000) -> Path:
    with wave.open(str(path), "wb") as file:
        file.setparams((channels, width, rate, 0, "NONE", ""))
        file.writeframes(raw)
    return path


def whole_numbers(values: list[float], width: int) -> bytes:
    """Samples as files have them: of one byte without a sign, others with one."""
    most = 2 ** (8 * width - 1)
    numbers = [min(round(value * most), most - 1) for value in values]
    if width == 1:
        return bytes(number + 128 for number in numbers)
    return b"".join(number.to_bytes(width, "little", signed=True) for number in numbers)


@pytest.mark.parametrize("width", [1, 2, 3, 4])
def test_samples_of_each_width(tmp_path: Path, width) -> None:
    values = [0.0, 0.5, -0.5, -1.0, 0.25, 1.0]
    found = read_recording(write(tmp_path / "a.wav", whole_numbers(values, width), width))
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, values, atol=2.0 ** (1 - 8 * width))
    assert found[1] == 0.5 and found[3] == -1.0  # which each width has


def test_channels_are_mixed(tmp_path: Path) -> None:
    raw = whole_numbers([0.5, -0.25, 0.0, 1 / 4, -1.0, -0.5], 2)
    found = read_recording(write(tmp_path / "a.wav", raw, 2, channels=2))
    np.testing.assert_allclose(found, [0.125, 0.125, -0.75], atol=1e-6)
    samples = np.array([[0.5, -0.25], [0, 0.25], [-1, -0.5]])
    np.testing.assert_allclose(read_recording(samples), found, atol=1e-6)


@pytest.mark.parametrize(
    ("dtype", "value"), [(np.int16, 16384), (np.int32, 1 << 30), (np.float64, 0.5)]
)
def test_samples_in_arrays(dtype, value) -> None:
    found = read_recording(np.array([0, value, -value], dtype))
    np.testing.assert_array_equal(found, np.array([0, 0.5, -0.5], np.float32))


@pytest.mark.parametrize("rate", [8000, 11025, 22050, 32000, 44100, 48000, 12345])
def test_tones_of_other_rates_are_the_same_tones(rate) -> None:
    tones = [200.0, 1234.5, 0.4 * min(rate, 16000)]
    times = np.arange(rate) / rate
    samples = sum(np.sin(2 * np.pi * hz * times) for hz in tones) / 3
    found = read_recording(samples.astype(np.float32), rate)
    assert len(found) == 16000
    times = np.arange(16000) / 16000
    expected = sum(np.sin(2 * np.pi * hz * times) for hz in tones) / 3
    np.testing.assert_allclose(found[800:-800], expected[800:-800], atol=1e-4)


@pytest.mark.parametrize("rate", [22050, 44100, 48000])
def test_what_the_lower_rate_has_not_is_gone(rate) -> None:
    samples = np.sin(2 * np.pi * 9000 * np.arange(rate) / rate).astype(np.float32)
    assert abs(resample(samples, rate)[800:-800]).max() < 1e-4


@pytest.mark.parametrize("count", [0, 1, 2, 7, 441])
@pytest.mark.parametrize("rate", [8000, 44100, 16001])
def test_short_recordings_have_as_many_seconds(count, rate) -> None:
    found = resample(np.full(count, 0.5, np.float32), rate)
    assert len(found) == -(-count * 16000 // rate)
    assert np.isfinite(found).all()


@pytest.mark.parametrize(
    ("recording", "rate", "message"),
    [
        ([0.0, 1.0], None, "must be a file's path, or an array"),
        (np.zeros(3, np.uint8), None, r"float32, float64, int16 or int32, got uint8 \(3,\)"),
        (np.zeros((2, 2, 2), np.float32), None, r"of at most 64, got \(2, 2, 2\)"),
        (np.zeros((2, 0), np.float32), None, r"got \(2, 0\)"),
        (np.array([0, np.nan], np.float32), None, "must be finite"),
    ],
)
def test_what_is_no_recording(recording, rate, message) -> None:
    with pytest.raises(ShapeError, match=message):
        read_recording(recording, rate)


@pytest.mark.parametrize("rate", [0, 999, 1 << 30, 16000.5, True])
def test_rates_that_cannot_be(rate) -> None:
    with pytest.raises(ModelError, match="rate must be an integer from 1000 to"):
        read_recording(np.zeros(5, np.float32), rate)


def test_files_say_their_rate(tmp_path: Path) -> None:
    path = write(tmp_path / "a.wav", bytes(10), 2)
    with pytest.raises(ModelError, match="a file says its own: got 8000"):
        read_recording(path, 8000)


def test_files_that_cannot_be_read(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "soundfile", None)  # as where it is not installed
    path = write(tmp_path / "a.wav", bytes(2000), 2)
    raw = path.read_bytes()
    for content, message in (
        (raw[:1000], "it has 1000 bytes, its header 2000"),
        (raw[:20], "cannot be read as WAV: it is cut short"),
        (raw[:4], "cannot be read as WAV"),
        (b"", "need the package soundfile"),
        (b"OggS" + bytes(100), "need the package soundfile"),
        (raw[:20] + struct.pack("<H", 3) + raw[22:], "need the package soundfile"),  # of floats
        (raw[:24] + bytes(4) + raw[28:], "its rate must be an integer from 1000 to 1048576, got 0"),
    ):
        path.write_bytes(content)
        with pytest.raises(ModelError, match=message):
            read_recording(path)
    with pytest.raises(ModelError, match="no such file"):
        read_recording(tmp_path / "none.wav")
    with pytest.raises(ModelError, match="is not a file"):
        read_recording(tmp_path)


def test_recordings_of_pipes_have_no_length(tmp_path: Path) -> None:
    path = write(tmp_path / "a.wav", whole_numbers([0.5] * 9, 2), 2)
    raw = bytearray(path.read_bytes())
    raw[40:44] = b"\xff\xff\xff\xff"
    path.write_bytes(raw)
    np.testing.assert_array_equal(read_recording(path), np.full(9, 0.5, np.float32))


class SoundFile:
    """A stand-in for soundfile's, of samples that come in blocks until there are none."""

    def __init__(self, samples: np.ndarray, rate: int = 16000, error: str = "") -> None:
        self.samples, self.samplerate, self.channels = samples, rate, samples.shape[1]
        self.frames, self.error = len(samples), error

    def __call__(self, path: Path) -> SoundFile:
        assert path.read_bytes() == b"fLaC"
        return self

    def __enter__(self) -> SoundFile:
        return self

    def __exit__(self, *_: object) -> None: ...

    def read(self, frames: int, dtype: str, always_2d: bool) -> np.ndarray:
        assert dtype == "float32" and always_2d
        if self.error and not len(self.samples):
            raise RuntimeError(self.error)
        found, self.samples = self.samples[:frames], self.samples[frames:]
        return found


@pytest.mark.parametrize("count", [0, 2, 2 * BLOCK + 2])
def test_other_formats_are_read_by_soundfile(tmp_path: Path, monkeypatch, count) -> None:
    samples = np.tile(np.array([[0.5, 0.25], [-0.5, 0.25]], np.float32), (count // 2, 1))
    monkeypatch.setitem(sys.modules, "soundfile", SimpleNamespace(SoundFile=SoundFile(samples)))
    path = tmp_path / "a.flac"
    path.write_bytes(b"fLaC")
    wanted = np.tile(np.array([0.375, -0.125], np.float32), count // 2)
    np.testing.assert_array_equal(read_recording(path), wanted)


@pytest.mark.parametrize(
    ("file", "message"),
    [
        (SoundFile(np.zeros((7, 1)), 999), "a.flac: its rate must be an integer from 1000"),
        (SoundFile(np.zeros((7, 65))), "a.flac: a recording must have up to 64 channels, got 65"),
        (
            SoundFile(np.zeros((7, 1)), error="bad frame"),
            "a.flac: .* of 7 samples, as it says: bad frame",
        ),
    ],
)
def test_what_soundfile_cannot_give(tmp_path: Path, monkeypatch, file, message) -> None:
    monkeypatch.setitem(sys.modules, "soundfile", SimpleNamespace(SoundFile=file))
    path = tmp_path / "a.flac"
    path.write_bytes(b"fLaC")
    with pytest.raises(ModelError, match=message):
        read_recording(path)


@pytest.mark.parametrize("said", [0, 1 << 29, (1 << 36) - 1])
def test_lengths_that_files_say_are_not_believed(tmp_path: Path, said) -> None:
    soundfile = pytest.importorskip("soundfile")
    path = tmp_path / "a.flac"
    soundfile.write(path, np.zeros(1000, np.float32), 16000)
    raw = bytearray(path.read_bytes())
    raw[21] = raw[21] & 0xF0 | said >> 32  # of the number of samples, 36 bits, the first four
    raw[22:26] = (said & 0xFFFFFFFF).to_bytes(4, "big")
    path.write_bytes(raw)
    with pytest.raises(ModelError, match=r"a.flac: .* of \d{9,} samples, as it says"):
        read_recording(path)


def test_files_without_numbers_are_named(tmp_path: Path, monkeypatch) -> None:
    file = SoundFile(np.array([[np.inf, -np.inf]], np.float32))
    monkeypatch.setitem(sys.modules, "soundfile", SimpleNamespace(SoundFile=file))
    path = tmp_path / "a.flac"
    path.write_bytes(b"fLaC")
    with pytest.raises(ShapeError, match=r"a.flac: its samples must be finite"):
        read_recording(path)


def test_files_made_to_harm(tmp_path: Path) -> None:
    generator = np.random.default_rng(0)
    path = write(tmp_path / "a.wav", bytes(400), 2)
    raw = path.read_bytes()
    for _ in range(400):
        changed = bytearray(raw[: generator.integers(len(raw) + 1)])
        for place in generator.integers(0, max(min(len(changed), 48), 1), 2):
            if changed:
                changed[place] = generator.integers(256)
        path.write_bytes(changed)
        try:
            assert len(read_recording(path)) < 1 << 24
        except ModelError as error:
            assert str(path) in str(error)
