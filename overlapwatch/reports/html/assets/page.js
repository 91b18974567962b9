// @ts-check
// The page: the data of the report laid out from what is looked at first to what is looked up.

const TIME = new Set(["partition", "split", "exposed"]);
const STEPS = new Set(["steps", "tail"]);
const APART = new Set(["not_known", "origin"]);

/** @param {string} id @param {string} title @param {...Child} children */
function section(id, title, ...children) {
  return element("section", { id, "aria-labelledby": `${id}-title` }, element("h2", { id: `${id}-title` }, title), ...children);
}

/** @param {any} data */
function build(data) {
  const root = /** @type {HTMLElement} */ (document.getElementById("page"));
  const several = data.ranks.length > 1;
  const perRank = element("div"), perRankMore = element("div"), figures = element("div");
  const lanesRoot = section("lanes", "A step on the time line");
  const choice = several ? element("select", { id: "rank", onchange: () => showRank(Number(choice.value)) },
    data.ranks.map((/** @type {any} */ rank, /** @type {number} */ at) => element("option", { value: at }, rank.label))) : null;
  const whatifRoot = section("whatif", "What if");
  const links = [["lanes", "time line"], ["time", "where the time went"], ["steps", "steps"], ...(several ? [["ranks", "ranks"]] : []),
    ["whatif", "what if"], ["more", "details"], ["unknown", "not known"], ["checks", "checks"]];
  fill(root,
    element("header", null,
      element("div", null, element("h1", null, "overlapwatch"), element("p", { class: "title" }, data.title)),
      themeButton()),
    element("nav", { "aria-label": "sections" }, choice ? element("label", { for: "rank" }, "told in full: ", choice) : null,
      links.map(([id, name]) => element("a", { href: `#${id}` }, name))),
    data.alerts.length ? element("div", { class: "alerts", role: "alert" }, partsOf(data.alerts)) : null,
    figures, lanesRoot, perRank,
    several ? section("ranks", data.beside.title, ...ranksOf(data)) : null,
    whatifRoot, perRankMore,
    section("unknown", "Not known", notKnownOf(data)),
    section("checks", "Whether it adds up", checksOf(data)),
    element("footer", null, element("p", { class: "note" },
      "Made by overlapwatch from the inputs named above; nothing on this page is fetched. Curves: uPlot, MIT licence.")));
  const timeline = data.lanes.steps.length ? mountTimeline(lanesRoot, data) : nothingToDraw(lanesRoot, data);
  mountWhatif(whatifRoot, data.whatif, { ms, duration, size, percent, scale, element, table, onRedraw, colour });
  let away = () => {};

  /** @param {number} at place in the data */
  function showRank(at) {
    const rank = data.ranks[at], told = rank.sections;
    const said = element("p", { class: "bold", role: "status" });
    stepOpener = (/** @type {number} */ step) => openStep(step, timeline, said, rank.recorded);
    const curves = element("div"), whose = several ? `, ${rank.label}` : "";
    away();
    fill(figures, element("dl", { class: "figures" }, rank.figures.map((/** @type {any} */ one) => element("div", null,
      element("dt", null, `${one.name}${whose}`), element("dd", null, element("span", { class: "value" }, one.value), element("span", { class: "of" }, one.of))))));
    const worst = worstTable(rank.worst);
    fill(perRank,
      section("time", `Where the time went${whose}`, element("div", { class: "columns-2" },
        element("div", null, sectionsOf(told, new Set(["partition"]), { partition: partsBar(rank.parts) })),
        element("div", null, sectionsOf(told, new Set(["split", "exposed"]), { exposed: bandsBars(rank.exposed) })))),
      section("steps", `Steps${whose}`, curves, worst, said,
        element("div", { class: "columns-2" }, sectionsOf(told, STEPS))));
    const shown = new Set([...TIME, ...STEPS, ...APART]);
    const rest = new Set(told.map((/** @type {any} */ one) => one.name).filter((/** @type {string} */ name) => !shown.has(name)));
    fill(perRankMore, section("more", `Details${whose}`, element("div", { class: "flow" }, sectionsOf(told, new Set(["origin"])), sectionsOf(told, rest))));
    away = rank.series.step.length > 1 ? mountSteps(curves, rank.series, (step) => stepOpener?.(step)) : () => {};
  }
  showRank(0);
}

/** @param {any} data @returns {Child[]} */
function ranksOf(data) {
  const found = partsOf(data.beside.parts);
  if (!data.across) return found;
  const waits = waitsBars(data.across.waits);
  const names = new Set(data.across.sections.map((/** @type {any} */ one) => one.name));
  return [...found, element("div", { class: "flow" }, sectionsOf(data.across.sections, names, { waits }))];
}

/** @param {Element} root @param {any} data @returns {Timeline} */
function nothingToDraw(root, data) {
  root.append(element("p", null, "There is nothing to draw: the input holds no step with its events, and no span of any kernel."),
    ...data.lanes.thinned ?? []);
  return { show: () => false, has: () => false };
}

build(JSON.parse(/** @type {HTMLElement} */ (document.getElementById("data")).textContent ?? ""));
