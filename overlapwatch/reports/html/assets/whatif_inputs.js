// @ts-check
// Inputs of the what-if: native ones, each with a label and a unit, so that they work with keyboard and screen reader.

/** A slider and a number that say the same.
 * @param {any} tools
 * @param {{id: string, label: string, unit: string, min: number, max: number, step: number, most?: number,
 *   toSlider?: (value: number) => number, fromSlider?: (place: number) => number, onchange: (value: number) => void}} told
 *   `most`: the largest number that may be typed; `toSlider`, `fromSlider`: where the slider is not linear. */
function whatifSlider(tools, told) {
  const toSlider = told.toSlider ?? ((/** @type {number} */ value) => value);
  const fromSlider = told.fromSlider ?? ((/** @type {number} */ place) => place);
  const number = whatifNumber(tools, {
    id: told.id, label: null, unit: told.unit, min: told.fromSlider ? 0.001 : told.min, max: told.most ?? told.max, step: "any",
    onchange: (value) => {
      range.value = String(toSlider(value));
      range.setAttribute("aria-valuetext", `${value} ${told.unit}`);
      told.onchange(value);
    },
  });
  const range = tools.element("input", {
    type: "range", id: `${told.id}-slider`, min: toSlider(told.min), max: toSlider(told.max), step: told.step,
    "aria-label": `${told.label}, ${told.unit}`,
    oninput: () => {
      const value = fromSlider(Number(range.value));
      number.set(value);
      range.setAttribute("aria-valuetext", `${value} ${told.unit}`);
      told.onchange(value);
    },
  });
  const row = tools.element("div", { class: "whatif-row" },
    tools.element("label", { for: told.id }, told.label), range, number.field);
  return {
    row,
    set(/** @type {number} */ value) {
      number.set(value);
      range.value = String(toSlider(value));
      range.setAttribute("aria-valuetext", `${value} ${told.unit}`);
    },
    enable(/** @type {boolean} */ on) {
      range.disabled = !on;
      number.input.disabled = !on;
    },
  };
}

/** A number with its unit. What is no number in range changes nothing and is marked.
 * @param {any} tools
 * @param {{id: string, label: string | null, unit: string, min: number, max: number, step: number | string,
 *   onchange: (value: number) => void}} told */
function whatifNumber(tools, told) {
  const input = tools.element("input", {
    type: "number", id: told.id, min: told.min, max: told.max, step: told.step, inputmode: "decimal",
    oninput: () => {
      const value = input.valueAsNumber;
      const good = Number.isFinite(value) && value >= told.min && value <= told.max;
      input.setAttribute("aria-invalid", String(!good));
      if (good) told.onchange(value);
    },
  });
  const field = tools.element("span", { class: "whatif-number" }, input, tools.element("span", { class: "whatif-unit" }, told.unit));
  const row = told.label === null ? field : tools.element("div", { class: "whatif-row" },
    tools.element("label", { for: told.id }, told.label), field);
  return {
    input,
    field,
    row,
    set(/** @type {number} */ value) {
      input.value = String(value);
      input.setAttribute("aria-invalid", "false");
    },
  };
}

/** One of several.
 * @param {any} tools
 * @param {{id: string, label: string, options: {value: string, text: string}[], onchange: (value: string) => void}} told */
function whatifChoice(tools, told) {
  const select = tools.element("select", { id: told.id, onchange: () => told.onchange(select.value) });
  function offer(/** @type {{value: string, text: string}[]} */ options) {
    select.replaceChildren(...options.map((one) => tools.element("option", { value: one.value }, one.text)));
  }
  offer(told.options);
  const row = tools.element("div", { class: "whatif-row" }, tools.element("label", { for: told.id }, told.label), select);
  return { select, row, offer };
}
