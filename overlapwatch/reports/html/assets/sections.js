// @ts-check
// The sections of the report: sentences, facts and tables as the text report has them, with what is drawn beside them.

/** Opens a step in the lanes, once there are lanes. @type {((step: number) => void) | null} */
let stepOpener = null;

/** @param {any[]} parts of the data @param {boolean} [drawn] a figure above says what the bars of a table say
 * @returns {Element[]} */
function partsOf(parts, drawn = false) {
  return parts.map((part) => {
    if (part.text !== undefined) return element("p", { class: part.style === "dim" ? "note" : part.style || null }, part.text);
    if (part.facts) {
      return element("dl", { class: "facts" }, part.facts.map((/** @type {string[]} */ pair) =>
        element("div", null, element("dt", null, pair[0]), element("dd", null, pair[1]))));
    }
    const bars = part.bars && !drawn;
    const most = part.columns.length - (part.bars && drawn ? 1 : 0);
    return table({ ...part, bars, columns: part.columns.slice(0, most),
      rows: part.rows.map((/** @type {any[]} */ row) => [keyed(part, row[0], drawn), ...row.slice(1, most)]) });
  });
}

/** The first cell of a row: with the colour that it has in the figure above, or as a button that opens its step.
 * @param {any} part @param {string} cell @param {boolean} drawn @returns {Child} */
function keyed(part, cell, drawn) {
  const tone = TONES.get(cell);
  if (drawn && tone) return element("span", { class: "key" }, element("i", { class: tone }), cell);
  if (part.columns[0] === "step" && /^\d+$/.test(cell)) return stepButton(Number(cell), cell);
  return cell;
}

/** @param {number} step @param {string} text */
function stepButton(step, text) {
  return element("button", { type: "button", class: "link", "data-step": step, onclick: () => stepOpener?.(step) }, text);
}

/** Sections of one rank in the order of the text report; those in `before` get something drawn above their tables.
 * @param {any[]} sections @param {Set<string>} names which of them @param {Record<string, Element | null>} [before]
 * @returns {Element[]} */
function sectionsOf(sections, names, before = {}) {
  return sections.filter((one) => names.has(one.name)).map((one) =>
    element("section", { class: "part", "data-name": one.name }, one.name === "partition" ? null : element("h3", null, one.title),
      before[one.name] ?? null, partsOf(one.parts, Boolean(before[one.name]))));
}

/** The steps worth a look, each with a button that opens it in the lanes.
 * @param {any[]} worst of the data @returns {Element | null} */
function worstTable(worst) {
  if (!worst.length) return null;
  const lengths = scale(worst.map((one) => one.duration_ns)), tails = scale(worst.map((one) => one.tail_ns));
  return table({
    columns: ["step", "length ms", "tail ms", "last reduction", "the tail was mostly"],
    words: [0, 3, 4],
    caption: "the steps with the longest tails, and the longest steps",
    rows: worst.map((one) => [
      stepButton(one.step, String(one.step)),
      lengths(one.duration_ns), tails(one.tail_ns), one.last_bucket ?? (one.events ? NONE : "events not kept"),
      one.mostly ? `${one.mostly} ${ms(one.mostly_ns)} ms` : NONE]),
  });
}

/** Open a step in the lanes, or say why it cannot be.
 * @param {number} step @param {Timeline} timeline @param {Element} said where that is said
 * @param {number[][]} recorded the steps with events, as runs: first, distance, count */
function openStep(step, timeline, said, recorded) {
  if (timeline.show(step)) {
    said.textContent = "";
    return;
  }
  said.textContent = recorded.some(([first, distance, count]) =>
    step >= first && (step - first) % distance === 0 && (step - first) / distance < count)
    ? `step ${step} is not drawn here, or the page would grow too large: overlapwatch report INPUT --step ${step} --html FILE draws it`
    : `step ${step} cannot be drawn: its events are not in the input, only its numbers`;
  said.scrollIntoView({ block: "nearest" });
}

/** Every check with both sides. @param {any} data @returns {Element} */
function checksOf(data) {
  const failed = data.checks.filter((/** @type {any} */ one) => !one.ok);
  const rows = [...failed, ...data.checks.filter((/** @type {any} */ one) => one.ok)].map((/** @type {any} */ one) => [
    one.name, one.timeline === null ? "all" : data.labels[one.timeline], whole(one.left), one.ok ? "=" : "≠", whole(one.right), one.unit]);
  const told = failed.length
    ? element("p", { class: "bold bad" }, `${failed.length} of ${counted(data.checks_made, "check")} failed: do not trust the numbers they name, and please report it with this input`)
    : element("p", null, `The books close: ${counted(data.checks_made, "check")}, both sides of each reached by different ways.`);
  return element("div", null, told,
    element("details", { open: failed.length > 0 }, element("summary", null, "all checks, with both sides"),
      table({ columns: ["what is claimed", "of", "left", "", "right", "unit"], rows, words: [0, 1, 3, 5], caption: "closure checks" })));
}

/** What cannot be told, and why. @param {any} data @returns {Element} */
function notKnownOf(data) {
  if (!data.not_known.length) return element("p", null, "Nothing that this report asks for is unknown.");
  const several = data.ranks.length > 1;
  return element("dl", { class: "unknown" }, data.not_known.map((/** @type {any} */ one) => {
    const of = one.ranks === null || !several || one.ranks.length === data.ranks.length ? ""
      : ` (${one.ranks.map((/** @type {number} */ at) => data.labels[at]).join(", ")})`;
    return element("div", null, element("dt", null, one.what + of), element("dd", null, one.because));
  }));
}
