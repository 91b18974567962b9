// @ts-check
// Making elements. Text from the input becomes text nodes and attribute values, never markup: nothing here or
// elsewhere on the page parses HTML.

/** @typedef {Node | string | number | null | undefined | false} Child */

/** So many characters are not broken into lines. */
const SHORT = 24;
const SVG = "http://www.w3.org/2000/svg";
const SVG_TAGS = new Set(["svg", "g", "rect", "line", "path", "text", "title", "circle", "polyline"]);

/** Make an element.
 * @param {string} tag
 * @param {Record<string, any> | null} [attributes] `onclick` and the like are listeners; null and false are left out
 * @param {...(Child | Child[])} children strings become text; null is skipped
 * @returns {any} */
function element(tag, attributes, ...children) {
  const made = SVG_TAGS.has(tag) ? document.createElementNS(SVG, tag) : document.createElement(tag);
  for (const [name, value] of Object.entries(attributes ?? {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else made.setAttribute(name, value === true ? "" : String(value));
  }
  made.append(...children.flat().filter((one) => one !== null && one !== undefined && one !== false).map(
    (one) => (typeof one === "object" ? one : String(one))));
  return made;
}

/** Put `children` into `parent` instead of what is there.
 * @param {Element} parent @param {...(Child | Child[])} children */
function fill(parent, ...children) {
  parent.replaceChildren();
  parent.append(...children.flat().filter((one) => one !== null && one !== undefined && one !== false).map(
    (one) => (typeof one === "object" ? one : String(one))));
}

/** Make a table in a box that scrolls where the page is narrow. Columns that are not in `words` hold numbers.
 * @param {{columns: string[], rows: any[][], words?: number[], bars?: boolean, caption?: string, class?: string}} told
 *   `bars`: the last cell of a row is a share from 0 to 1. A cell may be a node.
 * @returns {HTMLElement} */
function table(told) {
  const words = new Set(told.words ?? [0]);
  const last = told.columns.length - 1;
  const kind = (/** @type {number} */ place) => (told.bars && place === last ? "bar" : words.has(place) ? null : "number");
  const head = told.columns.map((name, place) => element("th", { scope: "col", class: kind(place) }, name));
  const rows = told.rows.map((row) =>
    element("tr", { class: typeof row[0] === "string" && row[0].startsWith("  ") ? "part" : null }, row.map((cell, place) => {
      if (told.bars && place === last) return element("td", { class: "bar", "aria-hidden": "true" }, bar(cell));
      const tag = place === 0 ? "th" : "td";
      const short = typeof cell === "string" && cell.length <= SHORT ? "short" : null;
      return element(tag, { scope: place === 0 ? "row" : null, class: kind(place) ?? short },
        typeof cell === "string" ? cell.trim() : cell);
    })));
  const made = element("table", { class: told.class },
    told.caption ? element("caption", null, told.caption) : null,
    element("thead", null, element("tr", null, head)), element("tbody", null, rows));
  return element("div", { class: "scroll", tabindex: told.columns.length > 4 ? "0" : null,
    role: told.columns.length > 4 ? "region" : null, "aria-label": told.columns.length > 4 ? told.caption ?? told.columns.join(", ") : null }, made);
}

/** @param {number} share 0 to 1 @returns {Element | null} */
function bar(share) {
  if (!share) return null;
  return element("svg", { class: "bar", viewBox: "0 0 100 10", preserveAspectRatio: "none" },
    element("rect", { x: 0, y: 0, width: 100 * share, height: 10 }));
}

/** Add up values, the unknown left out. @param {(number | null)[]} values */
function sum(values) {
  return values.reduce((/** @type {number} */ all, one) => all + (one ?? 0), 0);
}
