"""Log-mel features of a recording, as in whisper's training (Radford et al. 2022, section 2.2).

Frames are Hann windows of 25 ms, one every 10 ms. Features are log10 of the energy in triangular
bands, equally wide on Slaney's mel scale and of equal area, clipped to 8 below the recording's
greatest.
"""

from __future__ import annotations

from functools import cache

import numpy as np

from glnn.core.types import Array

RATE = 16000
"""Samples a second."""
HOP = 160
"""Samples from one frame to the next."""
WINDOW = 400  # samples of a frame
BINS = (80, 128)
"""The numbers of mel bands of models."""
CHUNK = 4096  # frames that are computed at a time
LINEAR_HZ, LINEAR_MELS = 1000.0, 15.0  # below this mels are proportional to frequency
MELS_PER_EFOLD = 27.0 / np.log(6.4)  # above it, mels for each factor e of the frequency


def log_mel(samples: Array, bins: int) -> Array:
    """Return the features of `samples`, (bins, len(samples) // HOP) float32.

    samples: (n,) floats from -1 to 1, RATE a second; they are padded with silence.
    """
    count = len(samples) // HOP
    all_frames = count + 3  # those with any samples; the greatest energy may be in the last ones
    padding = max((all_frames - 1) * HOP + WINDOW // 2 - len(samples), WINDOW)
    signal = np.pad(samples, (0, padding))
    signal = np.pad(signal, (WINDOW // 2, 0), "reflect")
    frames = np.lib.stride_tricks.sliding_window_view(signal, WINDOW)[::HOP][:all_frames]
    hann = 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(WINDOW) / WINDOW)
    bands = mel_bands(bins)
    result = np.empty((bins, all_frames), np.float32)
    for first in range(0, all_frames, CHUNK):
        spectrum = np.fft.rfft(frames[first : first + CHUNK] * hann, axis=1)
        energy = spectrum.real**2 + spectrum.imag**2
        result[:, first : first + CHUNK] = np.log10(np.maximum(bands @ energy.T, 1e-10))
    result = np.maximum(result, result.max() - 8.0)
    return np.asarray((result[:, :count] + 4.0) / 4.0, np.float32)


@cache
def mel_bands(bins: int) -> Array:
    """Return the weights of frequencies in each band, (bins, WINDOW // 2 + 1) float64."""
    frequencies = np.fft.rfftfreq(WINDOW, 1 / RATE)
    edges = _hertz(np.linspace(0.0, _mels(RATE / 2), bins + 2))
    low, middle, high = edges[:-2, None], edges[1:-1, None], edges[2:, None]
    rising, falling = (frequencies - low) / (middle - low), (high - frequencies) / (high - middle)
    return np.asarray(np.maximum(0.0, np.minimum(rising, falling)) * (2.0 / (high - low)))


def _mels(hertz: float) -> float:
    if hertz < LINEAR_HZ:
        return hertz * LINEAR_MELS / LINEAR_HZ
    return float(LINEAR_MELS + MELS_PER_EFOLD * np.log(hertz / LINEAR_HZ))


def _hertz(mels: Array) -> Array:
    linear = mels * LINEAR_HZ / LINEAR_MELS
    return np.where(
        mels < LINEAR_MELS, linear, LINEAR_HZ * np.exp((mels - LINEAR_MELS) / MELS_PER_EFOLD)
    )
