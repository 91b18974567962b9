// @ts-check
// What the what-if says in sentences: where it starts from, how far it is off, what it does not know.

/** Where it starts from. @param {any} source @returns {string} */
function whatifAbout(source) {
  const { run } = source;
  if (source.example) {
    return "Two engines: each block’s communication is sent when it is computed, and one follows the other. Change a time, and see " +
      "what can still be hidden.";
  }
  const few = run.steps.length < run.usable ? `${run.steps.length} of ${run.usable}` : `${run.steps.length}`;
  const ranks = run.ranks > 1 ? ` on the last of ${run.ranks} ranks` : "";
  return "Change a time, and see what can still be hidden. It starts from the measured blocks of one step: compute up to where each " +
    `bucket was complete${ranks}, and what each bucket took on its own engine, one after another. ` +
    `The step with the median step time of ${few} sampled is shown first.`;
}

/** Why not everything can be changed; "" where it can. @param {any} source @returns {string} */
function whatifAbsent(source) {
  const { run } = source;
  if (source.example) return "";
  return [
    run.cost === null ? `No latency and bandwidth can be set: ${run.cost_because}.` : "",
    run.layout === null ? `No bucket cap can be tried: ${run.layout_because}.` : "",
  ].filter(Boolean).join(" ");
}

/** How far the model is off, and what the ceiling is.
 * @param {any} source @param {number | null} resolution ns @param {any} tools @returns {string} */
function whatifError(source, resolution, tools) {
  const ceiling = "The ceiling is T / (T − R) − 1 for a step T of which R is exposed: by how much throughput would rise if nothing " +
    "were. A bound, never a forecast.";
  const { run } = source;
  if (source.example) return `Exact: an example has no error. Without overlap it takes ${tools.duration(source.serial)}. ${ceiling}`;
  const unchanged = "“Unchanged” is the model with nothing changed.";
  if (resolution === null) {
    return `${unchanged} How far it is off is not known: ${run.cost_because}. So no change is told apart from its error. ${ceiling}`;
  }
  const here = resolution > run.error_ns ? ` On this step it is ${tools.duration(resolution)}.` : "";
  return `${unchanged} At its fitted cost it is off by ${tools.duration(run.error_ns)} from where the recorded buckets finished ` +
    `(median over ${run.steps.length} steps).${here} Smaller changes are not told apart. ${ceiling}`;
}

/** What it does not know. @param {any} source @returns {string[]} */
function whatifUnknown(source) {
  const always = [
    "Compute may run slower beside communication, and by another amount after a change: here each block takes what it is given.",
    "What follows the tail (waiting hosts, the optimizer) stays as long as it was, and so does the step after it.",
  ];
  if (source.example) return always;
  const { run } = source;
  const other = run.steps.some((/** @type {any} */ step) => step.recorded.other_exposed_ns > 0);
  const found = [
    ...always,
    "With nothing changed and measured times the model repeats the step by construction; that is no test of it. Its error is that of " +
      "the fitted cost.",
  ];
  if (run.layout) {
    found.push("Another bucket size may use another algorithm, and the order in which gradients become ready may depend on the buckets.");
  }
  if (other) found.push("Other communication is not moved: it stays where it was, and what of it was exposed counts in the ceiling.");
  found.push(...run.not_known.map((/** @type {any} */ one) => `${whatifCapital(one.what)}: ${one.because}.`));
  if (run.cost && run.cost.error !== null) {
    found.push(`The cost is fitted to ${run.cost.count} collectives of ${run.cost.sizes} ${run.cost.sizes === 1 ? "size" : "sizes"}; ` +
      `in a step it is off by ${(100 * run.cost.error).toFixed(1)} % (median).`);
  }
  return found;
}

/** @param {string} text @returns {string} */
function whatifCapital(text) {
  return text.slice(0, 1).toUpperCase() + text.slice(1);
}
