// @ts-check
// Light and dark: as the system says, or as the button says. Colours are CSS variables; what is drawn on a canvas asks
// for them with `colour` and is drawn again when they change.

const THEMES = ["system", "light", "dark"];
/** @type {(() => void)[]} */
const redraws = [];
/** @type {Map<string, string>} */
const colours = new Map();

/** Call `callback` after a change of colours, until what is returned is called.
 * @param {() => void} callback @returns {() => void} */
function onRedraw(callback) {
  redraws.push(callback);
  return () => { redraws.splice(redraws.indexOf(callback), 1); };
}

function redrawAll() {
  colours.clear();
  for (const callback of redraws) callback();
}

/** @param {string} name of a CSS variable, without its dashes @returns {string} */
function colour(name) {
  let value = colours.get(name);
  if (value === undefined) {
    value = getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
    colours.set(name, value);
  }
  return value;
}

/** Make the button that goes from one theme to the next. @returns {HTMLButtonElement} */
function themeButton() {
  let at = 0;
  const button = element("button", { type: "button", class: "theme", title: "light or dark" }, "theme: system");
  button.addEventListener("click", () => {
    at = (at + 1) % THEMES.length;
    const theme = THEMES[at];
    if (theme === "system") delete document.documentElement.dataset.theme;
    else document.documentElement.dataset.theme = theme;
    button.textContent = `theme: ${theme}`;
    redrawAll();
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redrawAll);
  addEventListener("beforeprint", () => { document.documentElement.dataset.print = ""; redrawAll(); });
  addEventListener("afterprint", () => { delete document.documentElement.dataset.print; redrawAll(); });
  return button;
}
