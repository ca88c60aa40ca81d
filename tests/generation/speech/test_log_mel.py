"""Features of recordings: held against sums by the definition, and transformers' numbers."""

from __future__ import annotations

import math

import numpy as np
import pytest

from glnn.generation.speech.log_mel import log_mel, mel_bands


def bands_by_definition(bins: int) -> np.ndarray:
    """Triangles on Slaney's mel scale, of area 1 (Slaney 1998, Auditory Toolbox), one by one."""

    def hertz(mels: float) -> float:
        return mels * 200 / 3 if mels < 15 else 1000 * 6.4 ** ((mels - 15) / 27)

    most = 15 + 27 * math.log(8) / math.log(6.4)  # of 8000 Hz
    edges = [hertz(i * most / (bins + 1)) for i in range(bins + 2)]
    result = np.zeros((bins, 201))
    for i in range(bins):
        low, middle, high = edges[i : i + 3]
        for j in range(201):
            hz = 40.0 * j
            if low < hz < high:
                share = (
                    (hz - low) / (middle - low) if hz <= middle else (high - hz) / (high - middle)
                )
                result[i, j] = share * 2 / (high - low)
    return result


def by_definition(samples: np.ndarray, bins: int) -> np.ndarray:
    """The features by a discrete Fourier transform written out, in float64."""
    padded = np.concatenate((samples[200:0:-1], samples, np.zeros(1000))).astype(np.float64)
    n = np.arange(400)
    hann = np.sin(np.pi * n / 400) ** 2
    angles = 2 * np.pi * np.outer(np.arange(201), n) / 400
    frames = [padded[i * 160 : i * 160 + 400] * hann for i in range(len(samples) // 160 + 3)]
    energy = [(np.cos(angles) @ one) ** 2 + (np.sin(angles) @ one) ** 2 for one in frames]
    mels = np.log10(np.maximum(np.array(energy) @ bands_by_definition(bins).T, 1e-10)).T
    return ((np.maximum(mels, mels.max() - 8) + 4) / 4)[:, : len(samples) // 160]


@pytest.mark.parametrize("bins", [80, 128])
def test_bands_are_triangles_on_slaneys_scale(bins) -> None:
    np.testing.assert_allclose(mel_bands(bins), bands_by_definition(bins), atol=1e-12)


@pytest.mark.parametrize("bins", [80, 128])
@pytest.mark.parametrize("count", [480, 1600, 16159, 5000])
def test_features_are_those_of_the_definition(bins, count) -> None:
    generator = np.random.default_rng(count)
    times = np.arange(count) / 16000
    samples = 0.3 * np.sin(2 * np.pi * 700 * times * (1 + times))
    samples += 0.01 * generator.standard_normal(count) * (times < times[-1] / 2)
    found = log_mel(samples.astype(np.float32), bins)
    assert found.dtype == np.float32
    assert found.shape == (bins, count // 160)
    expected = by_definition(samples.astype(np.float32), bins)
    np.testing.assert_allclose(found, expected, atol=1e-5)


def test_long_recordings_are_computed_in_parts() -> None:
    samples = np.random.default_rng(0).standard_normal(160 * 5000).astype(np.float32)
    whole = log_mel(samples, 80)
    part = log_mel(samples[160 * 4000 : 160 * 4400], 80)  # frames 4096 begin another part
    inner = slice(10, 390)
    np.testing.assert_allclose(whole[:, 4010:4390], part[:, inner], atol=1e-5)


@pytest.mark.parametrize("count", [0, 1, 159, 160, 201])
def test_short_recordings_have_the_frames_that_fit(count) -> None:
    found = log_mel(np.ones(count, np.float32), 80)
    assert found.shape == (80, count // 160)
    assert np.isfinite(found).all()


def test_silence_is_the_least() -> None:
    found = log_mel(np.zeros(1600, np.float32), 80)
    np.testing.assert_array_equal(found, np.full((80, 10), -1.5, np.float32))  # (-10 + 4) / 4


def test_features_are_those_of_transformers() -> None:
    """By WhisperFeatureExtractor 5.24's NumPy branch: 0.5 sin of 1 kHz, for 3 s, padded to 30."""
    samples = np.zeros(480000, np.float32)
    samples[:48000] = 0.5 * np.sin(2 * np.pi * 1000 * np.arange(48000) / 16000)
    found = log_mel(samples, 80)
    for (band, frame), expected in TRANSFORMERS.items():
        assert abs(found[band, frame] - expected) < 1e-5


TRANSFORMERS: dict[tuple[int, int], float] = {
    (0, 0): 0.7997479,
    (10, 0): 0.8393790,
    (22, 5): -0.5603483,
    (23, 100): -0.5603483,
    (24, 150): 1.1421807,
    (25, 200): 1.3411252,
    (26, 298): 1.4396517,
    (30, 299): 0.3088988,
    (50, 300): 0.3022441,
    (79, 301): -0.5603483,
    (40, 302): -0.5603483,
    (79, 2999): -0.5603483,
}
