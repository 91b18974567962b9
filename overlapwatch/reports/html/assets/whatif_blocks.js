// @ts-check
// The table of every block: what each takes is an input, what becomes of it stands beside it.

/** Build it for one step of one source. What is typed goes to `change` and `redraw` is called.
 * @param {any} tools @param {any} source @param {any} step @param {any} change @param {() => void} redraw */
function whatifBlocks(tools, source, step, change, redraw) {
  const { element } = tools;
  const buckets = source.run.buckets;
  /** @type {any[]} */
  const computeInputs = [];
  /** @type {any[]} */
  const bucketInputs = [];
  /** @type {any[]} */
  const outputs = [];
  const input = (/** @type {string} */ id, /** @type {string} */ label, /** @type {number} */ ns, /** @type {Map<number, number>} */ to,
    /** @type {number} */ place) => {
    const made = whatifNumber(tools, {
      id, label: null, unit: "ms", min: 0, max: 1e6, step: "any",
      onchange: (ms) => {
        to.set(place, Math.round(ms * 1e6));
        redraw();
      },
    });
    made.set(whatifMs(ns));
    made.input.setAttribute("aria-label", label);
    return made;
  };
  let first = 0;
  const takes = step.segments.map((/** @type {number} */ count) => {
    first += count;
    return step.compute_ns.slice(first - count, first).reduce((/** @type {number} */ sum, /** @type {number} */ ns) => sum + ns, 0);
  });
  const rows = source.run.blocks.map((/** @type {string} */ name, /** @type {number} */ i) => {
    const bucket = source.run.block_of.indexOf(i);
    const compute = input(`whatif-compute-${i}`, `${name}: compute, ms`, takes[i], change.compute, i);
    computeInputs[i] = compute.input;
    const cells = [element("th", { scope: "row" }, name), element("td", null, compute.field)];
    if (bucket < 0) {
      cells.push(element("td", { colspan: 5, class: "whatif-none" }, "nothing is sent behind it"));
    } else {
      const sent = input(`whatif-communication-${bucket}`, `${buckets[bucket].name}: communication, ms`, step.service_ns[bucket],
        change.communication, bucket);
      bucketInputs[bucket] = sent.input;
      outputs[bucket] = ["whatif-waits", "whatif-sent", "whatif-hides"].map((kind) => element("td", { class: `number ${kind}` }));
      cells.push(element("td", null, buckets[bucket].name, buckets[bucket].bytes === null ? null
        : element("span", { class: "whatif-unit" }, ` ${tools.size(buckets[bucket].bytes)}`)),
        element("td", null, sent.field), ...outputs[bucket]);
    }
    return element("tr", null, cells);
  });
  const columns = ["block", "compute", "then sent", "communication", "waits, ms", "sent, ms", "hidden, ms"];
  const others = element("p", { class: "note", hidden: true },
    "The buckets drawn are not the recorded ones: what they take follows from latency and bandwidth. Compute can still be set.");
  const table = element("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Every block" },
    element("table", { class: "whatif-blocks" },
      element("thead", null, element("tr", null, columns.map((name, i) =>
        element("th", { scope: "col", class: i > 3 ? "number" : null }, name)))),
      element("tbody", null, rows)));
  return {
    node: element("div", null, others, table),
    /** Show what became of each bucket; `now` with other buckets than the recorded ones shows nothing. @param {any} now */
    show(now) {
      const own = now.members === null;
      others.hidden = own;
      const ms = tools.scale(own ? [...now.start, ...now.finish] : []);
      const short = tools.scale(own ? [...now.start.map((/** @type {number} */ at, /** @type {number} */ i) => at - now.launch[i]),
        ...now.covered_ns] : []);
      bucketInputs.forEach((one) => { one.disabled = !own; });
      outputs.forEach((cells, i) => {
        const texts = own ? [short(now.start[i] - now.launch[i]), `${ms(now.start[i])} to ${ms(now.finish[i])}`, short(now.covered_ns[i])]
          : ["–", "–", "–"];
        cells.forEach((/** @type {any} */ cell, /** @type {number} */ k) => { cell.textContent = texts[k]; });
      });
    },
    pick(/** @type {number | null} */ block, /** @type {number | null} */ bucket) {
      const input = block === null ? bucketInputs[bucket ?? 0] : computeInputs[block];
      if (!input || input.disabled) return;
      input.focus();
      input.select();
    },
  };
}

/** ns as the ms of an input: at most µs, which nobody sets more finely. @param {number} ns @returns {number} */
function whatifMs(ns) {
  return Math.round(ns / 1e3) / 1e3;
}
