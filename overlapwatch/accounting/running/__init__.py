"""A run that still goes on, told from its latest step summaries and from what its rings hold.

In: a `RunNow`. Out: a `RunView`.
"""

from overlapwatch.accounting.running.look import ORDERS, Order, look
from overlapwatch.accounting.running.views import RankView, RunView

__all__ = ["ORDERS", "Order", "RankView", "RunView", "look"]
