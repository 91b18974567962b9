// @ts-check
// The what-if of the page: the reader changes what compute and communication take, or how gradients are bucketed, and the
// two lanes and what is hidden, exposed and late are there at once.
//
// In: the payload of overlapwatch/reports/html/whatif.py. All arithmetic is in engines.js.

const WHATIF_PATIENCE_MS = 40;

/** Put the panel into `root`.
 * @param {Element} root @param {any} data @param {any} tools element, table, scale, duration, size */
function mountWhatif(root, data, tools) {
  const { element } = tools;
  const sources = whatifSources(data);
  let source = sources[0];
  let place = source.run.representative;
  let change = whatifUnchanged();
  let cost = source.run.cost; // what latency and bandwidth say; in use where `change.cost` is set
  /** @type {any} */
  let blocks = null;
  let capMb = 25;
  /** @type {any} */
  let waiting = null;

  // -- inputs --
  const from = whatifChoice(tools, { id: "whatif-source", label: "Start from",
    options: sources.map((one, i) => ({ value: String(i), text: one.name })), onchange: (value) => start(sources[Number(value)]) });
  const which = whatifChoice(tools, { id: "whatif-step", label: "Step", options: [], onchange: (value) => {
    place = Number(value);
    change.compute.clear();
    change.communication.clear();
    build();
  } });
  const reset = element("button", { type: "button", id: "whatif-reset", onclick: () => start(source) }, "Reset");
  const compute = whatifSlider(tools, { id: "whatif-compute", label: "Compute", unit: "%", min: 0, max: 300, most: 1000, step: 1,
    onchange: (value) => set({ compute_permille: Math.round(value * 10) }) });
  const communication = whatifSlider(tools, { id: "whatif-communication", label: "Communication", unit: "%", min: 0, max: 300,
    most: 1000, step: 1, onchange: (value) => set({ communication_permille: Math.round(value * 10) }) });
  const timed = whatifChoice(tools, { id: "whatif-timed", label: "Times", options: [
    { value: "measured", text: "as measured in this step" }, { value: "cost", text: "latency + bytes / bandwidth" },
  ], onchange: (value) => set({ cost: value === "cost" ? cost : null }) });
  const latency = whatifNumber(tools, { id: "whatif-latency", label: "Latency", unit: "µs", min: 0, max: 1e7, step: "any",
    onchange: (us) => setCost({ latency_ns: enginesRint(us * 1000) }) });
  const rate = whatifNumber(tools, { id: "whatif-rate", label: "Bandwidth", unit: "GB/s", min: 1e-6, max: 1e5, step: "any",
    onchange: (gb) => setCost({ ns_per_byte: 1 / gb }) });
  const layout = whatifChoice(tools, { id: "whatif-layout", label: "Buckets", options: [], onchange: (value) => {
    setLimits(value === "recorded" ? null : enginesLimits(value === "default" ? null : capMb));
  } });
  const cap = whatifSlider(tools, { id: "whatif-cap", label: "Bucket cap", unit: "MiB", min: WHATIF_CAPS[0],
    max: WHATIF_CAPS[WHATIF_CAPS.length - 1], most: 1e5, step: 1, toSlider: whatifCapPlace, fromSlider: (at) => WHATIF_CAPS[at],
    onchange: (value) => setCap(value) });
  const perCost = element("fieldset", null, element("legend", null, "What a bucket takes"), timed.row, latency.row, rate.row);
  const perCap = element("fieldset", null, element("legend", null, "How gradients are bucketed"), layout.row, cap.row);
  const absent = element("p", { class: "note" });

  // -- results --
  const about = element("p", { class: "whatif-about" });
  const verdict = element("p", { class: "whatif-verdict", role: "status" });
  const picture = element("div", { class: "whatif-picture" });
  const narrow = element("input", { type: "checkbox", id: "whatif-narrow", onchange: () => draw() });
  const zoom = element("label", { class: "whatif-zoom" }, narrow, " leave out what comes before the first bucket’s block");
  const key = element("p", { class: "whatif-key" }, [["compute", "compute"], ["hidden", "communication, hidden"],
    ["exposed", "communication, exposed"], ["wait", "waits in the queue"]].map(([kind, text]) =>
    element("span", null, element("i", { class: `whatif-swatch whatif-swatch-${kind}` }), text)));
  const numbers = element("div");
  const error = element("p", { class: "note" });
  const caps = element("div", { class: "whatif-caps" });
  const every = element("div");
  const details = element("details", null, element("summary", null, "Every block: set its times"), every);
  const unknown = element("ul");
  const silent = element("details", { class: "whatif-unknown" }, element("summary", null, "What this model does not know"), unknown);

  root.append(element("div", { class: "whatif" },
    about,
    element("div", { class: "whatif-start" }, from.row, which.row, reset),
    element("div", { class: "whatif-inputs" },
      element("fieldset", null, element("legend", null, "All times"), compute.row, communication.row), perCost, perCap),
    absent, verdict, picture, element("div", { class: "whatif-under" }, key, zoom), numbers, error, details, caps,
    silent));

  // -- changes --
  function set(/** @type {any} */ values) {
    Object.assign(change, values);
    draw();
  }
  function setCost(/** @type {any} */ values) {
    cost = { ...cost, ...values };
    timed.select.value = "cost";
    set({ cost });
  }
  function setCap(/** @type {number} */ value) {
    capMb = value;
    layout.select.value = "cap";
    setLimits(enginesLimits(value));
  }
  function setLimits(/** @type {number[] | null} */ limits) {
    // Other buckets were not measured: what they take is told by the cost alone.
    timed.select.value = limits || change.cost ? "cost" : "measured";
    timed.select.disabled = limits !== null;
    set({ limits, cost: limits ? cost : change.cost });
  }

  /** Begin anew from a source, with nothing changed. @param {any} next */
  function start(next) {
    source = next;
    const { run } = source;
    place = run.representative;
    change = whatifUnchanged();
    cost = run.cost;
    which.offer(run.steps.map((/** @type {any} */ step, /** @type {number} */ i) => ({ value: String(i),
      text: `${step.step}: ${tools.duration(step.recorded.step_ns)}, ${step.recorded.tail_ns ? `tail ${tools.duration(step.recorded.tail_ns)}` : "no tail"}` +
        (i === run.representative ? " (median step time)" : "") })));
    which.select.value = String(place);
    which.row.hidden = source.example;
    compute.set(100);
    communication.set(100);
    timed.select.value = "measured";
    timed.select.disabled = false;
    perCost.hidden = cost === null;
    perCap.hidden = run.layout === null || cost === null;
    if (cost) {
      latency.set(Math.round((cost.latency_ns ?? 0) / 100) / 10);
      rate.set(cost.ns_per_byte ? Number((1 / cost.ns_per_byte).toPrecision(3)) : 1e5);
    }
    layout.offer([{ value: "recorded", text: `as recorded (${run.buckets.length})` },
      { value: "default", text: "DDP’s default: 1, then 25 MiB" }, { value: "cap", text: "with the cap below" }]);
    layout.select.value = "recorded";
    capMb = 25;
    cap.set(capMb);
    zoom.hidden = source.example;
    absent.textContent = whatifAbsent(source);
    absent.hidden = !absent.textContent;
    about.textContent = (data.run ? "" : `Not of this input: ${data.because}. The worked example is here instead. `) + whatifAbout(source);
    unknown.replaceChildren(...whatifUnknown(source).map((text) => element("li", null, text)));
    details.open = source.example;
    build();
  }

  /** Build what belongs to one step. */
  function build() {
    blocks = whatifBlocks(tools, source, source.run.steps[place], change, draw);
    every.replaceChildren(blocks.node);
    draw();
  }

  function draw() {
    const { run } = source;
    const step = run.steps[place];
    const base = enginesStep(step, run, whatifUnchanged());
    const now = enginesStep(step, run, change);
    const resolution = whatifResolution(run, step, base, change);
    const names = now.members === null ? run.buckets.map((/** @type {any} */ one) => one.name)
      : now.members.map((/** @type {any} */ _, /** @type {number} */ i) => `new bucket ${i}`);
    verdict.textContent = whatifVerdict(tools, base, now, resolution, whatifCapital(names[names.length - 1] ?? ""));
    picture.replaceChildren(whatifPicture(tools, {
      base, now, blocks: run.blocks, segments: step.segments, buckets: names, same: now.members === null,
      from: narrow.checked && !source.example ? whatifBegin(step, base, now) : 0,
      width: picture.clientWidth || 640,
      onpick: (block, bucket) => {
        details.open = true;
        blocks.pick(block, bucket);
      },
    }));
    numbers.replaceChildren(whatifTable(tools, {
      recorded: source.example ? null : step.recorded, base, now, other: step.recorded.other_exposed_ns, resolution,
    }));
    error.textContent = whatifError(source, resolution, tools);
    blocks.show(now);
    clearTimeout(waiting);
    waiting = setTimeout(drawCaps, WHATIF_PATIENCE_MS);
  }

  /** The curve takes longer (every cap on every step), and waits for the slider to rest. */
  function drawCaps() {
    const { run } = source;
    caps.hidden = perCap.hidden;
    if (caps.hidden) return;
    const of = { ...change, compute: new Map(), communication: new Map(), cost };
    const [usual, ...rows] = whatifAllCaps(run, of, [null, ...whatifCaps(run.layout)]);
    const recorded = enginesMedian(run.steps.map((/** @type {any} */ one) => one.recorded.step_ns));
    const open = caps.querySelector("details")?.open ?? false;
    caps.replaceChildren(
      element("h3", null, "Every cap at once"),
      element("p", { class: "note" }, `Median step time of the model over ${run.steps.length} steps, at the scales and the cost set ` +
        `above${change.compute.size + change.communication.size ? " (times of single blocks left out)" : ""}. Dashed: as recorded, ` +
        `${tools.duration(recorded)}. Shaded: within the model’s error of ${tools.duration(run.error_ns)} of the best, not told apart. ` +
        "A forecast: measure a cap before you keep it."),
      whatifCurve(tools, { rows, recorded, error: run.error_ns, cap: change.limits?.length === 1 ? capMb : null,
        width: caps.clientWidth || 640, onpick: (value) => { cap.set(value); setCap(value); } }),
      element("details", { open }, element("summary", null, "The same as a table"),
        whatifCapTable(tools, [usual, ...rows], run.error_ns, recorded)));
  }

  start(source);
  addEventListener("beforeprint", () => { silent.open = true; });
  let width = 0;
  new ResizeObserver(() => {
    if (picture.clientWidth !== width) draw();
    width = picture.clientWidth;
  }).observe(picture);
}

/** Where the first bucket's block begins, unchanged or now. @param {any} step @param {any} base @param {any} now */
function whatifBegin(step, base, now) {
  const last = step.segments[0] - 1;
  return Math.min(base.compute_end[last], now.compute_end[last]);
}

/** What the panel may start from: the run, where it tells, and the worked example.
 * @param {any} data */
function whatifSources(data) {
  const examples = data.examples.map(whatifExample);
  if (!data.run) return examples;
  const { run } = data;
  const name = run.rank === null ? "this run" : `this run, rank ${run.rank}`;
  return [{ name, run, example: false }, ...examples];
}

/** An example in the shape of a run of one step. @param {any} told */
function whatifExample(told) {
  const count = told.compute_ns.length;
  const none = new Array(count).fill(0);
  const placed = enginesPlace(none, told.compute_ns, told.compute_ns);
  const { start, finish } = enginesQueue(placed.end, told.communication_ns);
  const sums = enginesSums(placed.start, placed.end, start, finish);
  const step = {
    step: 1, still_ns: none, compute_ns: told.compute_ns, segments: none.map(() => 1), ready_ns: placed.end, delay_ns: none, service_ns: told.communication_ns,
    gradients_ns: null, recorded: { ...sums, step_ns: sums.total_ns, other_exposed_ns: 0 },
  };
  const run = {
    rank: null, representative: 0, steps: [step], blocks: none.map((_, i) => `block ${i + 1}`),
    block_of: none.map((_, i) => i), buckets: none.map((_, i) => ({ name: `send ${i + 1}`, bytes: null })), layout: null, cost: null, error_ns: 0, not_known: [],
  };
  return { name: told.name, run, example: true, serial: sums.serial_ns };
}
