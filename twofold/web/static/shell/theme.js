// @ts-check
/** Light or dark: as the system says until the user chooses. */

import { h } from "../core/dom.js";
import { keptText } from "../core/parts.js";
import { effect, signal } from "../core/signal.js";

/** @typedef {"light" | "dark"} Theme */

export function createTheme() {
  const system = matchMedia("(prefers-color-scheme: dark)");
  const kept = keptText("twofold.theme"), found = kept.get();
  /** @type {Theme | null} */
  let chosen = found === "light" || found === "dark" ? found : null;
  const value = signal(/** @type {Theme} */ (chosen ?? (system.matches ? "dark" : "light")));
  system.addEventListener("change", () => chosen ?? value.set(system.matches ? "dark" : "light"));
  effect(() => {
    document.documentElement.dataset.theme = value.get();
  });
  const button = h(
    "button.icon",
    {
      type: "button",
      "aria-label": "Dark or light",
      title: "Dark or light",
      onclick: () => {
        chosen = value.peek() === "dark" ? "light" : "dark";
        kept.set(chosen);
        value.set(chosen);
      },
    },
    h(
      "svg",
      { width: 18, height: 18, viewBox: "0 0 18 18", "aria-hidden": "true" },
      h("path.f-ink", { d: "M9 1.5a7.5 7.5 0 1 0 0 15v-15z" }),
      h("circle.s-ink", { cx: 9, cy: 9, r: 6.8, fill: "none", "stroke-width": 1.4 }),
    ),
  );
  return { value, button };
}
