"""Maxima of quadratic and cubic forms in (a, b), the norms of a direction's components in x and in y.

Along a unit direction the second and the third derivative of g are sums of blocks. Bounding each block by its norm
gives forms in a, b >= 0, a^2 + b^2 = 1, with non-negative coefficients. Their maxima bound the operator norms of the
derivatives, since a symmetric multilinear form is largest where its arguments are equal. On a convex set this suffices
for L1g and L2g.
"""

import math

import numpy as np


def largest_square(aa: float, ab: float, bb: float) -> float:
    """The maximum of aa a^2 + 2 ab a b + bb b^2: the largest eigenvalue of [[aa, ab], [ab, bb]].

    >>> largest_square(0.0, 2.0, 3.0)
    4.0
    """
    return (aa + bb) / 2 + math.hypot((aa - bb) / 2, ab)


def largest_cubic(aaa: float, aab: float, abb: float, bbb: float) -> float:
    """The maximum of aaa a^3 + aab a^2 b + abb a b^2 + bbb b^3.

    >>> round(largest_cubic(0.0, 0.0, 3.0, 0.0) / (2 / math.sqrt(3)), 12)
    1.0
    """
    largest = max(aaa, aab, abb, bbb)
    if largest == 0 or not math.isfinite(largest):
        return largest  # nothing to maximise; `Constants` refuses infinite values
    # Coefficients too small to change a digit are dropped: companion matrices would overflow with them.
    shares = (coefficient / largest for coefficient in (aaa, aab, abb, bbb))
    aaa, aab, abb, bbb = (share if share > 1e-100 else 0.0 for share in shares)

    def value(ratio: float) -> float:
        a, b = ratio / math.hypot(1, ratio), 1 / math.hypot(1, ratio)
        return ((aaa * a + aab * b) * a + abb * b * b) * a + bbb * b * b * b

    # Roots of the derivative in the ratio a/b, computed for a/b and for b/a: if one coefficient is far smaller than the
    # others, one of the two loses its moderate roots. Extra ratios do no harm: none exceeds the maximum.
    derivative = [-aab, 3 * aaa - 2 * abb, 2 * aab - 3 * bbb, abb]
    ratios = [float(root) for root in np.roots(derivative).real if root > 0]
    ratios += [1 / float(root) for root in np.roots(derivative[::-1]).real if root > 0]
    return largest * max([aaa, bbb, *map(value, ratios)])
