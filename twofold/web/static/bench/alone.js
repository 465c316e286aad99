// @ts-check
/** The Bench view as a page of its own, with its results in it: `twofold bench view`. */

import { h } from "../core/dom.js";
import { createTheme } from "../shell/theme.js";
import { benchView } from "./view.js";

const results = JSON.parse(document.getElementById("data")?.textContent ?? "[]");
const theme = createTheme();
const said = h("p.hidden", { role: "status" });
const announce = (/** @type {string} */ text) => said.textContent = text;
document.body.append(
  h("header.bar", h("b", "Twofold bench"), h("div.spring"), theme.button),
  h("div.view", benchView(results, announce)),
  said,
);
