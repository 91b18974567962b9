// @ts-check
// Every bucket cap at once: the median step time of the model over all steps of the page.

/** Caps that people would try, MiB; the slider goes from one to the next. */
const WHATIF_CAPS = [0.125, 0.25, 0.5, 0.75, 1, 1.5, 2, 3, 4, 5, 6, 8, 10, 12, 16, 20, 25, 32, 40, 50, 64, 80, 100, 128, 160, 200, 256,
  320, 400, 512, 640, 800, 1024];

/** The place of a cap on the slider: that of the nearest. @param {number} cap MiB */
function whatifCapPlace(cap) {
  const far = WHATIF_CAPS.map((one) => Math.abs(Math.log(cap / one)));
  return far.indexOf(Math.min(...far));
}

/** Caps that differ for this model: from the last that makes as many buckets as there can be to the first that makes as few.
 * @param {any} layout @returns {number[]} */
function whatifCaps(layout) {
  const counts = WHATIF_CAPS.map((cap) => enginesAssign(layout.sizes, enginesLimits(cap), layout.types).length);
  return WHATIF_CAPS.slice(counts.lastIndexOf(counts[0]), counts.indexOf(counts[counts.length - 1]) + 1);
}

/** The medians over all steps under each cap, as `ddp_forecast` takes them.
 * @param {any} run @param {any} change @param {(number | null)[]} caps MiB; null: DDP's default
 * @returns {{cap: number | null, buckets: number, tail_ns: number, step_ns: number}[]} */
function whatifAllCaps(run, change, caps) {
  const moved = run.steps.map((/** @type {any} */ step) => enginesMoved(step, run, change));
  return caps.map((cap) => {
    const limits = enginesLimits(cap);
    const members = enginesAssign(run.layout.sizes, limits, run.layout.types);
    const results = run.steps.map((/** @type {any} */ step, /** @type {number} */ i) =>
      enginesStep(step, run, { ...change, limits }, moved[i], members));
    return {
      cap,
      buckets: members.length,
      tail_ns: enginesMedian(results.map((/** @type {any} */ one) => one.tail_ns)),
      step_ns: enginesMedian(results.map((/** @type {any} */ one) => one.step_ns)),
    };
  });
}

/** Draw the curve.
 * @param {any} tools
 * @param {{rows: ReturnType<typeof whatifAllCaps>, recorded: number, error: number, cap: number | null, width: number,
 *   onpick: (cap: number) => void}} told `recorded`: median step, ns; `cap`: the one that is set */
function whatifCurve(tools, told) {
  const { element } = tools;
  const { rows } = told;
  const [width, height, left, top, bottom] = [Math.max(told.width, 240), 150, 74, 10, 24];
  const best = Math.min(...rows.map((one) => one.step_ns));
  const high = Math.max(told.recorded, best + told.error, ...rows.map((one) => one.step_ns));
  const low = Math.min(told.recorded, best);
  const pad = Math.max(1, (high - low) * 0.06);
  const y = (/** @type {number} */ ns) => top + (height - top - bottom) * (1 - (ns - low + pad) / (high - low + 2 * pad));
  const ends = [Math.log(rows[0].cap ?? 1), Math.log(rows[rows.length - 1].cap ?? 1)];
  const x = (/** @type {number} */ cap) =>
    left + ((width - left - 12) * (Math.log(cap) - ends[0])) / Math.max(1e-9, ends[1] - ends[0]);
  const ms = tools.scale([high, low]);
  const step = Math.ceil((rows.length * 34) / (width - left));
  return element("svg", { class: "whatif-curve", viewBox: `0 0 ${width} ${height}`, width, height, role: "img",
    "aria-label": "Median step time against bucket cap; the table below has the numbers" },
    element("rect", { x: left, width: width - left - 4, y: y(best + told.error), height: Math.max(1, y(best) - y(best + told.error)),
      class: "whatif-band" }, element("title", null, "within the model's error of the best")),
    element("line", { x1: left, x2: width - 4, y1: y(told.recorded), y2: y(told.recorded), class: "whatif-recorded" }),
    told.cap !== null && told.cap >= (rows[0].cap ?? 0) && told.cap <= (rows[rows.length - 1].cap ?? 0)
      ? element("line", { x1: x(told.cap), x2: x(told.cap), y1: top, y2: height - bottom, class: "whatif-edge" }) : null,
    element("polyline", { points: rows.map((one) => `${x(one.cap ?? 1)},${y(one.step_ns)}`).join(" "), class: "whatif-line" }),
    rows.map((one) => element("circle", { cx: x(one.cap ?? 1), cy: y(one.step_ns), r: 4,
      class: one.step_ns - best <= told.error ? "whatif-point whatif-best" : "whatif-point", onclick: () => told.onpick(one.cap ?? 1) },
      element("title", null, `${one.cap} MiB: ${one.buckets} buckets, step ${tools.duration(one.step_ns)}, ` +
        `tail ${tools.duration(one.tail_ns)}`))),
    rows.map((one, i) => (i % step ? null
      : element("text", { x: x(one.cap ?? 1), y: height - 6, class: "whatif-label whatif-quiet whatif-middle" }, one.cap))),
    [high, low].map((ns) => element("text", { x: left - 8, y: y(ns) + 4, class: "whatif-label whatif-quiet whatif-end" },
      `${ms(ns)} ms`)),
    element("text", { x: left - 22, y: height - 6, class: "whatif-label whatif-quiet whatif-end" }, "MiB"));
}

/** The same as a table, for reading and for screen readers.
 * @param {any} tools @param {ReturnType<typeof whatifAllCaps>} rows @param {number} error @param {number} recorded */
function whatifCapTable(tools, rows, error, recorded) {
  const best = Math.min(...rows.map((one) => one.step_ns));
  const tail = tools.scale(rows.map((one) => one.tail_ns));
  const step = tools.scale(rows.map((one) => one.step_ns));
  return tools.table({
    columns: ["cap, MiB", "buckets", "tail, ms", "step, ms", "change", ""],
    rows: rows.map((one) => [one.cap === null ? "1, then 25 (default)" : String(one.cap), String(one.buckets), tail(one.tail_ns),
      step(one.step_ns), whatifShare(one.step_ns / recorded - 1), one.step_ns - best <= error ? "◂" : ""]),
    words: [0, 5],
    caption: "Median over the steps, by bucket cap",
  });
}

/** @param {number} share @returns {string} `+1.2 %` */
function whatifShare(share) {
  return `${share < 0 ? "−" : "+"}${Math.abs(100 * share).toFixed(1)} %`;
}
