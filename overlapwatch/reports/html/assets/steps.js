// @ts-check
// The steps of one rank over the run: tail and exposed time above, the step's length below, on one axis of steps.
// A click, or Enter, opens the step in the lanes.

// The tail lies under the others and is drawn wider: with DDP it often is the exposed time.
const CURVES = [
  { name: "tail", key: "tail_ns", tone: "tail-curve", width: 5 },
  { name: "exposed", key: "communication_only_ns", tone: "exposed" },
  { name: "hidden", key: "overlap_ns", tone: "overlap" },
];

/** @param {HTMLElement} root @param {any} series @param {(step: number) => void} choose
 * @returns {() => void} takes the charts away */
function mountSteps(root, series, choose) {
  const steps = series.step;
  const inMs = (/** @type {(number | null)[]} */ column) => column.map((ns) => (ns === null ? null : ns / 1e6));
  const curves = CURVES.filter((one) => series[one.key].some((/** @type {number | null} */ ns) => ns !== null));
  const spoken = element("p", { class: "facts", "aria-live": "polite" });
  const host = element("div", { class: "charts", tabindex: "0", role: "group",
    "aria-label": "tail, exposed and hidden time and length of each step; arrow keys go through the steps, Enter opens one" });
  root.append(legendOf(curves), host, spoken);
  let at = -1;

  /** @param {number | null | undefined} place */
  function tell(place) {
    if (place === null || place === undefined) return;
    at = place;
    spoken.textContent = `step ${steps[at]}: ${duration(series.duration_ns[at])}, `
      + curves.map((one) => `${one.name} ${duration(series[one.key][at])}`).join(", ");
  }
  const sync = uPlot.sync(`steps-${Math.random()}`);
  const axis = (/** @type {any} */ more) => ({ stroke: () => colour("quiet"), grid: { stroke: () => colour("line"), width: 1 },
    ticks: { show: false }, font: `11px ${getComputedStyle(document.body).fontFamily}`, size: 52, ...more });
  const values = (/** @type {any} */ _, /** @type {number[]} */ splits) => splits.map((one) => commas(String(+one.toFixed(3))));
  const points = { show: steps.length <= 120, size: 5 };
  const chart = (/** @type {any[]} */ drawn, /** @type {any[]} */ columns, /** @type {number} */ height, /** @type {string} */ title) => new uPlot({
    width: Math.max(host.clientWidth, 200), height, legend: { show: false },
    cursor: { sync: { key: sync.key, setSeries: false }, drag: { x: false, y: false }, points: { size: 7 } },
    scales: { x: { time: false, range: stepRange }, y: { range: (/** @type {any} */ _, /** @type {number} */ low, /** @type {number} */ high) => [0, high > 0 ? high * 1.06 : 1] } },
    axes: [axis({ size: 26, values: (/** @type {any} */ _, /** @type {number[]} */ splits) => splits.map((one) => (Number.isInteger(one) ? whole(one) : "")) }),
      axis({ values, label: title, labelSize: 16, labelFont: `11px ${getComputedStyle(document.body).fontFamily}` })],
    series: [{}, ...drawn],
    hooks: { setCursor: [(/** @type {any} */ me) => tell(me.cursor.idx)] },
  }, [steps, ...columns], host);
  const charts = [
    chart(curves.map((one) => ({ stroke: () => colour(one.tone), width: one.width ?? 1.25,
      points: { ...points, show: points.show && !one.width, fill: () => colour(one.tone) } })),
      curves.map((one) => inMs(series[one.key])), 170, "ms"),
    chart([{ stroke: () => colour("ink"), width: 1.25, points: { ...points, fill: () => colour("ink") } }],
      [inMs(series.duration_ns)], 110, "step, ms"),
  ].slice(curves.length ? 0 : 1);
  for (const one of charts) {
    sync.sub(one);
    one.over.addEventListener("click", () => at >= 0 && choose(steps[at]));
  }
  /** @param {number} place */
  function move(place) {
    tell(Math.min(Math.max(place, 0), steps.length - 1));
    for (const one of charts) one.setCursor({ left: one.valToPos(steps[at], "x"), top: one.over.clientHeight / 2 }, false);
  }
  host.addEventListener("keydown", (/** @type {KeyboardEvent} */ event) => {
    const places = new Map([["ArrowLeft", at - 1], ["ArrowRight", at + 1], ["Home", 0], ["End", steps.length - 1]]);
    const place = places.get(event.key);
    if (place !== undefined) move(place);
    else if (event.key === "Enter" && at >= 0) choose(steps[at]);
    else return;
    event.preventDefault();
  });
  const fit = () => charts.forEach((one) => one.setSize({ width: Math.max(host.clientWidth, 200), height: one.height }));
  const watch = new ResizeObserver(fit);
  watch.observe(host);
  const quiet = onRedraw(() => charts.forEach((one) => one.redraw(false, true)));
  if (series.thinned) root.append(element("p", { class: "note" }, series.thinned));
  return () => {
    watch.disconnect();
    quiet();
    charts.forEach((one) => one.destroy());
  };
}

/** @param {any} _ @param {number} low @param {number} high */
function stepRange(_, low, high) {
  return low === high ? [low - 1, high + 1] : [low, high];
}

/** @param {any[]} curves */
function legendOf(curves) {
  return element("p", { class: "legend" },
    curves.map((one) => element("span", { class: "key" }, element("i", { class: one.tone }), one.name)),
    element("span", { class: "key" }, element("i", { class: "ink" }), "step"));
}
