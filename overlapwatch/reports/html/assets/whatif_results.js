// @ts-check
// What the what-if says in numbers: recorded, the model of the same, the model now, and the change where it is more than
// the model is off.

const WHATIF_NOT_TOLD = "not told apart";

/** By how much the model is off at least, ns: what lies within is not told apart. null: not known.
 * @param {any} run @param {any} step @param {any} base the step unchanged @param {any} change @returns {number | null} */
function whatifResolution(run, step, base, change) {
  if (run.error_ns === null) return null;
  const off = [run.error_ns, Math.abs(base.tail_ns - step.recorded.tail_ns)];
  if (change.cost !== null) {
    const fitted = enginesStep(step, run, { ...whatifUnchanged(), cost: run.cost });
    off.push(Math.abs(fitted.finish[fitted.finish.length - 1] - base.finish[base.finish.length - 1]));
  }
  return Math.max(...off);
}

/** A change that changes nothing. */
function whatifUnchanged() {
  return { compute_permille: 1000, communication_permille: 1000, compute: new Map(), communication: new Map(), cost: null, limits: null };
}

/** All that is compared: of what was recorded, or of a result of `enginesStep`.
 * @param {any} of @param {number} other exposed communication that is not in the model, ns */
function whatifNumbers(of, other) {
  const exposed = of.exposed_ns + other;
  return {
    step: of.step_ns,
    communication: of.communication_ns,
    hidden: of.hidden_ns,
    exposed: of.exposed_ns,
    tail: of.tail_ns,
    ratio: of.communication_ns ? of.hidden_ns / of.communication_ns : null,
    ceiling: enginesCeiling(of.step_ns, exposed),
  };
}

/** The table of results.
 * @param {any} tools
 * @param {{recorded: any | null, base: any, now: any, other: number, resolution: number | null}} told
 *   `recorded`: null for an example. */
function whatifTable(tools, told) {
  const columns = [told.recorded, told.base, told.now].filter((one) => one !== null).map((one) => whatifNumbers(one, told.other));
  const [base, now] = columns.slice(-2);
  const ms = tools.scale(columns.flatMap((one) => [one.step, one.communication, one.hidden, one.exposed, one.tail]));
  const signed = (/** @type {number} */ ns) => `${ns > 0 ? "+" : "−"}${ms(Math.abs(ns))}`;
  const within = (/** @type {number} */ ns) => told.resolution !== null && Math.abs(ns) <= told.resolution;
  // Of a share its error is that of the time, over what it is a share of.
  const off = told.resolution ?? 0;
  const shares = { ratio: off / Math.max(1, Math.min(base.communication, now.communication)), ceiling: off / Math.max(1, now.step) };
  const time = (/** @type {string} */ name, /** @type {"step" | "communication" | "hidden" | "exposed" | "tail"} */ key) => {
    const change = now[key] - base[key];
    // What communication takes is what the reader asked for, not what the model says.
    const text = change === 0 ? "–" : key !== "communication" && within(change) ? WHATIF_NOT_TOLD : signed(change);
    return [name, ...columns.map((one) => ms(one[key])), text];
  };
  const share = (/** @type {string} */ name, /** @type {"ratio" | "ceiling"} */ key, /** @type {string} */ sign) => {
    const [was, is] = [base[key], now[key]];
    const points = was === null || is === null ? null : Math.round(1000 * (is - was)) / 10;
    const text = points === null || points === 0 ? "–" : Math.abs(is - was) <= shares[key] ? WHATIF_NOT_TOLD
      : `${points > 0 ? "+" : "−"}${Math.abs(points).toFixed(1)}`;
    return [name, ...columns.map((one) => (one[key] === null ? "–" : `${sign}${(100 * one[key]).toFixed(1)}`)), text];
  };
  return tools.table({
    columns: ["", ...(told.recorded ? ["recorded"] : []), "unchanged", "now", "change"],
    rows: [
      time("step, ms", "step"),
      time("communication, ms", "communication"),
      time("  hidden, ms", "hidden"),
      time("  exposed, ms", "exposed"),
      time("tail, ms", "tail"),
      share("overlap ratio, %", "ratio", ""),
      share("ceiling, %", "ceiling", "+"),
    ],
    words: [0],
    class: "whatif-results",
    caption: "What is hidden and exposed, unchanged and now",
  });
}

/** In a sentence or two: the tail now, and what it is made of.
 * @param {any} tools @param {any} base @param {any} now @param {number | null} resolution @param {string} last bucket */
function whatifVerdict(tools, base, now, resolution, last) {
  const change = now.tail_ns - base.tail_ns;
  const compared = change === 0 ? "as unchanged" : resolution !== null && Math.abs(change) <= resolution
    ? `not told apart from ${base.tail_ns ? tools.duration(base.tail_ns) : "none"}`
    : `${tools.duration(Math.abs(change))} ${change > 0 ? "more" : "less"} than unchanged`;
  const tail = `${now.tail_ns ? `Tail ${tools.duration(now.tail_ns)}` : "No tail"} (${compared}), step ${tools.duration(now.step_ns)}.`;
  if (now.tail_ns === 0) {
    return `${tail} ${now.communication_ns ? "Compute outlives all communication: nothing of it is exposed at the end." : "Nothing is sent."}`;
  }
  const i = now.start.length - 1;
  const late = now.launch[i] - now.compute_end_ns;
  const waited = now.start[i] - now.launch[i];
  const own = now.finish[i] - now.start[i];
  const itself = `takes ${tools.duration(own)} itself`;
  if (waited > 0) {
    const limit = waited > own ? "the queue, not the start, is the limit" : "its own time, more than the queue, is the limit";
    return `${tail} ${last} waits ${tools.duration(waited)} behind the one before and ${itself}: ${limit}.`;
  }
  if (late > 0) return `${tail} ${last} is launched ${tools.duration(late)} after compute has ended here, and ${itself}.`;
  return `${tail} ${last} starts as soon as it may, at ${tools.duration(now.launch[i])}, and ${itself}: that alone is the limit.`;
}
