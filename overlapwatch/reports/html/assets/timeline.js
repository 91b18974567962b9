// @ts-check
// The lanes of one step: choosing the step, zooming, panning, and the card of what lies under the pointer or is stepped
// to with the keyboard.

const SHORTEST_NS = 1000;
const PAN = 0.2;
const ZOOM = 1.5;

/** @typedef {{show: (step: number | null) => boolean, has: (step: number | null) => boolean}} Timeline */

/** Mount the lanes into `root`.
 * @param {HTMLElement} root @param {any} data of the page @returns {Timeline} */
function mountTimeline(root, data) {
  const lanes = data.lanes;
  const order = [...lanes.steps.keys()].sort((a, b) => (lanes.steps[a].step ?? 0) - (lanes.steps[b].step ?? 0));
  /** @type {Step} */
  let step;
  /** @type {View} */
  let view;
  /** @type {any} */
  let drawn;
  /** @type {Block | null} */
  let marked = null;
  let asked = false;

  const choice = element("select", { "aria-label": "step", onchange: () => open(Number(choice.value)) },
    order.map((at) => element("option", { value: at }, optionText(lanes.steps[at]))));
  const canvas = element("canvas", { class: "lanes", tabindex: "0", role: "application", "aria-describedby": "lanes-keys" });
  const card = element("div", { class: "card", hidden: true });
  const spoken = element("div", { class: "spoken", "aria-live": "polite" });
  const facts = element("p", { class: "facts" });
  const keys = element("p", { class: "legend" });
  const leftOut = element("p", { class: "note" });
  const inTable = element("div");
  const details = element("details", { ontoggle: () => details.open && fill(inTable, ...tableOf(lanes, step)) },
    element("summary", null, "the collectives of this step as a table"), inTable);
  const button = (/** @type {string} */ text, /** @type {string} */ label, /** @type {() => void} */ act) =>
    element("button", { type: "button", "aria-label": label, title: label, onclick: act }, text);
  root.append(
    element("div", { class: "controls" }, choice,
      ...(order.length > 1 ? [button("◀", "previous step", () => neighbour(-1)), button("▶", "next step", () => neighbour(1))] : []),
      element("span", { class: "room" }),
      button("−", "zoom out", () => zoom(ZOOM)), button("+", "zoom in", () => zoom(1 / ZOOM)),
      button("all", "show the whole step", () => look(step.from, step.to))),
    facts, keys, element("div", { class: "stage" }, canvas, card), spoken,
    element("p", { class: "note keys", id: "lanes-keys" },
      "drag to pan; wheel with Ctrl, or after a click, to zoom. Keys: ← → pan, + − zoom, 0 the whole step, "
      + "n p next and previous block, [ ] previous and next step"),
    leftOut, ...data.thinned.map((/** @type {string} */ text) => element("p", { class: "note" }, text)), details);

  /** @param {number} at place in the data */
  function open(at) {
    step = buildStep(lanes, lanes.steps[at], data.labels);
    choice.value = String(at);
    marked = null;
    view = { from: step.from, to: step.to };
    canvas.setAttribute("aria-label", `lanes of ${step.name}: ${step.ranks.length} ranks, compute over communication`);
    fill(facts, ...factsOf(step));
    fill(keys, ...keysOf(step));
    const crowded = step.ranks.reduce((all, rank) => all + rank.crowded, 0);
    leftOut.textContent = [...new Set(step.ranks.flatMap((rank) => rank.data.left_out)),
      crowded ? `${counted(crowded, "block")} ran beside so many others that they lie over them in the last row` : ""].filter(Boolean).join("; ");
    if (details.open) fill(inTable, ...tableOf(lanes, step));
    redraw();
    hideCard();
  }

  function redraw() {
    if (asked) return;
    asked = true;
    requestAnimationFrame(() => {
      asked = false;
      if (canvas.clientWidth) drawn = paint(canvas, step, view, marked);
    });
  }

  /** @param {number} from @param {number} to */
  function look(from, to) {
    const most = step.to - step.from;
    const span = Math.min(most, Math.max(to - from, Math.min(SHORTEST_NS, most)));
    const left = Math.min(Math.max(from, step.from), step.to - span);
    view = { from: left, to: left + span };
    redraw();
  }

  /** @param {number} factor @param {number} [around] ns that stays where it is */
  function zoom(factor, around = (view.from + view.to) / 2) {
    look(around - (around - view.from) * factor, around + (view.to - around) * factor);
  }

  /** @param {number} by share of the view */
  function pan(by) {
    const off = (view.to - view.from) * by;
    look(view.from + off, view.to + off);
  }

  /** @param {number} by */
  function neighbour(by) {
    const at = order.indexOf(Number(choice.value)) + by;
    if (at >= 0 && at < order.length) open(order[at]);
  }

  /** @param {number} left in the canvas */
  function momentAt(left) {
    return view.from + ((left - drawn.gutter) / (drawn.width - drawn.gutter)) * (view.to - view.from);
  }

  function hideCard() {
    card.hidden = true;
    canvas.style.cursor = "grab";
  }

  /** @param {Block} block @param {number} left @param {number} top in the canvas */
  function showCard(block, left, top) {
    fill(card, ...cardOf(lanes, step, block));
    card.hidden = false;
    const room = canvas.clientWidth - card.offsetWidth;
    card.style.left = `${Math.max(0, Math.min(left + 14, room))}px`;
    card.style.top = `${top + 16}px`;
    canvas.style.cursor = "default";
  }

  /** Go to the next block of the marked one's rank and lane, by start. @param {number} by */
  function stepTo(by) {
    const all = step.ranks.flatMap((rank) => [...rank.communication, ...rank.compute]);
    if (!all.length) return;
    const at = marked ? all.indexOf(marked) + by : by > 0 ? 0 : all.length - 1;
    marked = all[(at + all.length) % all.length];
    const span = view.to - view.from;
    if (marked.start < view.from || marked.start > view.to) look(marked.start - span / 4, marked.start + (3 * span) / 4);
    drawn = paint(canvas, step, view, marked);
    const place = drawn.places[marked.rank];
    const upper = marked.lane === "compute";
    const left = drawn.gutter + ((marked.start - view.from) / (view.to - view.from)) * (drawn.width - drawn.gutter);
    showCard(marked, left, (upper ? place.compute : place.communication) + 10);
    spoken.textContent = [...card.children].map((one) => one.textContent).join(". ");
  }

  const acts = new Map([["ArrowLeft", () => pan(-PAN)], ["ArrowRight", () => pan(PAN)], ["+", () => zoom(1 / ZOOM)],
    ["=", () => zoom(1 / ZOOM)], ["-", () => zoom(ZOOM)], ["0", () => look(step.from, step.to)],
    ["n", () => stepTo(1)], ["p", () => stepTo(-1)], ["[", () => neighbour(-1)], ["]", () => neighbour(1)],
    ["Escape", () => { marked = null; hideCard(); redraw(); }]]);
  canvas.addEventListener("keydown", (/** @type {KeyboardEvent} */ event) => {
    const act = event.ctrlKey || event.metaKey || event.altKey ? null : acts.get(event.key);
    if (!act) return;
    event.preventDefault();
    act();
  });
  canvas.addEventListener("wheel", (/** @type {WheelEvent} */ event) => {
    const sideways = Math.abs(event.deltaX) > Math.abs(event.deltaY) || event.shiftKey;
    if (!sideways && !event.ctrlKey && document.activeElement !== canvas) return;
    event.preventDefault();
    if (sideways) pan((event.deltaX || event.deltaY) / canvas.clientWidth);
    else zoom(Math.exp(event.deltaY / 400), momentAt(event.offsetX));
    hideCard();
  }, { passive: false });

  /** @type {{x: number, view: View} | null} */
  let drag = null;
  canvas.addEventListener("pointerdown", (/** @type {PointerEvent} */ event) => {
    drag = { x: event.offsetX, view };
    canvas.setPointerCapture(event.pointerId);
  });
  canvas.addEventListener("pointerup", () => { drag = null; });
  canvas.addEventListener("pointercancel", () => { drag = null; });
  canvas.addEventListener("pointermove", (/** @type {PointerEvent} */ event) => {
    if (!drawn) return;
    if (drag && Math.abs(event.offsetX - drag.x) > 2) {
      const off = ((drag.x - event.offsetX) / (drawn.width - drawn.gutter)) * (drag.view.to - drag.view.from);
      look(drag.view.from + off, drag.view.to + off);
      hideCard();
      return;
    }
    const block = blockAt(step, view, drawn, event.offsetX, event.offsetY);
    if (block) showCard(block, event.offsetX, event.offsetY);
    else hideCard();
  });
  canvas.addEventListener("pointerleave", () => { if (!marked) hideCard(); });
  canvas.addEventListener("blur", () => { marked = null; hideCard(); redraw(); });
  onRedraw(redraw);
  new ResizeObserver(redraw).observe(canvas);

  open(0);
  const has = (/** @type {number | null} */ number) => lanes.steps.some((/** @type {any} */ one) => one.step === number);
  return {
    has,
    show(number) {
      const at = lanes.steps.findIndex((/** @type {any} */ one) => one.step === number);
      if (at < 0) return false;
      open(at);
      root.scrollIntoView({ block: "start" });
      canvas.focus({ preventScroll: true });
      return true;
    },
  };
}

/** @param {any} step of the data */
function optionText(step) {
  const longest = Math.max(...step.ranks.map((/** @type {any} */ rank) => rank.end - rank.start));
  const tails = step.ranks.map((/** @type {any} */ rank) => rank.tail_ns).filter((/** @type {any} */ ns) => ns !== null);
  const flags = step.flags.length ? `, ${step.flags.join(", ").replaceAll("_", " ")}` : "";
  return `${stepName(step)}: ${ms(longest)} ms${tails.length ? `, tail ${ms(Math.max(...tails))} ms` : ""}${flags}`;
}

/** What is said of a step above its lanes. @param {Step} step @returns {Child[]} */
function factsOf(step) {
  const told = step.ranks.map((rank) => {
    const tail = rank.data.tail_ns;
    const words = tail === null ? `tail not known${rank.data.tail_because ? ` (${rank.data.tail_because})` : ""}`
      : `tail ${ms(tail)} ms`;
    return `${step.ranks.length > 1 ? `${rank.label}: ` : ""}${ms(rank.data.end - rank.data.start)} ms`
      + (step.data.step === null ? "" : `, ${words}`);
  });
  return [element("strong", null, step.name), ` ${told.slice(0, 8).join("; ")}${told.length > 8 ? "; …" : ""}`];
}

/** What the colours of a step mean: those that occur. @param {Step} step @returns {Child[]} */
function keysOf(step) {
  const phases = new Set(step.ranks.flatMap((rank) => rank.compute.map((block) => block.phase)));
  const some = (/** @type {(rank: RankLanes) => boolean} */ test) => step.ranks.some(test);
  const key = (/** @type {boolean} */ there, /** @type {string} */ name, /** @type {string} */ text) =>
    there && element("span", { class: "key" }, element("i", { class: name }), text);
  return [
    key(phases.has("forward"), "forward", "forward"), key(phases.has("backward"), "backward", "backward"),
    key(phases.has("optimizer"), "optimizer", "optimizer"), key(phases.has("other"), "compute", phases.size > 1 ? "other compute" : "compute"),
    key(some((rank) => rank.communication.length > 0), "communication", "communication"),
    key(some((rank) => rank.data.exposed.length > 0), "exposed", "exposed: communication without compute"),
    key(some((rank) => rank.data.waits.length > 0), "wait", "compute waits"),
    key(some((rank) => rank.data.tail_ns > 0), "tail", "tail"),
    some((rank) => rank.communication.some((block) => (block.ready ?? block.launch ?? block.start) < block.start))
      && element("span", { class: "key" }, element("svg", { viewBox: "0 0 40 12" },
        element("path", { d: "M1 1 V11 M18 6 H39" }), element("path", { d: "M1 6 H18", "stroke-dasharray": "2 2" })),
      "ready, launched (dotted), queued until its start"),
  ];
}
