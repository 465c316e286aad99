// @ts-check
/** Light or dark: as the system says until the user chooses. */

import { h } from "../core/dom.js";
import { effect, signal } from "../core/signal.js";

const KEPT = "twofold.theme";

/** @typedef {"light" | "dark"} Theme */

export function createTheme() {
  const system = matchMedia("(prefers-color-scheme: dark)");
  let chosen = kept();
  const value = signal(/** @type {Theme} */ (chosen ?? (system.matches ? "dark" : "light")));
  system.addEventListener("change", () => chosen ?? value.set(system.matches ? "dark" : "light"));
  effect(() => {
    document.documentElement.dataset.theme = value.get();
  });
  const button = h(
    "button",
    {
      class: "icon",
      type: "button",
      "aria-label": "Dark or light",
      title: "Dark or light",
      onclick: () => {
        chosen = value.peek() === "dark" ? "light" : "dark";
        keep(chosen);
        value.set(chosen);
      },
    },
    h(
      "svg",
      { width: 18, height: 18, viewBox: "0 0 18 18", "aria-hidden": "true" },
      h("path", { class: "f-ink", d: "M9 1.5a7.5 7.5 0 1 0 0 15v-15z" }),
      h("circle", { class: "s-ink", cx: 9, cy: 9, r: 6.8, fill: "none", "stroke-width": 1.4 }),
    ),
  );
  return { value, button };
}

/** @returns {Theme | null} */
function kept() {
  try {
    const theme = localStorage.getItem(KEPT);
    return theme === "light" || theme === "dark" ? theme : null;
  } catch {
    return null;
  }
}

/** @param {Theme} theme */
function keep(theme) {
  try {
    localStorage.setItem(KEPT, theme);
  } catch {
    // A browser that stores nothing shows the system's theme next time.
  }
}
