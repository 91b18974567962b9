"""How likely a count is by chance, and how sure a share is.

In: k of n, and the chance of each. Out: the exact binomial tail, and Wilson's interval. Both are a
few lines over the standard library, exact for the counts met here, and need no statistics package.

| k of n, chance 1/4 | at least k by chance | share, 95 %  |
|--------------------|----------------------|--------------|
| 5 of 5             | 0.00098              | 0.57 to 1.00 |
| 10 of 40           | 0.56                 | 0.14 to 0.40 |

The steps are taken for independent. A disturbance that lasts some steps makes chance look less
likely than it is, which is why a rank must also be late in most steps to be called persistently late.
"""

from math import exp, lgamma, log, sqrt
from statistics import NormalDist

_Z95 = NormalDist().inv_cdf(0.975)


def at_least(k: int, n: int, chance: float) -> float:
    """Return the probability of k or more of n independent trials, each with `chance` (0 to 1)."""
    if k <= 0 or chance >= 1:
        return 1.0
    if k > n or chance <= 0:
        return 0.0
    yes, no = log(chance), log(1 - chance)
    whole = lgamma(n + 1)
    terms = (
        exp(whole - lgamma(i + 1) - lgamma(n - i + 1) + i * yes + (n - i) * no)
        for i in range(k, n + 1)
    )
    return min(1.0, sum(terms))


def wilson(k: int, n: int, z: float = _Z95) -> tuple[float, float]:
    """Return the interval in which the true share lies with 95 % confidence, by Wilson; n above 0."""
    share, spread = k / n, z * z / n
    middle = (share + spread / 2) / (1 + spread)
    half = z / (1 + spread) * sqrt(share * (1 - share) / n + spread / (4 * n))
    # At the ends the bounds are exact, whatever rounding says.
    low = max(0.0, middle - half) if k else 0.0
    return low, min(1.0, middle + half) if k < n else 1.0
