// @ts-check
// Bars that are drawn beside a table: the window in its parts, the exposed segments by length, the ranks' waiting.
// Their lengths are the numbers of the data; the table below each says the same in figures.

const PARTS = [
  { key: "compute_only_ns", name: "compute only", tone: "compute-backward" },
  { key: "overlap_ns", name: "overlap (hidden)", tone: "overlap" },
  { key: "communication_only_ns", name: "communication only (exposed)", tone: "exposed" },
  { key: "idle_ns", name: "idle", tone: "idle" },
];
/** Colours of the rows of a table that belong to a bar. */
const TONES = new Map(PARTS.map((one) => [one.name, one.tone]));

/** The window as one bar. @param {any} parts of the data @returns {Element | null} */
function partsBar(parts) {
  if (!parts.window_ns || parts.communication_ns === null || !parts.observed) return null;
  return stacked(PARTS.map((one) => ({ ...one, ns: parts[one.key] })), parts.window_ns, "the window in its parts");
}

/** A bar made of several; the table below is its key. @param {{name: string, tone: string, ns: number}[]} pieces @param {number} whole
 * @param {string} label @returns {Element} */
function stacked(pieces, whole, label) {
  const told = pieces.map((one) => `${one.name} ${percent(one.ns, whole)}`);
  let left = 0;
  const rects = pieces.map((one) => {
    const width = (100 * one.ns) / whole;
    const rect = element("rect", { class: one.tone, x: left, y: 0, width, height: 10 },
      element("title", null, `${one.name}: ${duration(one.ns)}, ${percent(one.ns, whole)}`));
    left += width;
    return rect;
  });
  return element("figure", { class: "stacked" },
    element("svg", { viewBox: "0 0 100 10", preserveAspectRatio: "none", role: "img", "aria-label": `${label}: ${told.join(", ")}` }, rects));
}

/** The exposed segments by length, upright. @param {any} exposed of the data @returns {Element | null} */
function bandsBars(exposed) {
  if (!exposed.count) return null;
  const most = Math.max(...exposed.bands.map((/** @type {any} */ band) => band.total_ns));
  return element("figure", { class: "bands" },
    element("div", { class: "columns", role: "img", "aria-label": "exposed time by the length of its segments" },
      exposed.bands.map((/** @type {any} */ band) => {
        const high = (100 * band.total_ns) / most;
        return element("div", null, element("span", null, band.count ? `${ms(band.total_ns)} ms` : "0"),
          element("svg", { viewBox: "0 0 10 100", preserveAspectRatio: "none" },
            element("rect", { class: "exposed", x: 0, y: 100 - high, width: 10, height: high })),
          element("span", { class: "quiet" }, bandName(band)), element("span", { class: "quiet" }, counted(band.count, "segment")));
      })));
}

/** @param {any} band */
function bandName(band) {
  const low = String(band.low_ns / 1e6);
  if (band.high_ns === null) return `≥ ${low} ms`;
  return band.low_ns ? `${low} to ${band.high_ns / 1e6} ms` : `< ${band.high_ns / 1e6} ms`;
}

/** Each rank's time in collectives: transfer and waiting. @param {any[]} waits of the data @returns {Element | null} */
function waitsBars(waits) {
  if (!waits.length) return null;
  const most = Math.max(...waits.map((one) => one.stay_ns));
  return element("figure", { class: "waits" },
    element("p", { class: "legend" }, element("span", { class: "key" }, element("i", { class: "communication" }), "transfer"),
      element("span", { class: "key" }, element("i", { class: "wait" }), "waiting for the last rank"),
      element("span", { class: "key" }, element("i", { class: "exposed" }), "of it standing still")),
    element("div", { class: "rows" }, waits.map((one) => {
      const share = (/** @type {number} */ ns) => (100 * ns) / most;
      return [element("span", null, one.rank),
        element("svg", { viewBox: "0 0 100 10", preserveAspectRatio: "none", role: "img",
          "aria-label": `${one.rank}: transfer ${duration(one.transfer_ns)}, waiting ${duration(one.wait_ns)}, standing still ${duration(one.exposed_wait_ns)}` },
          element("rect", { class: "communication", x: 0, y: 0, width: share(one.transfer_ns), height: 10 }),
          element("rect", { class: "wait", x: share(one.transfer_ns), y: 0, width: share(one.wait_ns), height: 10 }),
          element("rect", { class: "exposed", x: share(one.transfer_ns), y: 7, width: share(one.exposed_wait_ns), height: 3 })),
        element("span", { class: "number" }, `waited ${ms(one.wait_ns)} of ${ms(one.stay_ns)} ms`)];
    }).flat()));
}
