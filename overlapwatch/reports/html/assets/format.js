// @ts-check
// How numbers are written: the rules of overlapwatch/reports/format.py, so that a time reads the same on the page and in
// the text report. What is not known (null) is never written as a number; what is not zero is never written as zero.

const NOT_KNOWN = "not known";
const NONE = "–";
const SIZE_UNITS = ["B", "kB", "MB", "GB", "TB", "PB"];

/** Write with so many decimals and commas between thousands; exact halves go to the even neighbour, as in Python.
 * @param {number} value @param {number} places @returns {string} */
function fixed(value, places) {
  let text = value.toFixed(places);
  const scaled = value * 10 ** places;
  const tie = Number.isInteger(value * 2 ** (places + 1)) && Math.abs(scaled % 1) === 0.5;
  if (tie) {
    const low = Math.floor(scaled);
    text = ((low % 2 ? low + 1 : low) / 10 ** places).toFixed(places);
  }
  return commas(text);
}

/** @param {string} text a number without commas @returns {string} */
function commas(text) {
  const [whole, rest] = text.split(".");
  const grouped = whole.replace(/\B(?=(\d{3})+$)/g, ",");
  return rest === undefined ? grouped : `${grouped}.${rest}`;
}

/** @param {number} value a whole number @returns {string} `1,200` */
function whole(value) {
  return commas(String(value));
}

/** Write ns in ms without the unit: two decimals below 10 ms, one above.
 * @param {number | null | undefined} ns @returns {string} */
function ms(ns) {
  if (ns === null || ns === undefined) return NOT_KNOWN;
  if (ns === 0) return "0";
  const size = Math.abs(ns);
  if (size < 5_000) return ns > 0 ? "<0.01" : "-<0.01";
  return fixed(ns / 1e6, size < 9_995_000 ? 2 : 1);
}

/** Return a function that writes ns in ms, without the unit, with decimals that suit all of `values`.
 * @param {Iterable<number | null | undefined>} values
 * @returns {(ns: number | null | undefined) => string} */
function scale(values) {
  let low = Infinity, high = 0;
  for (const ns of values) {
    if (!ns) continue;
    low = Math.min(low, Math.abs(ns));
    high = Math.max(high, Math.abs(ns));
  }
  if (high === 0) low = 0;
  const places = high < 1e6 ? 3 : low < 1e6 || high < 1e7 ? 2 : 1;
  return (ns) => {
    if (ns === null || ns === undefined) return NONE;
    if (ns === 0) return "0";
    const text = fixed(ns / 1e6, places);
    if (Number(text.replaceAll(",", "")) === 0) return `${ns < 0 ? "-" : ""}<${(10 ** -places).toFixed(places)}`;
    return text;
  };
}

/** Write ns with the unit that suits it: `850 ns`, `12.3 µs`, `58.1 ms`, `12.3 s`, `2 h 05 min`.
 * @param {number | null | undefined} ns @returns {string} */
function duration(ns) {
  if (ns === null || ns === undefined) return NOT_KNOWN;
  const size = Math.abs(ns);
  if (size < 1e3) return `${ns} ns`;
  if (size < 1e6) return `${fixed(ns / 1e3, 1)} µs`;
  if (size < 1e9) return `${ms(ns)} ms`;
  if (size < 120e9) return `${fixed(ns / 1e9, 1)} s`;
  const minutes = Math.round(ns / 60e9);
  if (Math.abs(minutes) < 120) return `${minutes} min`;
  return `${Math.floor(minutes / 60)} h ${String(((minutes % 60) + 60) % 60).padStart(2, "0")} min`;
}

/** Write numerator / denominator as `61.3 %`; `–` where there is nothing to divide by.
 * @param {number | null | undefined} numerator @param {number | null | undefined} denominator @returns {string} */
function percent(numerator, denominator) {
  if (numerator === null || numerator === undefined) return NOT_KNOWN;
  if (denominator === null || denominator === undefined) return NOT_KNOWN;
  if (denominator === 0) return NONE;
  const share = (100 * numerator) / denominator;
  return share > 0 && share < 0.05 ? "<0.1 %" : `${fixed(share, 1).replaceAll(",", "")} %`;
}

/** Write a number of bytes in decimal units (MB = 10^6).
 * @param {number | null | undefined} bytes @returns {string} */
function size(bytes) {
  if (bytes === null || bytes === undefined) return NOT_KNOWN;
  let value = bytes, unit = 0;
  while (Math.abs(value) >= 999.95 && unit < SIZE_UNITS.length - 1) {
    value /= 1000;
    unit += 1;
  }
  return unit === 0 ? `${bytes} B` : `${fixed(value, 1).replaceAll(",", "")} ${SIZE_UNITS[unit]}`;
}

/** Write `1 step`, `2 steps`.
 * @param {number} count @param {string} thing @returns {string} */
function counted(count, thing) {
  return `${whole(count)} ${thing}${count === 1 ? "" : "s"}`;
}
