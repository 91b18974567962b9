import numpy as np
import pytest

from overlapwatch.accounting.ranks.fit import fit_clock

MOMENTS = np.arange(0, 64_000, 1000, dtype=np.int64)


def test_a_constant_offset_is_the_median_whatever_a_few_wrong_moments_say():
    ahead = np.full(64, 500, np.int64)
    ahead[:5] = 900_000
    fit = fit_clock(MOMENTS, ahead)
    assert (fit.offset_ns, fit.drift, fit.count, fit.p50_ns) == (500, 0.0, 64, 0)
    assert fit.p95_ns == 899_500


@pytest.mark.parametrize("gain", [0.01, -0.01])
def test_a_drift_is_found_and_taken_out(gain):
    truth = 1_000_000 + np.rint(MOMENTS * gain).astype(np.int64)
    fit = fit_clock(MOMENTS, truth)
    assert abs(fit.drift - gain) < 1e-5
    assert fit.p95_ns <= 1
    assert (np.abs(fit.ahead(MOMENTS) - truth) <= 10).all()
    assert (np.abs(fit.to_reference(MOMENTS + truth) - MOMENTS) <= 10).all()


def test_noise_is_no_drift():
    noise = np.random.default_rng(1).integers(-100, 100, 64)
    fit = fit_clock(MOMENTS, noise)
    assert fit.drift == 0.0
    assert fit.p95_ns > 80


def test_a_clock_that_was_set_shows_as_a_large_residual():
    ahead = np.where(MOMENTS < 32_000, 0, 1_000_000).astype(np.int64)
    fit = fit_clock(MOMENTS, ahead)
    assert fit.p95_ns > 100_000


def test_what_is_not_known_stays_so():
    fit = fit_clock(MOMENTS, MOMENTS // 100 + 5)
    assert fit.to_reference(np.array([0, 1000], np.int64))[0] == 0
