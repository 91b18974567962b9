"""Where the device's clock lies on the host's: an interval that is certain, not a guess.

In: for each completed event, its device time, when the host recorded it (or last saw it incomplete) and when the host
first saw it complete. Out: the interval of offsets (host = device + offset) that no event contradicts.

An event not complete at `before` and complete at `seen` happened between the two, so its offset lies in
`[before - d, seen - d]`, d being its device time. Intervals of several events are intersected. The two clocks drift
apart by at most `drift_ppm` (assumed), so what an event said is loosened by that much per ns of device time since.
With 10,000 ppm, and without the slack for the resolution of events:

    device    before  seen   says             loosened before    feasible after
         0       100   400   [100, 400]       -                  [100, 400]
      1000      1150  1300   [150, 300]       [90, 410]          [150, 300]
      2000      2120  2160   [120, 160]       [140, 310]         [140, 160]
      3000      3300  3400   [300, 400]       [130, 170]         [300, 400], a restart

An empty intersection means that a clock drifted faster than assumed, or was set: the estimate restarts from the last
event alone, and the restart is counted.
"""

DRIFT_PPM = 100
"""How fast host and device clock may drift apart. Crystals differ by a few tens of ppm at most."""

RESOLUTION_NS = 1000
"""Slack of each bound: devices document about 0.5 us for the time of an event, and two events make a difference."""


class OffsetEstimate:
    """The feasible offsets, in ns, as of the newest device time seen."""

    def __init__(self, drift_ppm: int = DRIFT_PPM, resolution_ns: int = RESOLUTION_NS) -> None:
        self.restarts = 0
        self._drift_ppm = drift_ppm
        self._resolution_ns = resolution_ns
        self._low = self._high = self._at = 0
        self._started = False

    def observe(self, device_ns: int, before_ns: int, seen_ns: int, error_ns: int = 0) -> None:
        """Take in one completed event; `error_ns` bounds the rounding of its device time."""
        slack = self._resolution_ns + error_ns
        low, high = before_ns - device_ns - slack, seen_ns - device_ns + slack
        if not self._started:
            self._low, self._high, self._at, self._started = low, high, device_ns, True
            return
        drift = self._drift(device_ns)
        if device_ns > self._at:
            self._low, self._high, self._at = self._low - drift, self._high + drift, device_ns
        else:  # completed on another stream, before the newest event: what it says is the older news
            low, high = low - drift, high + drift
        if max(low, self._low) > min(high, self._high):
            self.restarts += 1
            self._low, self._high = low, high
            return
        self._low, self._high = max(low, self._low), min(high, self._high)

    def loosen(self, error_ns: int) -> None:
        """Device times from here on are `error_ns` less sure relative to the earlier ones (a rounded re-anchoring)."""
        self._low -= error_ns
        self._high += error_ns

    def feasible(self, device_ns: int) -> tuple[int, int] | None:
        """Return the lowest and highest offset possible at a device time; None before the first event."""
        if not self._started:
            return None
        drift = self._drift(device_ns)
        return self._low - drift, self._high + drift

    def _drift(self, device_ns: int) -> int:
        return -(-abs(device_ns - self._at) * self._drift_ppm // 1_000_000)
