// @ts-check
// What is told of one block: on the card beside the pointer, and of all collectives of a step in a table.

const HOW = new Map([["m", "measured"], ["e", "estimated"], ["u", "unobservable"], ["f", "not finished"],
  ["n", "not recorded"]]);
const MOMENTS = ["ready", "launch", "start", "finish"];
const TABLE_ROWS = 200;

/** The times of a collective with how each came to be.
 * @param {any} sent columns @param {number} at
 * @returns {{name: string, ns: number | null, how: string}[]} */
function momentsOf(sent, at) {
  return MOMENTS.map((name, place) => ({ name, ns: sent[name][at], how: HOW.get(sent.provenance[at][place]) ?? "" }));
}

/** The lines of the card of a block.
 * @param {any} lanes @param {Step} step @param {Block} block @returns {Child[]} */
function cardOf(lanes, step, block) {
  const rank = step.ranks[block.rank];
  const place = step.ranks.length > 1 ? `, ${rank.label}` : "";
  if (block.lane === "compute") return computeCard(lanes, rank, block, place);
  const sent = rank.data.sent, at = block.at;
  const kind = lanes.texts[sent.kind[at]][0];
  const [name, detail] = lanes.texts[sent.name[at]];
  const [group] = lanes.texts[sent.group[at]];
  const [cause] = lanes.texts[sent.cause[at]];
  const moments = momentsOf(sent, at);
  const write = scale(moments.map((one) => one.ns));
  const length = sent.begin[at] === null || sent.finish[at] === null ? null : sent.finish[at] - sent.begin[at];
  const notes = [sent.how[at], group ? `group ${group}` : "", sent.sequence[at] ? `sequence ${whole(sent.sequence[at])}` : "",
    sent.stream[at] ? `stream ${sent.stream[at]}` : ""].filter(Boolean).join(", ");
  return [
    element("strong", null, block.label),
    element("p", null, `${block.label === kind ? "" : `${kind}, `}${sent.bytes[at] === null ? "size not known" : size(sent.bytes[at])}`
      + `, ${block.phase}${place}`),
    name && name !== block.label ? element("p", { class: "quiet" }, `launched by ${name}`) : null,
    detail ? element("p", { class: "quiet" }, detail) : null,
    cause ? element("p", { class: "quiet" }, `${sent.how[at].includes("prefetched") ? "prefetched by" : "last gradient"}: ${cause}`) : null,
    element("table", null, element("tbody", null,
      moments.map((one) => element("tr", null, element("th", { scope: "row" }, one.name),
        element("td", { class: "number" }, one.ns === null ? NONE : `${write(one.ns)} ms`),
        element("td", { class: "quiet" }, one.how))),
      element("tr", null, element("th", { scope: "row" }, "compute waited"),
        element("td", { class: "number" }, sent.waited[at] === null ? NONE : `${ms(sent.waited[at])} ms`),
        element("td", { class: "quiet" }, sent.waited[at] === null ? "not recorded" : "while it ran")))),
    element("p", null, length === null ? "its span is not known"
      : `${ms(length)} ms long, hidden ${ms(sent.hidden[at])} ms (${percent(sent.hidden[at], length)})`),
    notes ? element("p", { class: "quiet" }, notes) : null,
    sent.step[at] !== step.data.step && step.data.step !== null && sent.step[at]
      ? element("p", { class: "quiet" }, `of step ${sent.step[at]}`) : null,
  ];
}

/** @param {any} lanes @param {RankLanes} rank @param {Block} block @param {string} place @returns {Child[]} */
function computeCard(lanes, rank, block, place) {
  const count = rank.data.compute.count?.[block.at] ?? 1;
  const write = scale([block.start, block.end]);
  return [
    element("strong", null, block.label),
    element("p", null, `compute, ${block.phase}${place}`),
    element("table", null, element("tbody", null,
      [["start", block.start], ["end", block.end]].map(([name, ns]) => element("tr", null,
        element("th", { scope: "row" }, name), element("td", { class: "number" }, `${write(Number(ns))} ms`))))),
    element("p", null, `${ms(block.end - block.start)} ms long`
      + (count > 1 ? `, ${counted(count, "span")} drawn as one` : "")),
  ];
}

/** All collectives of a step as a table: what the canvas shows, for whoever cannot see it.
 * @param {any} lanes @param {Step} step @returns {Element[]} */
function tableOf(lanes, step) {
  const several = step.ranks.length > 1;
  const all = step.ranks.flatMap((rank) => rank.communication.map((block) => ({ rank, block })));
  const shown = all.slice(0, TABLE_ROWS);
  const write = scale(shown.flatMap(({ rank, block }) =>
    [...MOMENTS.map((name) => rank.data.sent[name][block.at]), rank.data.sent.hidden[block.at], rank.data.sent.waited[block.at]]));
  const rows = shown.map(({ rank, block }) => {
    const sent = rank.data.sent, at = block.at;
    const times = momentsOf(sent, at).map((one) =>
      one.ns === null ? one.how : `${one.how === "estimated" ? "~" : ""}${write(one.ns)}`);
    return [block.label, ...(several ? [rank.label] : []), lanes.texts[sent.kind[at]][0],
      sent.bytes[at] === null ? NONE : size(sent.bytes[at]), ...times, write(sent.hidden[at]), write(sent.waited[at])];
  });
  const made = [table({
    columns: ["collective", ...(several ? ["rank"] : []), "kind", "bytes", ...MOMENTS, "hidden", "compute waited"],
    rows, words: several ? [0, 1, 2] : [0, 1],
    caption: `${step.name}: ms on the axis above; ~ estimated`,
  })];
  if (!all.length) return [element("p", null, "No collective is in this step.")];
  if (shown.length < all.length) {
    made.push(element("p", { class: "note" }, `the first ${TABLE_ROWS} of ${whole(all.length)} collectives; --json has their sums`));
  }
  return made;
}
