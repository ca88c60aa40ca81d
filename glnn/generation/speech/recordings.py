"""Recordings: reads files and arrays as mono samples at whisper's rate."""

from __future__ import annotations

import os
import wave
from math import gcd
from pathlib import Path

import numpy as np

from glnn.core.fileio import check_file, open_regular
from glnn.core.process import check_memory
from glnn.core.types import Array
from glnn.errors import ModelError, ShapeError, extra, fault, shown
from glnn.generation.speech.log_mel import RATE

LEAST_RATE, MOST_RATE = 1000, 1 << 20
"""Limits of a recording's samples per second."""
MOST_CHANNELS = 64
BLOCK = 1 << 18  # samples of each channel that soundfile reads at once
UNKNOWN_BYTES = 0xFFFF0000  # programs that write to a pipe set lengths of this or more
ZERO_CROSSINGS = 32  # of the resampling filter, on either side
KAISER_BETA = 8.6  # of its window: a stopband attenuation of 90 dB
PASSBAND = 0.95  # of half of the lower rate

Recording = str | os.PathLike[str] | Array
"""A file, or samples (n,) or (n, channels)."""


def read_recording(recording: Recording, rate: int | None = None) -> Array:
    """Return the samples of a recording, (n,) float32 from -1 to 1, RATE a second.

    recording: a WAV file, or another that the package soundfile reads; or samples (n,) or (n,
    channels), float32 or float64, or integers of int16 or int32. rate: of samples in an array, by
    default RATE; a file has its own. Channels are averaged. Raises ModelError for a file that
    cannot be read, ShapeError for arrays that are no samples.
    """
    if isinstance(recording, (str, os.PathLike)):
        if rate is not None:
            raise ModelError(f"rate is for samples, a file says its own: got {shown(rate)}")
        samples, rate = _read_file(Path(recording))
    else:
        samples = _as_floats(recording)
        rate = RATE if rate is None else _rate("rate", rate)
    with np.errstate(invalid="ignore", over="ignore"):
        mixed = samples if samples.ndim == 1 else samples.mean(axis=1, dtype=np.float32)
    if not np.isfinite(mixed).all():
        owner = "a recording's" if isinstance(recording, np.ndarray) else f"{recording}: its"
        raise ShapeError(f"{owner} samples must be finite, got infinity or NaN")
    return resample(mixed, rate)


def _rate(name: str, value: object) -> int:
    """Return `value` as samples per second. Raises ModelError where it is out of range."""
    is_integer = isinstance(value, (int, np.integer)) and not isinstance(value, bool)
    if not is_integer or not LEAST_RATE <= value <= MOST_RATE:  # type: ignore[operator]
        raise ModelError(
            f"{name} must be an integer from {LEAST_RATE} to {MOST_RATE}, got {shown(value)}"
        )
    return int(value)  # type: ignore[call-overload,no-any-return]


def _as_floats(recording: object) -> Array:
    """Return samples in an array as float32. Raises ShapeError for other types and shapes."""
    wanted = "a recording must be a file's path, or an array (samples,) or (samples, channels)"
    if not isinstance(recording, np.ndarray):
        raise ShapeError(f"{wanted}, got {shown(recording)}")
    floats = recording.dtype in (np.float32, np.float64)
    if not floats and recording.dtype not in (np.int16, np.int32):
        raise ShapeError(
            f"{wanted} of float32, float64, int16 or int32, got {recording.dtype} {recording.shape}"
        )
    channels = recording.shape[1] if recording.ndim == 2 else 1
    if recording.ndim not in (1, 2) or not 1 <= channels <= MOST_CHANNELS:
        raise ShapeError(f"{wanted} of at most {MOST_CHANNELS}, got {recording.shape}")
    scale = 1.0 if floats else 1.0 / -float(np.iinfo(recording.dtype).min)
    with np.errstate(over="ignore"):
        return np.asarray(recording * scale, np.float32)


def _read_file(path: Path) -> tuple[Array, int]:
    """Return the samples of a file, (n, channels) float32, and its rate."""
    check_file(path)
    try:
        with open(path, "rb", opener=open_regular) as file:
            if file.read(4) == b"RIFF":
                file.seek(0)
                with wave.open(file) as reader:
                    return _read_wave(path, reader)
    except (wave.Error, EOFError, RuntimeError) as error:
        # The wave module reads integers only; soundfile reads other formats.
        if not str(error).startswith("unknown format"):
            reason = str(error) or "it is cut short"
            raise ModelError(f"{path}: cannot be read as WAV: {reason}") from None
    except OSError as error:
        raise ModelError(f"{path}: cannot be read: {fault(error)}") from None
    return _read_by_soundfile(path)


def _read_wave(path: Path, reader: wave.Wave_read) -> tuple[Array, int]:
    """Return the samples of a WAV file of 8 to 32 bits, (n, channels) float32, and its rate."""
    width, channels, rate = reader.getsampwidth(), reader.getnchannels(), reader.getframerate()
    rate = _rate(f"{path}: its rate", rate)
    if channels > MOST_CHANNELS or not 1 <= width <= 4:
        raise ModelError(
            f"{path}: a recording must have 8 to 32 bits and up to {MOST_CHANNELS} channels, got "
            f"{8 * width} and {channels}"
        )
    size, length = path.stat().st_size, reader.getnframes() * width * channels
    if size < length < UNKNOWN_BYTES:
        raise ModelError(f"{path}: cannot be read as WAV: it has {size} bytes, its header {length}")
    raw = np.frombuffer(reader.readframes(reader.getnframes()), np.uint8)
    raw = raw[: len(raw) // (width * channels) * width * channels].reshape(-1, width)
    if width == 1:  # 8 bits are unsigned
        numbers = raw.astype(np.int32) - 128
    else:
        padded = np.zeros((len(raw), 4), np.uint8)
        padded[:, 4 - width :] = raw
        numbers = padded.view("<i4") >> (8 * (4 - width))
    scale = np.float32(2.0 ** (1 - 8 * width))
    return (numbers.astype(np.float32) * scale).reshape(-1, channels), rate


def _read_by_soundfile(path: Path) -> tuple[Array, int]:
    try:
        import soundfile
    except ImportError:
        raise ModelError(
            f"{path}: recordings that are no WAV of whole numbers need the package soundfile: "
            f"{extra('speech')}"
        ) from None
    # In blocks, since soundfile.read allocates memory for the length in the header.
    blocks: list[Array] = []
    length = ""
    try:
        with soundfile.SoundFile(path) as file:
            length = f" of {file.frames} samples, as it says"
            rate = _rate(f"{path}: its rate", file.samplerate)
            if file.channels > MOST_CHANNELS:
                raise ModelError(
                    f"{path}: a recording must have up to {MOST_CHANNELS} channels, got "
                    f"{file.channels}"
                )
            blocks.append(np.zeros((0, file.channels), np.float32))
            while len(block := file.read(BLOCK, dtype="float32", always_2d=True)):
                blocks.append(block)
                check_memory(2 * block.nbytes * len(blocks), lambda: f"{path}: a recording")
    except (RuntimeError, OSError) as error:
        raise ModelError(f"{path}: cannot be read as a recording{length}: {error}") from None
    return np.concatenate(blocks), rate


def resample(samples: Array, rate: int) -> Array:
    """Return `samples`, (n,) float32 of `rate` a second, as RATE a second.

    Uses a polyphase low-pass filter, a sinc in a Kaiser window (Crochiere and Rabiner 1983, section
    2.4).
    """
    if rate == RATE or not len(samples):
        return samples
    common = gcd(rate, RATE)
    up, down = RATE // common, rate // common
    cutoff = PASSBAND * min(1.0, up / down)  # of half of the recording's rate
    reach = int(np.ceil(ZERO_CROSSINGS / cutoff))
    count = -(-len(samples) * up // down)
    result = np.empty(count, np.float32)
    padded = np.pad(samples, (reach, reach + down + 1))
    windows = np.lib.stride_tricks.sliding_window_view(padded, 2 * reach + 1)
    for phase in range(min(up, count)):
        first, fraction = divmod(phase * down, up)  # the phase's position in samples
        times = np.arange(-reach, reach + 1) - fraction / up
        filter = cutoff * np.sinc(cutoff * times) * _kaiser(times / (reach + 1))
        rows = windows[first::down][: len(range(phase, count, up))]
        result[phase::up] = rows @ (filter / filter.sum()).astype(np.float32)
    return result


def _kaiser(times: Array) -> Array:
    """Return Kaiser's window at times from -1 to 1."""
    roots = np.sqrt(np.maximum(1 - times**2, 0))
    return np.asarray(np.i0(KAISER_BETA * roots) / np.i0(KAISER_BETA))
