// @ts-check
// The two lanes of the what-if as SVG, so that theme and print need nothing. Over them, thin, the same step unchanged.

const WHATIF_HEIGHTS = { label: 15, thin: 8, lane: 26, gap: 3, group: 12, axis: 24 };
const WHATIF_LETTER = 7;

/** @typedef {{compute_start: number[], compute_end: number[], launch: number[], start: number[], finish: number[],
 *   ready: number[], bytes: (number | null)[], compute_end_ns: number, total_ns: number, tail_ns: number}} Placed */

/** Draw.
 * @param {any} tools
 * @param {{base: Placed, now: Placed, blocks: string[], segments: number[], buckets: string[], same: boolean,
 *   from: number, width: number, onpick: (block: number | null, bucket: number | null) => void}} told
 *   `segments`: how many each block has; `buckets`: names of the buckets of `now`; `same`: they are those of `base`; `from`: ns, where the picture begins.
 * @returns {SVGElement} */
function whatifPicture(tools, told) {
  const { element } = tools;
  const { base, now } = told;
  const high = WHATIF_HEIGHTS;
  const width = Math.max(told.width, 240);
  const right = width - 1;
  const last = Math.max(base.total_ns, now.total_ns);
  const scale = right / Math.max(1, last - told.from);
  const at = (/** @type {number} */ ns) => Math.max(0, (ns - told.from) * scale);
  /** @type {any[]} */
  const parts = [];
  const put = (/** @type {string} */ tag, /** @type {any} */ attributes, /** @type {any[]} */ ...children) =>
    parts.push(element(tag, attributes, ...children));
  const label = (/** @type {number} */ y, /** @type {string} */ text, /** @type {string} */ kind) =>
    put("text", { x: 0, y: y + 11, class: `whatif-label ${kind}` }, text);

  function block(/** @type {number} */ from, /** @type {number} */ to, /** @type {number} */ y, /** @type {number} */ height,
    /** @type {string} */ kind, /** @type {string} */ text, /** @type {string} */ title, /** @type {any} */ onclick) {
    if (to <= from || to <= told.from) return;
    const x = at(from);
    const w = Math.max(0.75, at(to) - x - 0.75);
    put("rect", { x, y, width: w, height, class: kind, onclick }, element("title", null, title));
    const short = [text, text.split(" ").at(-1) ?? ""].find((one) => one && one.length * WHATIF_LETTER + 6 <= w);
    if (short && height >= 16) put("text", { x: x + w / 2, y: y + height / 2 + 4, class: `whatif-name ${kind}-name` }, short);
  }

  function lanes(/** @type {Placed} */ of, /** @type {number} */ y, /** @type {number} */ height, /** @type {boolean} */ full) {
    let first = 0;
    told.segments.forEach((count, i) => {
      const mine = Array.from({ length: count }, (_, k) => first + k);
      first += count;
      const took = (/** @type {number} */ k) => of.compute_end[k] - of.compute_start[k];
      const longest = mine.reduce((best, k) => (took(k) > took(best) ? k : best), mine[0]);
      const all = mine.reduce((sum, k) => sum + took(k), 0);
      const title = `${told.blocks[i]}: ${tools.duration(all)} of compute, to ${tools.duration(of.compute_end[mine[count - 1]])}`;
      for (const k of mine) {
        block(of.compute_start[k], of.compute_end[k], y, height, "whatif-compute", k === longest ? told.blocks[i] : "", title,
          full ? () => told.onpick(i, null) : null);
      }
    });
    const below = y + height + (full ? high.label + high.gap : high.gap);
    if (full) label(y + height + high.gap, "communication", "");
    of.start.forEach((from, i) => {
      const to = of.finish[i];
      const name = full || told.same ? told.buckets[i] : `bucket ${i}`;
      const size = of.bytes[i] === null ? "" : `, ${tools.size(of.bytes[i])}`;
      const waited = from - of.launch[i];
      const title = `${name}${size}: ready at ${tools.duration(of.ready[i])}, waits ${tools.duration(waited)} in the queue, ` +
        `sent ${tools.duration(from)} to ${tools.duration(to)}`;
      if (full && waited > 0) {
        put("line", { x1: at(of.launch[i]), x2: at(from), y1: below + height - 2, y2: below + height - 2, class: "whatif-wait" });
      }
      // What compute covers of it is hidden; the rest stands out.
      const pieces = whatifPieces(from, to, of.compute_start, of.compute_end);
      const longest = Math.max(...pieces.map((one) => one.to - one.from));
      const onclick = full ? () => told.onpick(null, i) : null;
      for (const piece of pieces) {
        block(piece.from, piece.to, below, height, piece.hidden ? "whatif-hidden" : "whatif-exposed",
          piece.to - piece.from === longest ? name : "", title, onclick);
      }
    });
    return below + height;
  }

  let y = 0;
  label(y, "unchanged", "whatif-quiet");
  y += high.label;
  y = lanes(base, y, high.thin, false) + high.group;
  const top = y;
  label(y, "now: compute", "");
  y += high.label;
  y = lanes(now, y, high.lane, true);
  for (const [of, kind] of /** @type {[Placed, string][]} */ ([[base, "whatif-edge whatif-before"], [now, "whatif-edge"]])) {
    put("line", { x1: at(of.compute_end_ns), x2: at(of.compute_end_ns), y1: kind.includes("before") ? high.label - 2 : top + 2,
      y2: kind.includes("before") ? top - high.group + 2 : y + 4, class: kind });
  }
  if (now.tail_ns > 0) {
    const [from, to] = [at(now.compute_end_ns), at(now.total_ns)];
    put("path", { d: `M${from} ${y + 3}v5H${to}v-5`, class: "whatif-tail" });
    const text = `tail ${tools.duration(now.tail_ns)}`;
    const room = right - from > text.length * WHATIF_LETTER;
    put("text", { x: room ? from + 3 : to, y: y + 20, class: `whatif-label whatif-strong${room ? "" : " whatif-end"}` }, text);
  }
  y += 24;
  for (const tick of whatifTicks(told.from, last, Math.max(2, Math.floor(width / 110)))) {
    const x = at(tick);
    put("line", { x1: x, x2: x, y1: y, y2: y + 4, class: "whatif-axis" });
    put("text", { x, y: y + 16, class: `whatif-label whatif-quiet${x > right - 40 ? " whatif-end" : x > 10 ? " whatif-middle" : ""}` },
      tick === 0 ? "0" : tools.duration(tick));
  }
  put("line", { x1: 0, x2: right, y1: y, y2: y, class: "whatif-axis" });
  const height = y + high.axis;
  return element("svg", { class: "whatif-lanes", viewBox: `0 0 ${width} ${height}`, width, height, role: "img",
    "aria-label": `Two lanes: compute to ${tools.duration(now.compute_end_ns)}, ` +
      `the last communication to ${tools.duration(now.total_ns)}` }, whatifHatch(), parts);
}

/** A pattern for what is exposed, so that it is told without its colour too. */
function whatifHatch() {
  const make = (/** @type {string} */ tag, /** @type {Record<string, string>} */ attributes) => {
    const made = document.createElementNS("http://www.w3.org/2000/svg", tag);
    for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
    return made;
  };
  const defs = make("defs", {});
  const pattern = make("pattern", { id: "whatif-hatch", width: "6", height: "6", patternUnits: "userSpaceOnUse",
    patternTransform: "rotate(45)" });
  pattern.append(make("rect", { width: "6", height: "6", class: "whatif-hatch-ground" }),
    make("line", { x1: "0", x2: "0", y1: "0", y2: "6", class: "whatif-hatch-line" }));
  defs.append(pattern);
  return defs;
}

/** Cut a span where compute begins and ends.
 * @param {number} from @param {number} to @param {number[]} start @param {number[]} end
 * @returns {{from: number, to: number, hidden: boolean}[]} */
function whatifPieces(from, to, start, end) {
  const pieces = [];
  let reached = from;
  const add = (/** @type {number} */ until, /** @type {boolean} */ hidden) => {
    if (until <= reached) return;
    const before = pieces.at(-1);
    if (before && before.hidden === hidden) before.to = until;
    else pieces.push({ from: reached, to: until, hidden });
    reached = until;
  };
  start.forEach((low, i) => {
    add(Math.min(to, low), false);
    if (low < to && end[i] > reached) add(Math.min(to, end[i]), true);
  });
  add(to, false);
  return pieces;
}

/** Round moments, about `count` of them. @param {number} from @param {number} to @param {number} count */
function whatifTicks(from, to, count) {
  const rough = Math.max(1, (to - from) / count);
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((one) => one * power).find((one) => one >= rough) ?? 10 * power;
  const ticks = [];
  for (let tick = Math.ceil(from / step) * step; tick <= to; tick += step) ticks.push(tick);
  return ticks;
}
