"""How numbers are written for people: times in ms, sizes in decimal units, shares, counts, bars.

In: integers (ns, bytes, counts), None where a number is not known. Out: short strings without a terminal's markup.
A number that is not known is written "not known", never as a number; a number that is not zero is never written as
zero.

| ns            | `ms`     |     | bytes         | `size`   |
|---------------|----------|-----|---------------|----------|
| 0             | `0`      |     | 0             | `0 B`    |
| 900           | `<0.01`  |     | 12            | `12 B`   |
| 1_234_000     | `1.23`   |     | 8_400_000     | `8.4 MB` |
| 92_100_000    | `92.1`   |     | 5_300_000_000 | `5.3 GB` |
| 412_300_000   | `412.3`  |     |               |          |
| 1_412_300_000 | `1,412.3` |    |               |          |

The numbers of one table share their decimals (`scale`), so that they can be compared at a glance.
"""

from collections.abc import Callable, Iterable

NOT_KNOWN_TEXT = "not known"
NONE = "–"
"""In a table: not known, or nothing to divide by."""
SIZE_UNITS = ("B", "kB", "MB", "GB", "TB", "PB")
EIGHTHS = " ▏▎▍▌▋▊▉"


def ms(ns: int | None) -> str:
    """Write `ns` in ms without its unit: two decimals below 10 ms, one above."""
    if ns is None:
        return NOT_KNOWN_TEXT
    if ns == 0:
        return "0"
    magnitude = abs(ns)
    if magnitude < 5_000:
        return "<0.01" if ns > 0 else "-<0.01"
    return f"{ns / 1e6:.2f}" if magnitude < 9_995_000 else f"{ns / 1e6:,.1f}"


def scale(values: Iterable[int | None]) -> Callable[[int | None], str]:
    """Return a function that writes ns in ms, without the unit, with decimals that suit all values.

    | smallest, largest (ms) | decimals | written             |
    |------------------------|----------|---------------------|
    | 5, 231.8               | 1        | `5.0`, `231.8`      |
    | 0.04, 231.8            | 2        | `0.04`, `231.80`    |
    | 1, 7                   | 2        | `1.00`, `7.00`      |
    | 0.0105, 0.8            | 3        | `0.011`, `0.800`    |

    None is written `–`, 0 is written `0`, what would be rounded to 0 as less than the last place.
    """
    sizes = [abs(ns) for ns in values if ns]
    low, high = min(sizes, default=0), max(sizes, default=0)
    places = 3 if high < 1_000_000 else 2 if low < 1_000_000 or high < 10_000_000 else 1

    def write(ns: int | None) -> str:
        if not ns:
            return NONE if ns is None else "0"
        text = f"{ns / 1e6:,.{places}f}"
        if float(text.replace(",", "")) == 0:
            return f"{'-' if ns < 0 else ''}<{10**-places:.{places}f}"
        return text

    return write


def duration(ns: int | None) -> str:
    """Write `ns` with the unit that suits it: `850 ns`, `12.3 µs`, `58.1 ms`, `12.3 s`, `2 h 05 min`."""
    if ns is None:
        return NOT_KNOWN_TEXT
    magnitude = abs(ns)
    if magnitude < 1_000:
        return f"{ns} ns"
    if magnitude < 1_000_000:
        return f"{ns / 1e3:.1f} µs"
    if magnitude < 1_000_000_000:
        return f"{ms(ns)} ms"
    seconds = ns / 1e9
    if magnitude < 120_000_000_000:
        return f"{seconds:.1f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if abs(minutes) < 120 else f"{minutes // 60} h {minutes % 60:02d} min"


def percent(numerator: int | None, denominator: int | None) -> str:
    """Write numerator / denominator as `61.3 %`; `–` when there is nothing to divide by."""
    if numerator is None or denominator is None:
        return NOT_KNOWN_TEXT
    if denominator == 0:
        return NONE
    share = 100 * numerator / denominator
    if 0 < share < 0.05:
        return "<0.1 %"
    return f"{share:.1f} %"


def size(count: int | None) -> str:
    """Write a number of bytes in decimal units (MB = 10^6); below 1 kB as whole bytes."""
    if count is None:
        return NOT_KNOWN_TEXT
    value, unit = float(count), 0
    while abs(value) >= 999.95 and unit < len(SIZE_UNITS) - 1:
        value, unit = value / 1000, unit + 1
    return f"{count} B" if unit == 0 else f"{value:.1f} {SIZE_UNITS[unit]}"


def counted(count: int, thing: str, plural: str = "") -> str:
    """Write `1 step`, `2 steps`, `1,200 steps`; `plural` where adding an s is wrong."""
    return f"{count:,} {thing if count == 1 else plural or thing + 's'}"


def bar(share: float, width: int) -> str:
    """Draw `share` (0..1, clipped) as a bar of at most `width` cells, in eighths of a cell.

    What is not zero shows at least an eighth.
    """
    eighths = round(min(max(share, 0.0), 1.0) * width * 8)
    if share > 0:
        eighths = max(eighths, 1)
    full, rest = divmod(eighths, 8)
    return "█" * full + (EIGHTHS[rest] if rest else "")


def ranges(numbers: list[int]) -> str:
    """Write ascending numbers with runs drawn together: `1–3, 7, 9–12`.

    Two neighbours stay apart (`1, 2`): a dash would save nothing.
    """
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    parts: list[str] = []
    for run in runs:
        parts += [f"{run[0]}–{run[-1]}"] if len(run) > 2 else [str(number) for number in run]
    return ", ".join(parts)
