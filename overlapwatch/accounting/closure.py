"""How a result shows that it adds up: two numbers reached by different ways, side by side.

In: the two sides. Out: a `Check` that says whether they agree. It does not know how they were
computed; whoever makes one takes care that the sides do not come from the same expression.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Check:
    """`left` must equal `right` exactly.

    Args:
        name: what is claimed, in words: "compute = compute only + overlap".
        left, right: the two sides of the claim, in its order.
        unit: "ns", "bytes", "collectives", ...

    """

    name: str
    left: int
    right: int
    unit: str = "ns"

    @property
    def ok(self) -> bool:
        """Whether the sides agree."""
        return self.left == self.right

    def to_dict(self) -> dict[str, str | int | bool]:
        """Return the check as plain values, for JSON."""
        return {
            "name": self.name,
            "left": self.left,
            "right": self.right,
            "unit": self.unit,
            "ok": self.ok,
        }
